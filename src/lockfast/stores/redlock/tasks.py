"""How asyncio speaks to all nodes at once: one connection per node for all tasks of a loop.

Each call is written to all connections, and the answers are futures; whoever asked is woken as soon
as they are enough. The others go on, for nobody, until the node's own time is over: then the
connection is closed, and the node is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.task_connection import TaskLink
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.nodes import (
    GRACE,
    HANGS,
    LEAST_CONNECT,
    Chorus,
    Health,
    Ringer,
)
from lockfast.stores.redlock.votes import Enough, Reply, majority_of
from lockfast.stores.redlock.voting import Calls
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

CONNECTING = 1.0
CLOSING = 0.05
NEVER = float("inf")
NOT_ASKED = BackendError("not asked")


class NodeTaskLink(TaskLink):
    """A connection to one node, which knows what scripts it was told."""

    def __init__(self, *said: Any) -> None:
        super().__init__(*said)
        self.known: set[str] = set()

    def call(self, call: Call | bytes, budget: float) -> asyncio.Future[Any]:
        if not isinstance(call, Call):
            return self.ask(call, budget)
        sha = call.script.sha
        future = self.ask(call.packed(sha in self.known), budget)
        self.known.add(sha)
        future.add_done_callback(self._look_for_noscript)
        return future

    def _look_for_noscript(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        answer = future.result()
        if type(answer) is ServerError and str(answer).startswith("NOSCRIPT"):
            self.known.clear()


class TaskVoters:
    suspends = True

    def __init__(
        self,
        addresses: Sequence[Address],
        wake_address: str,
        connected: Callable[[int, TaskLink], None],
    ) -> None:
        self.size = len(addresses)
        self.majority = majority_of(self.size)
        self.wheres = [address.where for address in addresses]
        self.wake_addresses = ["."] * self.size
        self.wakeups = Wakeups()
        self.now = clock.now
        self._addresses = addresses
        self._wake_address = wake_address
        self._connected = connected
        self._chorus = Chorus(self.wakeups, self.size)
        self._timer: asyncio.TimerHandle | None = None
        self._health = [Health() for _ in addresses]
        self._links: list[NodeTaskLink | None] = [None] * self.size
        self._connecting: list[asyncio.Task[None] | None] = [None] * self.size
        self._listening = False
        self._heard_since = [NEVER] * self.size
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt

    # ---- asking ------------------------------------------------------------------------------

    async def ask(
        self, calls: Calls, enough: Enough, budget: float, owed: bool = False
    ) -> list[Reply]:
        loop = asyncio.get_running_loop()
        await self._ready(loop, budget)
        until = loop.time() + budget
        woken = loop.create_future()
        replies: list[Reply] = [NOT_ASKED] * self.size

        def heard(node: int, future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, BackendError):
                replies[node] = error
            elif not future.cancelled():
                replies[node] = future.result()
            if not woken.done() and (enough(replies) or None not in replies):
                woken.set_result(None)

        for node, call in enumerate(calls):
            if call is not None:
                future = self._say(node, call, owed)
                if isinstance(future, BackendError):
                    replies[node] = future
                else:
                    replies[node] = None
                    future.add_done_callback(lambda f, node=node: heard(node, f))  # type: ignore[misc]
        if not enough(replies) and None in replies:
            timer = loop.call_at(until, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
        return list(replies)

    def tell(self, calls: Calls) -> None:
        for node, call in enumerate(calls):
            if call is not None:
                self._say(node, call, True)

    def _say(self, node: int, call: Call | bytes, owed: bool) -> asyncio.Future[Any] | BackendError:
        health, link = self._health[node], self._links[node]
        again = call if owed and isinstance(call, Call) else None
        if link is None or link.lost is not None or not link.loop.is_running():
            if again is not None:
                health.owed.append(again)
            lost = link.lost if link is not None else None
            return health.why or lost or Unreachable(f"{self.wheres[node]} is not connected")
        future = link.call(call, HANGS)

        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is not None and again is not None:
                health.owed.append(again)

        future.add_done_callback(done)
        return future

    # ---- connecting --------------------------------------------------------------------------

    async def _ready(self, loop: asyncio.AbstractEventLoop, budget: float) -> None:
        """Connect what is missing; a majority is waited for, and the rest for as long again."""
        began = loop.time()
        making: set[asyncio.Task[None]] = set()
        for node in range(self.size):
            task = self._making(node, loop)
            if task is not None:
                making.add(task)
        while making:
            have = sum(self._is_connected(node, loop) for node in range(self.size))
            limit = began + max(budget * 0.8, LEAST_CONNECT) - loop.time()
            if have >= self.majority:
                expected = any(
                    not self._is_connected(node, loop) and not self._health[node].is_doubtful
                    for node in range(self.size)
                )
                limit = min(limit, max(loop.time() - began, 5 * GRACE)) if expected else 0.0
            if limit <= 0:
                return
            done, making = await asyncio.wait(
                making, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return

    def _is_connected(self, node: int, loop: asyncio.AbstractEventLoop) -> bool:
        link = self._links[node]
        return link is not None and link.lost is None and link.loop is loop

    def _making(self, node: int, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
        """What makes the connection that is missing, if it is worth trying."""
        if self._is_connected(node, loop):
            return None
        task = self._connecting[node]
        if task is not None and not task.done() and task.get_loop() is loop:
            return task
        if self._health[node].is_out(clock.now()):
            return None
        task = self._connecting[node] = loop.create_task(self._connect(node))
        return task

    async def _connect(self, node: int) -> None:
        address, health = self._addresses[node], self._health[node]
        try:
            connection, _ = await address.connect_task(CONNECTING)
        except BackendError as error:
            health.failed(clock.now(), error)
            return
        old = self._links[node]
        if old is not None and old.lost is None:
            old.close("its event loop has ended")
        ringer = Ringer(self._chorus, node, clock.now, self._woken)
        link: NodeTaskLink
        link = NodeTaskLink(connection, address.where, ringer, lambda: self._lost(node, link))
        await link.live()
        try:
            if self._listening:
                await link.subscribe(self._wake_address)
                self._heard(node)
                self.wakeups.wake_all()  # who asked meanwhile said that nobody hears it
        except BackendError as error:
            link.close(str(error))
            health.failed(clock.now(), error)
            return
        self._links[node] = link
        health.well()
        self._connected(node, link)
        while health.owed:
            self._say(node, health.owed.popleft(), True)

    def _lost(self, node: int, link: TaskLink) -> None:
        if self._links[node] is link:
            self.wake_addresses[node] = "."
            self._heard_since[node] = NEVER
            if link.lost is not None:
                self._health[node].failed(clock.now(), link.lost)

    # ---- bells -------------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        loop = asyncio.get_running_loop()
        missed = any(time > since for time in self._heard_since)
        await self._ready(loop, 2 * HANGS)
        subscribing = []
        for node, link in enumerate(self._links):
            if link is not None and self._is_connected(node, loop) and not link.listens:
                subscribing.append(asyncio.ensure_future(self._subscribe(node, link)))
        waiting = set(subscribing)
        while (
            waiting
            and sum(wake_address != "." for wake_address in self.wake_addresses) < self.majority
        ):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=5 * GRACE)
        final = [
            error
            for task in subscribing
            if task.done() and isinstance(error := task.result(), BackendError)
            if not error.transient
        ]
        if len(final) > self.size - self.majority:
            self._listening = False
            raise final[0]  # we may not listen: say it, and do not try it again and again
        return missed

    async def _subscribe(self, node: int, link: NodeTaskLink) -> BackendError | None:
        try:
            await link.subscribe(self._wake_address)
        except BackendError as error:
            return error
        if self._links[node] is link:
            self._heard(node)
        return None

    def _heard(self, node: int) -> None:
        if self.wake_addresses[node] == ".":
            self.wake_addresses[node], self._heard_since[node] = self._wake_address, clock.now()

    def _woken(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._settle)

    def _settle(self) -> None:
        self._timer = None
        self._chorus.settle(clock.now())
        due = self._chorus.due()
        if due is not None:
            wait = max(due - clock.now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._settle)

    async def listen(self, timeout: float | None) -> None:
        raise AssertionError("an asyncio client's keeper is a thread, with ears of its own")

    # ---- the end -----------------------------------------------------------------------------

    def distrust(self, node: int) -> None:
        link = self._links[node]
        if link is not None:
            link.abort(Unreachable(f"{self.wheres[node]} answered what makes no sense"))

    def close(self) -> None:
        """Close what is open. The loop may be gone already."""
        links, making = self._links, self._connecting
        self._forget()
        for task in making:
            if task is not None and not task.done():
                try:
                    task.cancel()
                except RuntimeError:
                    pass  # the loop is closed
        for link in links:
            if link is None:
                continue
            if link.lost is None and link._asked and link.loop.is_running():
                # What it was told and has not answered would be lost with the connection.
                link.loop.call_later(CLOSING, link.close, "this client was closed")
            else:
                link.close("this client was closed")

    def _forget(self) -> None:
        self._listening = False
        self._links = [None] * self.size
        self._connecting = [None] * self.size
        self.wake_addresses = ["."] * self.size
        self._heard_since = [NEVER] * self.size
        self._chorus.clear()
        self._timer = None

    def after_fork_in_child(self) -> None:
        """The parent's sockets are the parent's. They are not closed here: its loop's selector is
        shared with the parent, and taking them out there would deafen the parent."""
        self._forget()
        self._health = [Health() for _ in self._addresses]
        self.wakeups.clear()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
