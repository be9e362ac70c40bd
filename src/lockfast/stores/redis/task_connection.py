"""One connection to Redis, for all tasks of an event loop.

Commands of tasks that run in the same iteration of the loop are sent in one write, all claims as
one script call and all releases as another (`batches`), and their replies arrive in one read.
Wake-ups are pushes on the same connection. If it breaks, each pending command fails, and each
waiter claims again, which connects again.
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
from lockfast.stores.redis.batches import (
    BATCH_SIZE,
    Pending,
    new_batches,
    resolve,
    single_command,
)
from lockfast.stores.redis.connections import MOST_BYTES, new_reader, taken_over
from lockfast.stores.redis.errors import Unreachable, explained
from lockfast.stores.redis.scripts import Script, packed
from lockfast.stores.redis.wakeup_messages import channel_of, deliver
from lockfast.stores.wakeups import Wakeups

NEVER = float("inf")
SUBSCRIBE_BUDGET = 1.0


class TaskConnection(asyncio.Protocol):
    """A connection of one loop, with its pending commands in order."""

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
        self._pending: deque[list[Pending]] = deque()  # for each reply to come: its callers
        self._out: list[bytes] = []
        self._batches = new_batches()
        self._joined = False  # is any batch non-empty?
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
        """Abort with the loop: it closes its async generators, the only notice of its end."""
        try:
            yield
        finally:
            self.abort(Unreachable("the event loop of this connection has ended"))

    def serves(self, generation: int) -> bool:
        """Is the connection usable on this thread, for the server of this generation? asyncio's own
        loops know their thread; for other loops the check costs a system call."""
        if self.lost is not None or self.generation != generation:
            return False
        known = getattr(self.loop, "_thread_id", None) == get_ident()
        return known or asyncio._get_running_loop() is self.loop

    async def live(self) -> None:
        """Tie the connection to its loop, which would otherwise leave the socket open."""
        await anext(self._end_of_loop)

    def ask(self, command: bytes, budget: float) -> asyncio.Future[Any]:
        """Send a command: at once if none is pending, otherwise together with others."""
        if self.lost is not None:
            raise self.lost
        until = clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if self._joined:
            self._flush()  # commands are sent in their order
        pending, out = self._pending, self._out
        if not pending:
            self._transport.write(command)
        else:
            if not out:
                self.loop.call_soon(self._flush)
            out.append(command)
            if len(out) == BATCH_SIZE:
                self._flush()  # the server works on these while more are prepared
        future: asyncio.Future[Any] = Future(loop=self.loop)
        pending.append([(future, until)])
        return future

    def join(
        self, script: Script, keys: bytes, arguments: bytes, budget: float
    ) -> asyncio.Future[Any]:
        """Send a claim or a release: those that are sent together become one call."""
        until = clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if self._out:
            self._flush()
        future: asyncio.Future[Any] = Future(loop=self.loop)
        if not self._joined:
            if not self._pending:
                self._transport.write(single_command(script, keys, arguments))
                self._pending.append([(future, until)])
                return future
            self._joined = True
            self.loop.call_soon(self._flush)
        batch = self._batches[script]
        batch.keys.append(keys)
        batch.arguments.append(arguments)
        batch.pending.append((future, until))
        if len(batch.pending) == BATCH_SIZE:
            self._flush()
        return future

    def _flush(self) -> None:
        if self.lost is not None:
            return
        out, self._out = self._out, []
        if self._joined:
            self._joined = False
            for batch in self._batches.values():
                if batch.pending:
                    out.append(batch.command())
                    self._pending.append(batch.pending)
                    batch.clear()
        if out:
            self._transport.write(b"".join(out))

    def acknowledged(self, replicas: int, wait_ms: int, budget: float) -> asyncio.Future[int]:
        """The number of replicas that have the commands so far. A WAIT blocks all commands behind
        it, so there is one at a time, for all callers since the one before."""
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
            reply = self.ask(packed("WAIT", replicas, wait_ms), budget)
            reply.add_done_callback(lambda done: self._has_waited(done, waited))

    def _has_waited(self, reply: asyncio.Future[Any], waited: asyncio.Future[int]) -> None:
        if (error := reply.exception()) is not None:
            waited.set_exception(error)
        else:
            waited.set_result(reply.result())
        self._wait()

    async def subscribe(self, wake_address: str) -> None:
        """Receive the wake-ups for ``wake_address`` on this connection."""
        if self._subscribed is None:
            command = packed("SUBSCRIBE", channel_of(wake_address))
            self._subscribed = self.ask(command, SUBSCRIBE_BUDGET)
            self._subscribed.add_done_callback(seen)
        refused = await asyncio.shield(self._subscribed)
        if refused is not None:
            raise explained(refused, self._where)

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        self._unread += len(data)
        try:
            if self._unread > MOST_BYTES:
                raise hiredis.ProtocolError("a reply without end")
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self._unread = 0
                if type(reply) is PushNotification:
                    self._pushed(reply)
                elif pending:
                    resolve(pending.popleft(), reply)
                else:
                    raise hiredis.ProtocolError("a reply without a command")
        except hiredis.HiredisError as error:
            self.abort(Unreachable(f"{self._where} does not follow the Redis protocol: {error}"))

    def _pushed(self, push: Any) -> None:
        pending = self._pending
        if push[:1] == [b"subscribe"] and pending and pending[0][0][0] is self._subscribed:
            # This push takes the place of the reply, which is sent only as a refusal.
            self.listens = True
            resolve(pending.popleft(), None)
        else:
            deliver(push, self._wakeups)

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(
            Unreachable(
                f"the connection to {self._where} is lost: {error or 'the server closed it'}"
            )
        )

    def abort(self, error: BackendError) -> None:
        """Fail all pending commands, which may or may not have been executed."""
        if self.lost is not None:
            return
        self.lost = error
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._pending += [batch.pending for batch in self._batches.values()]
        while self._pending:
            for future, _ in self._pending.popleft():
                if not future.done():
                    future.set_exception(error)
        self._on_lost()
        if self.listens:
            self._wakeups.wake_all()  # a wake-up may have been lost

    def close(self, why: str) -> None:
        """Close now, even if the loop does not run: it may never run again to close the socket."""
        error, transport = Unreachable(why), self._transport
        if self.serves(self.generation):
            self.abort(error)
        elif self.loop.is_running():
            quietly(self.loop.call_soon_threadsafe, self.abort, error)
        elif self.lost is None:
            self.lost = error
            quietly(transport.pause_reading)  # unregisters the socket: the loop may run again
            if (sock := getattr(transport, "_sock", None)) is not None:
                transport._sock, transport._closing = None, True
                sock.close()

    def _wake_at(self, time: float, after: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = time
        self._timer = self.loop.call_later(after, self._check_budgets)

    def _check_budgets(self) -> None:
        """Abort if a caller's budget is over: all later commands would wait behind that reply."""
        self._timer, self._timer_at = None, NEVER
        waiting = [until for group in self._pending for future, until in group if not future.done()]
        first = min(waiting, default=NEVER)
        rest = first - clock.now()
        if rest <= 0:
            self.abort(Unreachable(f"{self._where} did not answer in time"))
        elif waiting:
            self._wake_at(first, rest)

    def pause_writing(self) -> None:
        """Nothing to do: commands are small and wait for their replies, so nothing piles up."""

    resume_writing = pause_writing


def seen(future: asyncio.Future[Any]) -> None:
    """Retrieve a future's exception, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


def quietly(action: Callable[..., object], *arguments: Any) -> None:
    """Call an action of a loop, which may be closed."""
    try:
        action(*arguments)
    except RuntimeError:
        pass  # the loop is closed
