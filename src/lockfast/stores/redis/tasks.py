"""How asyncio speaks to Redis: one connection for all tasks of a loop (`task_link`), made when it
is first needed, and again when it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.batches import alone
from lockfast.stores.redis.connections import LEAST, Where
from lockfast.stores.redis.errors import Unreachable
from lockfast.stores.redis.scripts import Script
from lockfast.stores.redis.task_connection import EAR_BUDGET, NEVER, TaskLink, quietly, seen
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

TO_CONNECT = 1.0


class TaskTransport:
    suspends = True

    def __init__(
        self, address: Where, wake_address: str, connected: Callable[[TaskLink], None]
    ) -> None:
        self.wakeups = Wakeups()
        self._address = address
        self._own_wake_address = wake_address
        self.wake_address = "."
        self._heard_since = NEVER
        self._connected = connected
        self._link: TaskLink | None = None
        self._connecting: asyncio.Task[TaskLink] | None = None
        self._listening = False
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt

    def send(self, command: bytes, budget: float) -> Awaitable[Any]:
        link = self._link
        if link is not None and link.serves(self._address.generation):
            return link.ask(command, budget)
        return self._send_when_ready(command, budget)

    def join(self, script: Script, keys: bytes, words: bytes, budget: float) -> Awaitable[Any]:
        """Send what is said of one name, with others in one call of the script if it can be."""
        link = self._link
        if link is not None and link.serves(self._address.generation):
            return link.join(script, keys, words, budget)
        return self._send_when_ready(alone(script, keys, words), budget)

    async def _send_when_ready(self, command: bytes, budget: float) -> Any:
        return (await self.calls([command], budget))[0]

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        until = asyncio.get_running_loop().time() + budget
        link = await self._ready(budget)
        rest = max(until - link.loop.time(), LEAST)
        answers = [link.ask(command, rest) for command in commands]
        return await asyncio.gather(*answers)  # which sees the errors of all

    async def settled(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        until = asyncio.get_running_loop().time() + budget
        link = await self._ready(budget)
        rest = max(until - link.loop.time(), LEAST)
        answers = [link.ask(command, rest) for command in commands]
        settled = asyncio.shield(link.acknowledged(replicas, wait_ms, rest))  # it is others', too
        return await asyncio.gather(*answers, settled)

    async def _ready(self, budget: float) -> TaskLink:
        """The connection; made by one task for all who need it. That one goes on when their time is
        over: with a short lease, or far away, a budget may be too short to connect in, and who asks
        again would begin again."""
        loop = asyncio.get_running_loop()
        link = self._link
        if link is not None and link.lost is None and link.loop is loop:
            if link.generation == self._address.generation:
                return link
            self._look_where(link)
        budget = max(budget, self._address.least)
        making = self._connecting
        if making is None or making.done() or making.get_loop() is not loop:
            making = loop.create_task(self._connect(max(budget, TO_CONNECT)))
            self._connecting = making
            making.add_done_callback(seen)
        try:
            async with asyncio.timeout(budget):
                return await asyncio.shield(making)
        except TimeoutError as error:
            raise self._address.failed(error) from None

    async def _connect(self, budget: float) -> TaskLink:
        connection, generation = await self._address.connect_task(budget)
        old, self._link = self._link, None
        if old is not None and old.lost is None:
            old.close("its event loop has ended")
        link = TaskLink(connection, self._address.where, self.wakeups, self._deaf)
        link.generation = generation
        self._link = link
        await link.live()
        if self._listening:
            await link.subscribe(self._own_wake_address)
            self._heard()
            # Who asked meanwhile said that nobody hears it: it asks again.
            self.wakeups.wake_all()
        self._connected(link)
        return link

    async def subscribe(self, since: float) -> bool:
        """Whether a claim that was sent ``since`` could not say yet where we are heard."""
        self._listening = True
        try:
            link = await self._ready(EAR_BUDGET)
            await link.subscribe(self._own_wake_address)
            self._heard()
            return self._heard_since > since
        except BackendError as error:
            if not error.transient:  # we may not listen: say it, and do not try it again and again
                self._listening = False
                raise
            return True

    def _heard(self) -> None:
        if self.wake_address == ".":
            self.wake_address, self._heard_since = self._own_wake_address, clock.now()

    def _deaf(self) -> None:
        self.wake_address = "."

    async def listen(self, timeout: float | None) -> None:
        raise AssertionError("an asyncio client's keeper is a thread, with ears of its own")

    def moved(self) -> None:
        """The server is another one: those who wait for a bell ask there. From any thread."""
        link = self._link
        if link is not None and link.lost is None:
            quietly(link.loop.call_soon_threadsafe, self._look_where, link)

    def _look_where(self, link: TaskLink) -> None:
        if link.generation != self._address.generation:
            link.abort(Unreachable(f"{self._address.where} is another server now"))

    def distrust(self, why: str) -> None:
        if self._link is not None:
            self._link.abort(Unreachable(f"{self._address.where} {why}"))

    def close(self) -> None:
        """Close what is open. The loop may be gone already."""
        self._listening = False
        link, self._link = self._link, None
        making, self._connecting = self._connecting, None
        self.wake_address = "."
        if making is not None and not making.done():
            quietly(making.cancel)
        if link is not None:
            link.close("this client was closed")

    def after_fork_in_child(self) -> None:
        """The parent's socket is the parent's. It is not closed here: its loop's selector is shared
        with the parent, and taking it out there would deafen the parent."""
        self._link = None
        self.wake_address = "."
        self._connecting = None
        self._listening = False
        self.wakeups.clear()
