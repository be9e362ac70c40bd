"""One connection to Redis, for all tasks of a loop.

Commands of tasks that run in the same turn of the loop travel in one write, all claims as one call
of their script and all releases as another (`lots`), and their answers come in one read. Bells come
as pushes on the same connection. If it breaks, everybody who waits for an answer is told so, and
everybody who waits for a bell asks again, which connects again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Callable
from threading import get_ident
from typing import Any

import hiredis
from hiredis import PushNotification

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.batches import LOT, Asked, alone, answered, new_lots
from lockfast.stores.redis.connections import MOST_BYTES, new_reader, taken_over
from lockfast.stores.redis.errors import Unreachable, explained
from lockfast.stores.redis.scripts import Script, packed
from lockfast.stores.redis.wakeup_messages import channel_of, delivered
from lockfast.stores.wakeups import Wakeups

NEVER = float("inf")
EAR_BUDGET = 1.0


class TaskLink(asyncio.Protocol):
    """A connection of one loop: what was asked and is not answered yet, in order."""

    def __init__(
        self, connection: Any, where: str, wakeups: Wakeups, on_lost: Callable[[], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.listens = False
        self.lost: BackendError | None = None
        self.generation = 0
        self._transport: Any = taken_over(connection)
        self._where = where
        self._wakeups = wakeups
        self._on_lost = on_lost
        self._reader = new_reader()
        self._asked: deque[list[Asked]] = deque()  # for each answer that will come: by whom
        self._out: list[bytes] = []
        self._lots = new_lots()
        self._joined = False  # is anything in them?
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

    def serves(self, generation: int) -> bool:
        """Can it be used at once, on this thread, for the server of this generation? Whether it is
        our loop that runs here, asyncio's own loops know; for others we ask the long way, which is
        a system call."""
        if self.lost is not None or self.generation != generation:
            return False
        known = getattr(self.loop, "_thread_id", None) == get_ident()
        return known or asyncio._get_running_loop() is self.loop

    async def live(self) -> None:
        """End with the loop, which else would leave the socket open."""
        await anext(self._end_of_loop)

    def ask(self, command: bytes, budget: float) -> asyncio.Future[Any]:
        """Send, at once if nobody else does just now, else together with them."""
        if self.lost is not None:
            raise self.lost
        until = clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if self._joined:
            self._flush()  # what came first is said first
        asked, out = self._asked, self._out
        if not asked:
            self._transport.write(command)
        else:
            if not out:
                self.loop.call_soon(self._flush)
            out.append(command)
            if len(out) == LOT:
                self._flush()  # so that the server works on these while we prepare more
        future: asyncio.Future[Any] = Future(loop=self.loop)
        asked.append([(future, until)])
        return future

    def join(self, script: Script, keys: bytes, words: bytes, budget: float) -> asyncio.Future[Any]:
        """The same with a claim or a release: those that are asked together become one call."""
        until = clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if self._out:
            self._flush()
        future: asyncio.Future[Any] = Future(loop=self.loop)
        if not self._joined:
            if not self._asked:
                self._transport.write(alone(script, keys, words))
                self._asked.append([(future, until)])
                return future
            self._joined = True
            self.loop.call_soon(self._flush)
        lot = self._lots[script]
        lot.keys.append(keys)
        lot.words.append(words)
        lot.asked.append((future, until))
        if len(lot.asked) == LOT:
            self._flush()
        return future

    def _flush(self) -> None:
        if self.lost is not None:
            return
        out, self._out = self._out, []
        if self._joined:
            self._joined = False
            for lot in self._lots.values():
                if lot.asked:
                    out.append(lot.command())
                    self._asked.append(lot.asked)
                    lot.clear()
        if out:
            self._transport.write(b"".join(out))

    def acknowledged(self, replicas: int, wait_ms: int, budget: float) -> asyncio.Future[int]:
        """How many replicas have what was asked for so far. A WAIT stops all that is behind it on
        the connection, so there is one at a time, for all who asked since the one before."""
        waited = self._waited
        if waited is None:
            waited = self._waited = self.loop.create_future()
            waited.add_done_callback(seen)
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

    async def subscribe(self, wake_address: str) -> None:
        """Bells for ``home`` come here from now on."""
        if self._subscribed is None:
            self._subscribed = self.ask(packed("SUBSCRIBE", channel_of(wake_address)), EAR_BUDGET)
            self._subscribed.add_done_callback(seen)
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
                    answered(asked.popleft(), answer)
                else:
                    raise hiredis.ProtocolError("an answer that nobody asked for")
        except hiredis.HiredisError as error:
            self.abort(Unreachable(f"{self._where} does not speak Redis's protocol: {error}"))

    def _pushed(self, push: Any) -> None:
        if push[:1] == [b"subscribe"] and self._asked and self._asked[0][0][0] is self._subscribed:
            # It stands for the answer, which comes only if we are refused.
            self.listens = True
            answered(self._asked.popleft(), None)
        else:
            delivered(push, self._wakeups)

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
        self._asked += [lot.asked for lot in self._lots.values()]
        while self._asked:
            for future, _ in self._asked.popleft():
                if not future.done():
                    future.set_exception(error)
        self._on_lost()
        if self.listens:
            self._wakeups.wake_all()  # a bell may have been lost with it

    def close(self, why: str) -> None:
        """Now, also if the loop does not run: it may not come to close the socket any more."""
        error, transport = Unreachable(why), self._transport
        if self.serves(self.generation):
            self.abort(error)
        elif self.loop.is_running():
            quietly(self.loop.call_soon_threadsafe, self.abort, error)
        elif self.lost is None:
            self.lost = error
            quietly(transport.pause_reading)  # the loop forgets the socket, and may run again
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
        waiting = [until for asked in self._asked for future, until in asked if not future.done()]
        first = min(waiting, default=NEVER)
        rest = first - clock.now()
        if rest <= 0:
            self.abort(Unreachable(f"{self._where} did not answer in time"))
        elif waiting:
            self._wake_at(first, rest)

    def pause_writing(self) -> None:
        """Commands are small and wait for their answers: nothing piles up."""

    resume_writing = pause_writing


def seen(future: asyncio.Future[Any]) -> None:
    """An error of it is known, also if nobody asks."""
    if not future.cancelled():
        future.exception()


def quietly(action: Callable[..., object], *said: Any) -> None:
    try:
        action(*said)
    except RuntimeError:
        pass  # the loop is closed
