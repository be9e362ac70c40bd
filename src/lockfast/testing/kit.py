"""Clients of a store in memory on a virtual clock, and holds you can lose, for your own tests.

    clock = VirtualClock()
    client = testing.client(clock)
    with client.lock("report", lease=10) as hold:
        clock.advance(11)
        assert hold.lost

Nothing sleeps and no keeper thread runs: `VirtualClock.advance` runs the keeper at the times when
it is due, in order. A thread or task that waits with a timeout wakes up when the clock gets there.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from lockfast import aio, sync
from lockfast.api.client import DEFAULT_LEASE, DEFAULT_NAMESPACE, BaseClient
from lockfast.core.ports import Runtime, Signal, answer_of
from lockfast.inputs import Seconds, checked_lease
from lockfast.runtime.tasks import TaskRuntime
from lockfast.runtime.threads import BlockingRuntime, run
from lockfast.stores.memory import Memory

C = TypeVar("C", bound=BaseClient)


class VirtualClock:
    """A clock that stands still until `advance` is called. Thread-safe."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._mutex = threading.RLock()

    def now(self) -> float:
        """Return the current virtual time in seconds."""
        return self._now

    def wall(self) -> float:
        """Return the virtual time as seconds since the epoch, in 2001: for dates and fences."""
        return 1e9 + self._now

    def advance(self, seconds: Seconds) -> None:
        """Let ``seconds`` pass. Renewals and losses that fall due happen in order, before this
        returns; waiters whose timeout is over are woken."""
        until = self._now + checked_lease(seconds, what="seconds")
        while True:
            with self._mutex:
                if not self._alarms or self._alarms[0][0] > until:
                    self._now = until
                    return
                due, _, wake = heapq.heappop(self._alarms)
                self._now = max(self._now, due)
            wake()

    def call_at(self, due: float, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the clock reaches ``due``, in the thread that advances it."""
        with self._mutex:
            heapq.heappush(self._alarms, (due, next(self._count), wake))


class _Pause:
    """Awaitable with which the keeper's coroutine yields to the clock."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _KeeperSignal:
    """Signal of the keeper: its coroutine suspends here, and the clock resumes it when due."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._round = 0
        self.resume: Callable[[], None] = lambda: None

    def set(self) -> None:
        self._clock.call_at(self._clock.now(), self._alarm(self._round))

    async def wait(self, timeout: float | None) -> bool:
        if timeout is not None:
            self._clock.call_at(self._clock.now() + timeout, self._alarm(self._round))
        await _Pause()
        self._round += 1
        return True

    def _alarm(self, number: int) -> Callable[[], None]:
        def wake() -> None:
            if number == self._round:
                self.resume()

        return wake


class _VirtualSignal:
    """A real signal whose timeout counts on the virtual clock."""

    def __init__(self, clock: VirtualClock, real: Signal) -> None:
        self._clock = clock
        self._real = real
        self._woken = False

    def set(self) -> None:
        self._woken = True
        self._real.set()

    async def wait(self, timeout: float | None) -> bool:
        until = None if timeout is None else self._clock.now() + timeout
        if until is not None:
            self._clock.call_at(until, self._real.set)
        while not self._woken and (until is None or self._clock.now() < until):
            await self._real.wait(None)
        woken, self._woken = self._woken, False
        return woken


class VirtualRuntime:
    """Runtime with the threads or tasks of another one, on a virtual clock."""

    def __init__(self, clock: VirtualClock, real: Runtime, keeper_signal: _KeeperSignal) -> None:
        self.now = clock.now
        self.owner = real.owner
        self.identity = real.identity
        self.stack = real.stack
        self.stuck = real.stuck
        self.shielded = real.shielded
        self._clock = clock
        self._real = real
        self._keeper_signal = keeper_signal
        self._keeping = False  # True while the keeper's coroutine runs

    def signal(self) -> Signal:
        return _VirtualSignal(self._clock, self._real.signal())

    def mutex(self) -> AbstractContextManager[Any]:
        return self._real.mutex()

    async def sleep(self, seconds: float) -> None:
        signal = self._keeper_signal if self._keeping else self.signal()
        await signal.wait(seconds)

    def background(self, name: str, work: Callable[[], object]) -> None:
        work()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        keeper = work()

        def resume() -> None:
            self._keeping = True
            try:
                keeper.send(None)
            except StopIteration:
                self._keeper_signal.resume = lambda: None
            finally:
                self._keeping = False

        self._keeper_signal.resume = resume
        resume()


def client(
    clock: VirtualClock, *, lease: Seconds = DEFAULT_LEASE, namespace: str = DEFAULT_NAMESPACE
) -> sync.Client:
    """Return a sync client of a new store in memory, on your clock."""
    return _new_client(sync.Client, clock, BlockingRuntime(), lease, namespace)


def aio_client(
    clock: VirtualClock, *, lease: Seconds = DEFAULT_LEASE, namespace: str = DEFAULT_NAMESPACE
) -> aio.Client:
    """Return an async client of a new store in memory, on your clock."""
    return _new_client(aio.Client, clock, TaskRuntime(), lease, namespace)


def _new_client(
    api: type[C], clock: VirtualClock, real: Runtime, lease: Seconds, namespace: str
) -> C:
    memory = Memory(clock.now, clock.wall)
    keeper_signal = _KeeperSignal(clock)
    store = memory.blocking(lambda: keeper_signal)
    runtime = VirtualRuntime(clock, real, keeper_signal)
    return api(memory, runtime, store, store, lease=lease, namespace=namespace)


def lose(client: BaseClient, name: str) -> int:
    """Make the client lose its holds of ``name`` now, and return how many there were.

    Works on every store, as if an operator had broken the holds: ``on_lost`` is called, bodies of
    ``async with`` are cancelled, and others can acquire the name. One round trip per hold.
    """
    full = client._full(name)
    losing = [held for held in client._core.ledger.kept.values() if held.claim.name == full]
    for held in losing:
        run(answer_of(client._core.keeper.store.break_hold(full, held.fence, 5.0)))
        client._core.ledger.lose(held, "a test called lockfast.testing.lose()")
    return len(losing)
