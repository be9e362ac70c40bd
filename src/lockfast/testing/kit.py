"""A store in memory whose time you turn by hand, and holds that you can lose: for your own tests.

    clock = VirtualClock()
    client = testing.client(clock)
    with client.lock("report", lease=10) as hold:
        clock.advance(11)
        assert hold.lost

Nothing sleeps and no keeper thread runs: `VirtualClock.advance` does what the keeper would have
done on the way, in order. A thread or task that waits with a time-out wakes up when the clock gets
there.
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
from lockfast.core.ports import Runtime, Signal
from lockfast.inputs import Seconds, checked_lease
from lockfast.runtime.tasks import TaskRuntime
from lockfast.runtime.threads import BlockingRuntime, run
from lockfast.stores.memory import MemoryStore

C = TypeVar("C", bound=BaseClient)


class VirtualClock:
    """Time that stands still until `advance`. Thread-safe."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._mutex = threading.RLock()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        """Dates and fences: the same clock, from the year 2001 on."""
        return 1e9 + self._now

    def advance(self, seconds: Seconds) -> None:
        """Let so much time pass; everything that falls due on the way happens, in order."""
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
        with self._mutex:
            heapq.heappush(self._alarms, (due, next(self._count), wake))


class _Turn:
    """What a stepped keeper yields when it pauses."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _KeeperSignal:
    """The keeper's pause: its coroutine stops here, and the clock goes on with it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._round = 0
        self.resume: Callable[[], None] = lambda: None

    def set(self) -> None:
        self._clock.call_at(self._clock.now(), self._alarm(self._round))

    async def wait(self, timeout: float | None) -> bool:
        if timeout is not None:
            self._clock.call_at(self._clock.now() + timeout, self._alarm(self._round))
        await _Turn()
        self._round += 1
        return True

    def _alarm(self, number: int) -> Callable[[], None]:
        def wake() -> None:
            if number == self._round:
                self.resume()

        return wake


class _VirtualSignal:
    """A real bell whose time-out is the virtual clock's."""

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
    """Another runtime's threads or tasks, on a virtual clock."""

    def __init__(self, clock: VirtualClock, real: Runtime, keeper_signal: _KeeperSignal) -> None:
        self.now = clock.now
        self.owner = real.owner
        self.asker = real.asker
        self.stack = real.stack
        self.shielded = real.shielded
        self._clock = clock
        self._real = real
        self._keeper_signal = keeper_signal
        self._keeping = False  # is it the keeper who runs just now?

    def signal(self) -> Signal:
        return _VirtualSignal(self._clock, self._real.signal())

    def mutex(self) -> AbstractContextManager[Any]:
        return self._real.mutex()

    async def sleep(self, seconds: float) -> None:
        signal = self._keeper_signal if self._keeping else self.signal()
        await signal.wait(seconds)

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
    """A blocking client of a new store in memory, on your clock."""
    return _made(sync.Client, clock, BlockingRuntime(), lease, namespace)


def aio_client(
    clock: VirtualClock, *, lease: Seconds = DEFAULT_LEASE, namespace: str = DEFAULT_NAMESPACE
) -> aio.Client:
    """An asyncio client of a new store in memory, on your clock."""
    return _made(aio.Client, clock, TaskRuntime(), lease, namespace)


def _made(api: type[C], clock: VirtualClock, real: Runtime, lease: Seconds, namespace: str) -> C:
    store = MemoryStore(clock.now, clock.wall)
    ear = _KeeperSignal(clock)
    backend = store.blocking(lambda: ear)
    runtime = VirtualRuntime(clock, real, ear)
    return api(store, runtime, backend, backend, lease=lease, namespace=namespace)


def lose(client: BaseClient, name: str) -> int:
    """Make the client lose what it holds of ``name``, now, as if an operator had broken it: its
    signals fire and others can acquire it. How many holds that were. Works on every store."""
    full = client._full(name)
    losing = [held for held in client.core.ledger.kept.values() if held.claim.name == full]
    for held in losing:
        run(client.core.keeper.backend.break_hold(full, held.fence, 5.0))
        client.core.ledger.lose(held, "the test said so")
    return len(losing)
