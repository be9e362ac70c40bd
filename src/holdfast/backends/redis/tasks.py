"""How asyncio speaks to Redis: one connection for all tasks of a loop.

Commands of tasks that run in the same turn of the loop travel in one write, and their answers come
in one read. Bells come as pushes on the same connection. If it breaks, everybody who waits for an
answer is told so, and everybody who waits for a bell asks again, which connects again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from threading import get_ident
from typing import Any

import hiredis
from hiredis import PushNotification

from holdfast import clock
from holdfast.backends.bells import Bells
from holdfast.backends.poke import Poke
from holdfast.backends.redis.bell import channel_of, delivered
from holdfast.backends.redis.conditions import Unreachable, explained
from holdfast.backends.redis.links import LEAST, MOST_BYTES, Where, new_reader, taken_over
from holdfast.backends.redis.scripts import packed
from holdfast.errors import BackendError

NEVER = float("inf")
EAR_BUDGET = 1.0
TO_CONNECT = 1.0
LOT = 32


class TaskLink(asyncio.Protocol):
    """A connection of one loop: what was asked and is not answered yet, in order."""

    def __init__(
        self, connection: Any, where: str, bells: Bells, on_lost: Callable[[], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.listens = False
        self.lost: BackendError | None = None
        self.generation = 0
        self._transport: Any = taken_over(connection)
        self._where = where
        self._bells = bells
        self._on_lost = on_lost
        self._reader = new_reader()
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._subscribed: asyncio.Future[Any] | None = None
        self._waiting = False
        self._waited: asyncio.Future[int] | None = None
        self._wait_terms = (0, 0, 0.0)
        self._transport.set_protocol(self)
        self._end_of_loop = self._until_the_loop_ends()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """A loop closes its asynchronous generators before it ends: the only news of its end."""
        try:
            yield
        finally:
            self.abort(Unreachable("its event loop has ended"))

    def is_here(self) -> bool:
        """Is it our loop that runs on this thread? asyncio's own loops know it; for others we ask
        the long way, which is a system call."""
        known = getattr(self.loop, "_thread_id", None) == get_ident()
        return known or asyncio._get_running_loop() is self.loop

    async def live(self) -> None:
        """End with the loop, which else would leave the socket open."""
        await anext(self._end_of_loop)

    def ask(self, command: bytes, budget: float) -> asyncio.Future[Any]:
        """Send, at once if nobody else does just now, else together with them."""
        if self.lost is not None:
            raise self.lost
        asked, until = self._asked, clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if not asked:
            self._transport.write(command)
        else:
            out = self._out
            if not out:
                self.loop.call_soon(self._flush)
            out.append(command)
            if len(out) == LOT:
                self._flush()  # so that the server works on these while we prepare more
        future: asyncio.Future[Any] = Future(loop=self.loop)
        asked.append((future, until))
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self.lost is None:
            self._transport.write(b"".join(out))

    def acknowledged(self, replicas: int, wait_ms: int, budget: float) -> asyncio.Future[int]:
        """How many replicas have what was asked for so far. A WAIT stops all that is behind it on
        the connection, so there is one at a time, for all who asked since the one before."""
        waited = self._waited
        if waited is None:
            waited = self._waited = self.loop.create_future()
            waited.add_done_callback(_seen)
            self._wait_terms = (replicas, wait_ms, budget)
            if not self._waiting:
                self._waiting = True
                self.loop.call_soon(self._wait)
        else:
            most, least, shortest = self._wait_terms
            self._wait_terms = (max(most, replicas), min(least, wait_ms), min(shortest, budget))
        return waited

    def _wait(self) -> None:
        waited, self._waited = self._waited, None
        if waited is None:
            self._waiting = False
        elif self.lost is not None:
            self._waiting = False
            waited.set_exception(self.lost)
        else:
            replicas, wait_ms, budget = self._wait_terms
            asked = self.ask(packed("WAIT", replicas, wait_ms), budget)
            asked.add_done_callback(lambda done: self._has_waited(done, waited))

    def _has_waited(self, asked: asyncio.Future[Any], waited: asyncio.Future[int]) -> None:
        if (error := asked.exception()) is not None:
            waited.set_exception(error)
        else:
            waited.set_result(asked.result())
        self._wait()

    async def subscribe(self, home: str) -> None:
        """Bells for ``home`` come here from now on."""
        if self._subscribed is None:
            self._subscribed = self.ask(packed("SUBSCRIBE", channel_of(home)), EAR_BUDGET)
            self._subscribed.add_done_callback(_seen)
        refused = await asyncio.shield(self._subscribed)
        if refused is not None:
            raise explained(refused, self._where)

    def data_received(self, data: bytes) -> None:
        reader, asked = self._reader, self._asked
        self._unread += len(data)
        try:
            if self._unread > MOST_BYTES:
                raise hiredis.ProtocolError("an answer without end")
            reader.feed(data)
            while (answer := reader.gets()) is not False:
                self._unread = 0
                if type(answer) is PushNotification:
                    self._pushed(answer)
                elif asked:
                    future = asked.popleft()[0]
                    try:
                        future.set_result(answer)
                    except asyncio.InvalidStateError:
                        pass  # who asked was cancelled
                else:
                    raise hiredis.ProtocolError("an answer that nobody asked for")
        except hiredis.HiredisError as error:
            self.abort(Unreachable(f"{self._where} does not speak Redis's protocol: {error}"))

    def _pushed(self, push: Any) -> None:
        if push[:1] == [b"subscribe"] and self._asked and self._asked[0][0] is self._subscribed:
            # It stands for the answer, which comes only if we are refused.
            self.listens = True
            future = self._asked.popleft()[0]
            if not future.done():
                future.set_result(None)
        else:
            delivered(push, self._bells)

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(
            Unreachable(f"the connection to {self._where} is lost: {error or 'it was closed'}")
        )

    def abort(self, error: BackendError) -> None:
        """No more answers: what was asked may or may not have been done."""
        if self.lost is not None:
            return
        self.lost = error
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        while self._asked:
            future = self._asked.popleft()[0]
            if not future.done():
                future.set_exception(error)
        self._on_lost()
        if self.listens:
            self._bells.ring_all()  # a bell may have been lost with it

    def close(self, why: str) -> None:
        """Now, also if the loop does not run: it may not come to close the socket any more."""
        error, transport = Unreachable(why), self._transport
        if self.is_here():
            self.abort(error)
        elif self.loop.is_running():
            _quietly(self.loop.call_soon_threadsafe, self.abort, error)
        elif self.lost is None:
            self.lost = error
            _quietly(transport.pause_reading)  # the loop forgets the socket, and may run again
            if (sock := getattr(transport, "_sock", None)) is not None:
                transport._sock, transport._closing = None, True
                sock.close()

    def _wake_at(self, time: float, after: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = time
        self._timer = self.loop.call_later(after, self._look)

    def _look(self) -> None:
        """Is somebody's budget over? Then the connection is no good: all that follows would wait
        behind that answer."""
        self._timer, self._timer_at = None, NEVER
        waiting = [until for future, until in self._asked if not future.done()]
        first = min(waiting, default=NEVER)
        rest = first - clock.now()
        if rest <= 0:
            self.abort(Unreachable(f"{self._where} did not answer in time"))
        elif waiting:
            self._wake_at(first, rest)

    def pause_writing(self) -> None:
        """Commands are small and wait for their answers: nothing piles up."""

    resume_writing = pause_writing


class TaskTransport:
    suspends = True

    def __init__(self, address: Where, home: str, connected: Callable[[TaskLink], None]) -> None:
        self.bells = Bells()
        self._address = address
        self._own_home = home
        self.home = "."
        self._heard_since = NEVER
        self._connected = connected
        self._link: TaskLink | None = None
        self._connecting: asyncio.Task[TaskLink] | None = None
        self._listening = False
        self._poke = Poke()
        self.poke = self._poke.poke

    def send(self, command: bytes, budget: float) -> Awaitable[Any]:
        link = self._link
        if (
            link is not None
            and link.lost is None
            and link.is_here()
            and link.generation == self._address.generation
        ):
            return link.ask(command, budget)
        return self._send_when_ready(command, budget)

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
            making.add_done_callback(_seen)
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
        link = TaskLink(connection, self._address.where, self.bells, self._deaf)
        link.generation = generation
        self._link = link
        await link.live()
        if self._listening:
            await link.subscribe(self._own_home)
            self._heard()
            # Who asked meanwhile said that nobody hears it: it asks again.
            self.bells.ring_all()
        self._connected(link)
        return link

    async def listen(self, since: float) -> bool:
        """Whether a claim that was sent ``since`` could not say yet where we are heard."""
        self._listening = True
        try:
            link = await self._ready(EAR_BUDGET)
            await link.subscribe(self._own_home)
            self._heard()
            return self._heard_since > since
        except BackendError as error:
            if not error.transient:  # we may not listen: say it, and do not try it again and again
                self._listening = False
                raise
            return True

    def _heard(self) -> None:
        if self.home == ".":
            self.home, self._heard_since = self._own_home, clock.now()

    def _deaf(self) -> None:
        self.home = "."

    async def hear(self, timeout: float | None) -> None:
        raise AssertionError("an asyncio client's keeper is a thread, with ears of its own")

    def moved(self) -> None:
        """The server is another one: those who wait for a bell ask there. From any thread."""
        link = self._link
        if link is not None and link.lost is None:
            _quietly(link.loop.call_soon_threadsafe, self._look_where, link)

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
        self.home = "."
        if making is not None and not making.done():
            _quietly(making.cancel)
        if link is not None:
            link.close("this client was closed")

    def after_fork_in_child(self) -> None:
        """The parent's socket is the parent's. It is not closed here: its loop's selector is shared
        with the parent, and taking it out there would deafen the parent."""
        self._link = None
        self.home = "."
        self._connecting = None
        self._listening = False
        self.bells.clear()


def _seen(future: asyncio.Future[Any]) -> None:
    """An error of it is known, also if nobody asks."""
    if not future.cancelled():
        future.exception()


def _quietly(action: Callable[..., object], *said: Any) -> None:
    try:
        action(*said)
    except RuntimeError:
        pass  # the loop is closed
