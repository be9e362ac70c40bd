"""One connection to Redis, for all tasks of an event loop.

Commands of tasks that run in the same iteration of the loop are sent in one write, and their
replies arrive in one read. Claims, or releases, of several tasks become a single script call:
starting a call costs the server more than the work on one name, so a full batch costs half as much
as single calls. Coincidence brought its members together, so each is answered separately. If the
server refuses the call, each member receives the error and sends its own command again. That is
safe: a claim is idempotent by its id, and one release that fails does not keep the others from
being answered (`release.lua`).

Wake-ups are pushes on the same connection. If it breaks, each pending command fails, and each
waiter claims again, which connects again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import hiredis
from hiredis import PushNotification

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.commands import THREE_KEYS, channel_of, deliver, keys_of
from lockfast.stores.redis.connections import MOST_BYTES, Decode, Unfinished, new_reader
from lockfast.stores.redis.errors import Unreachable, explained
from lockfast.stores.redis.redis_py import LoopBound, close_without_loop, taken_over
from lockfast.stores.redis.scripts import CLAIM, RELEASE, Script, bulk, packed
from lockfast.stores.steps import perform_soon
from lockfast.stores.wakeups import Wakeups

NEVER = float("inf")
SUBSCRIBE_BUDGET = 1.0
SILENCE = 0.5  # seconds without a reply, after which a connection on which one is overdue is closed
BATCH_SIZE = 32
# The number of arguments of each name, beside its three keys; and the argument after all of them.
_ARGUMENTS_EACH = {RELEASE: 1, CLAIM: 5}
_LAST_ARGUMENT = {RELEASE: b"", CLAIM: bulk(b"independent")}
# A reply to come: its future, until when the caller waits for it, and for how long in all; for a
# member of a batch, the function that decodes its part, and its claim.
Pending = tuple["Future[Any]", float, float, "Decode | None", Any]


class Batch:
    """The calls of one script that wait to be sent, name by name."""

    __slots__ = ("_script", "arguments", "keys", "pending")

    def __init__(self, script: Script) -> None:
        self._script = script
        self.clear()

    def clear(self) -> None:
        self.keys: list[bytes] = []
        self.arguments: list[bytes] = []
        self.pending: list[Pending] = []

    def command(self) -> bytes:
        script, count = self._script, len(self.keys)
        if count == 1:
            return single_command(script, self.keys[0], self.arguments[0])
        last = _LAST_ARGUMENT[script]
        head = script.head(1 + count * (3 + _ARGUMENTS_EACH[script]) + bool(last))
        return b"".join((head, bulk(b"%d" % (3 * count)), *self.keys, *self.arguments, last))


def single_command(script: Script, keys: bytes, arguments: bytes) -> bytes:
    """The command for one name."""
    return b"".join((script.head(4 + _ARGUMENTS_EACH[script]), THREE_KEYS, keys, arguments))


class TaskConnection(LoopBound, asyncio.Protocol):
    """A connection of one loop, with its pending commands in order."""

    def __init__(
        self, connection: Any, where: str, wakeups: Wakeups, on_lost: Callable[[], None]
    ) -> None:
        self.loop = get_running_loop()
        self.listens = False
        self.lost = None
        self.generation = 0
        self._transport: Any = taken_over(connection)
        self._where = where
        self._wakeups = wakeups
        self._on_lost = on_lost
        self._reader = new_reader()
        self._pending: deque[list[Pending]] = deque()  # for each reply to come: its callers
        self._out: list[bytes] = []
        # In the order of sending: releases first, so that claims find the names free.
        self._batches = {script: Batch(script) for script in (RELEASE, CLAIM)}
        self._joined = False  # is any batch non-empty?
        self._unread = 0
        self._replied_at = 0.0  # when the last reply arrived
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._subscribed: Future[Any] | None = None
        self._waiting = False
        self._waited: Future[int] | None = None
        self._wait_terms = (0, 0, 0.0)
        self._transport.set_protocol(self)
        self._end_of_loop = self._until_the_loop_ends()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Abort with the loop: it closes its async generators, the only notice of its end."""
        try:
            yield
        finally:
            self.abort(Unreachable("the event loop of this connection has ended"))

    async def live(self) -> None:
        """Tie the connection to its loop, which would otherwise leave the socket open."""
        await anext(self._end_of_loop)

    # ---- requests ----------------------------------------------------------------------------

    def ask(self, command: bytes, budget: float) -> Future[Any]:
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
        future: Future[Any] = Future(loop=self.loop)
        pending.append([(future, until, budget, None, None)])
        return future

    def join(
        self, script: Script, claim: Claim, arguments: bytes, budget: float, decode: Decode
    ) -> Future[Any]:
        """Send a claim or a release: those that are sent together become one call. The future's
        result is the decoded reply."""
        until = clock.now() + budget
        if until < self._timer_at:
            self._wake_at(until, budget)
        if self._out:
            self._flush()
        future: Future[Any] = Future(loop=self.loop)
        one = (future, until, budget, decode, claim)
        keys = keys_of(claim[0])[2]
        if not self._joined:
            if not self._pending:
                self._transport.write(single_command(script, keys, arguments))
                self._pending.append([one])
                return future
            self._joined = True
            self.loop.call_soon(self._flush)
        batch = self._batches[script]
        batch.keys.append(keys)
        batch.arguments.append(arguments)
        batch.pending.append(one)
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

    def acknowledged(self, replicas: int, wait_ms: int, budget: float) -> Future[int]:
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

    def _has_waited(self, reply: Future[Any], waited: Future[int]) -> None:
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

    # ---- replies and wake-ups ----------------------------------------------------------------

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
                    self._replied_at = clock.now()
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

    # ---- the end -----------------------------------------------------------------------------

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
            for future, *_ in self._pending.popleft():
                if not future.done():
                    future.set_exception(error)
        self._on_lost()
        if self.listens:
            self._wakeups.wake_all()  # a wake-up may have been lost

    def close(self, why: str) -> None:
        """Close now, even if the loop does not run: it may never run again to close the socket."""
        error = Unreachable(why)
        if self.serves(self.generation):
            self.abort(error)
        elif self.loop.is_running():
            quietly(self.loop.call_soon_threadsafe, self.abort, error)
        elif self.lost is None:
            self.lost = error
            close_without_loop(self._transport)

    def _wake_at(self, time: float, after: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = time
        self._timer = self.loop.call_later(after, self._check_budgets)

    def _check_budgets(self) -> None:
        """Fail the callers whose budget is over. Where no reply has arrived since they sent, later
        commands would wait behind those replies, so the connection is closed: at once, or, if other
        callers have more time, after `SILENCE`, since the server may be far away."""
        self._timer, self._timer_at = None, NEVER
        now, check_at = clock.now(), NEVER
        pending = [one for group in self._pending for one in group]
        others = any(until > now and not future.done() for future, until, *_ in pending)
        for future, until, budget, *_ in pending:
            if until <= now:
                error = Unreachable(f"{self._where} did not answer within {budget:.3g} s")
                sent, silent_since = until - budget, self._replied_at
                if others or silent_since > sent:
                    until = max(sent, silent_since) + SILENCE
                if until <= now:
                    self.abort(error)
                    return
                if not future.done():
                    future.set_exception(error)
            check_at = min(check_at, until)
        if check_at < NEVER:
            self._wake_at(check_at, check_at - now)

    def pause_writing(self) -> None:
        """Nothing to do: commands are small and wait for their replies, so nothing piles up."""

    resume_writing = pause_writing


def resolve(pending: list[Pending], reply: Any) -> None:
    """Give each caller its part of a reply; the whole, if it has no parts, as an error has none."""
    parts = reply
    if len(pending) == 1 or type(reply) is not list or len(reply) != len(pending):
        parts = [reply] * len(pending)
    for (future, _, budget, decode, claim), part in zip(pending, parts, strict=True):
        try:
            future.set_result(part if decode is None else decode(part, claim, budget))
        except asyncio.InvalidStateError:
            pass  # the caller was cancelled
        except Unfinished as unfinished:
            _go_on(future, unfinished.steps)


def _go_on(future: Future[Any], steps: Any) -> None:
    """Take the steps that remain to an answer, in a task; the caller may be cancelled meanwhile."""
    if future.done():
        return

    def call(request: tuple[Any, ...]) -> Any:
        if future.done():
            raise asyncio.CancelledError  # the caller withdraws: send nothing after that
        return request[0](*request[1:])

    def done(task: asyncio.Task[Any]) -> None:
        future.remove_done_callback(cancel)
        if future.done():
            seen(task)
        elif task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def cancel(_: Future[Any]) -> None:
        task.cancel()

    task = get_running_loop().create_task(perform_soon(steps, call))
    task.add_done_callback(done)
    future.add_done_callback(cancel)


def seen(future: Future[Any]) -> None:
    """Retrieve a future's exception, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


def quietly(action: Callable[..., object], *arguments: Any) -> None:
    """Call an action of a loop, which may be closed."""
    try:
        action(*arguments)
    except RuntimeError:
        pass  # the loop is closed
