"""The memory store: the law of slots over a dict per name. The executable specification.

Its locks work among the threads and tasks of one process. The simulator puts it behind a lossy
network, and the test kit gives it to users with a clock of their own. ``memory://`` is a new,
private store for each client; ``memory://NAME`` is one store that all clients of this process
share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from lockfast import clock, forks
from lockfast.core import law
from lockfast.core.law import Row
from lockfast.core.ports import Answer, Reply, Signal, Store, Wake
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Busy, Capabilities, Claim, Gone, Granted, Snapshot
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck, note
from lockfast.stores.wakeups import Wakeups

T = TypeVar("T")
Wakeup = tuple[str, Granted | None]

SWEEP_ABOVE = 1000
CAPABILITIES = Capabilities(store="memory", across="process")
_private = itertools.count(1)


class NameBook:
    """The rows of one name, as the law's `Book`; kept only while there are any."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._holds: dict[str, Row] = {}
        self._waiters: dict[bool, dict[str, Row]] = {True: {}, False: {}}
        self.now = self.wall = 0.0
        self.wake_address = ""

    def open(self) -> None:
        """Begin a step: read the clocks and remove dead holds (dead waiters are removed when
        met)."""
        self.now, self.wall = self._memory.clock(), self._memory.wall()
        for row in [row for row in self._holds.values() if row.ends <= self.now]:
            del self._holds[row.id]

    @property
    def empty(self) -> bool:
        return not (self._holds or self._waiters[True] or self._waiters[False])

    @property
    def holds(self) -> dict[str, Row]:
        return self._holds

    @property
    def last_fence(self) -> int:
        return self._memory.last_fence

    def next_fence(self) -> int:
        return self._memory.next_fence(self.wall)

    def waiting(self, *, fair: bool) -> Iterable[Row]:
        waiters = self._waiters[fair]
        return self._living(waiters) if waiters else ()

    def _living(self, waiters: dict[str, Row]) -> Iterable[Row]:
        for row in list(waiters.values()):
            if row.ends > self.now:
                yield row
            else:
                waiters.pop(row.id, None)

    def waiter(self, claim_id: str) -> Row | None:
        row = self._waiters[True].get(claim_id) or self._waiters[False].get(claim_id)
        return row if row is not None and row.ends > self.now else None

    def add_hold(self, row: Row) -> None:
        self._holds[row.id] = row

    def keep_hold(self, row: Row) -> None:
        """Nothing to write: the row itself is stored."""

    def end_hold(self, claim_id: str) -> bool:
        return self._holds.pop(claim_id, None) is not None

    def add_waiter(self, row: Row) -> None:
        self._waiters[row.fair].pop(row.id, None)  # a dead waiter of the same id
        self._waiters[row.fair][row.id] = row

    def keep_waiter(self, row: Row) -> None:
        """Nothing to write: the row itself is stored."""

    def remove_waiter(self, row: Row) -> None:
        del self._waiters[row.fair][row.id]

    def wake(self, row: Row, grant: Granted | None) -> None:
        self._memory.woken.append((row.id, grant))


class Memory(Endpoint):
    """All names under one mutex. ``clock`` measures leases; ``wall`` gives dates and a lower bound
    of fences."""

    def __init__(
        self, clock: Callable[[], float], wall: Callable[[], float], name: str = ""
    ) -> None:
        # A private store has an address of its own too: a multi-lock distinguishes stores by it.
        self.url = f"memory://{name or f'#{next(_private)}'}"
        self.clock = clock
        self.wall = wall
        self.last_fence = 0
        self.woken: list[Wakeup] = []
        self._names: dict[str, NameBook] = {}
        # A destructor or a signal handler may come back to the thread that is inside a step.
        self._mutex = threading.RLock()
        self._inside: dict[str, list[Callable[[NameBook], object]]] = {}
        self.wakeups = Wakeups()
        self._sweep_at = SWEEP_ABOVE
        forks.register(self)

    def after_fork_in_child(self) -> None:
        """Start empty: this store serves one process, and the child is another."""
        self._mutex = threading.RLock()
        self._inside.clear()
        self._names.clear()
        self.wakeups.clear()
        self.woken = []

    def next_fence(self, wall: float) -> int:
        self.last_fence = max(self.last_fence + 1, int(wall * 1e6))
        return self.last_fence

    def step(self, name: str, verb: Callable[..., T], *args: object) -> tuple[T, list[Wakeup]]:
        """Run one atomic step of the law on one name; return its answer, and the wake-ups to
        deliver afterwards."""
        with self._mutex:
            if name in self._inside:
                return self._step_inside(name, verb, *args), []
            outer, book = self.woken, None
            try:
                later = self._inside[name] = []
                self.woken = []
                book = self._names.get(name)
                if book is None:
                    if len(self._names) >= self._sweep_at:
                        self._sweep()
                    book = self._names[name] = NameBook(self)
                book.open()
                answer = verb(book, *args)
                for postponed in later:
                    postponed(book)
                return answer, self.woken
            finally:
                self.woken = outer
                self._inside.pop(name, None)
                if book is not None and book.empty:
                    self._names.pop(name, None)

    def _step_inside(self, name: str, verb: Callable[..., T], *args: object) -> T:
        """A step that begins inside another one of the same name, on the same thread: a destructor
        that the garbage collector runs, or a signal handler. What ends a claim is postponed to the
        end of the outer step; anything else would have to wait for it, and is refused."""
        self._inside[name].append(lambda book: verb(book, *args))
        if verb is law.release:
            return True  # type: ignore[return-value]
        if verb is law.leave:
            return Snapshot(name, 0, (), (), self.wall())  # type: ignore[return-value]
        self._inside[name].pop()
        raise BackendError(
            f"{name!r} is used by a destructor or signal handler inside another operation on it",
            transient=False,
        )

    def _sweep(self) -> None:
        """Remove names that have dead rows only. This runs whenever the number of names has
        doubled, so that it costs next to nothing per step."""
        for name, book in list(self._names.items()):
            book.open()
            if not law.look(book, name).slots:
                del self._names[name]
        self._sweep_at = 2 * len(self._names) + SWEEP_ABOVE

    def health_checks(self) -> Iterator[HealthCheck]:
        yield note(
            "reach",
            "locks in memory work within this process only: no other process sees them",
            "for other processes of this host: sqlite:///path/locks.db, or no URL at all",
        )

    def names(self, prefix: str) -> list[str]:
        with self._mutex:
            found = []
            for name, book in list(self._names.items()):
                book.open()
                if name.startswith(prefix) and law.look(book, name).slots:
                    found.append(name)
            return sorted(found)

    def forget(self, name: str) -> None:
        """Remove all rows of a name, as a flush or an eviction would. For tests."""
        with self._mutex:
            self._names.pop(name, None)

    def blocking(self, signal: Callable[[], Signal]) -> MemoryStore:
        return MemoryStore(self, signal())

    def tasks(self, signal: Callable[[], Signal]) -> MemoryStore:
        return MemoryStore(self, signal())


class MemoryStore(Store):
    """The verbs, each one step of the law. They never suspend, so they serve both APIs."""

    def __init__(self, memory: Memory, signal: Signal) -> None:
        self._memory = memory
        self._signal = signal

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def _step(self, name: str, verb: Callable[..., T], *args: object) -> T:
        answer, wakeups = self._memory.step(name, verb, *args)
        for wakeup in wakeups:
            self._memory.wakeups.deliver(*wakeup)
        return answer

    def claim(self, claims: Sequence[Claim], budget: float) -> list[Answer]:
        answers: list[Answer] = []
        for claim in claims:
            answers.append(self._step(claim.name, law.claim, claim))
            if not isinstance(answers[-1], Granted):
                break
        return answers

    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        return [self._step(claim.name, law.renew, claim) for claim in claims]

    def release(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        return [self._step(claim.name, law.release, claim) for claim in claims]

    def leave(self, claim: Claim, budget: float) -> Snapshot:
        return self._step(claim.name, law.leave, claim)

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        return self._step(claim.name, law.transfer, claim, attached)

    def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return self._step(claim.name, law.shrink, claim)

    def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        return self._step(name, law.resize, expected, slots)

    def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self._memory.wakeups.watch(claim.id, wake)
        return False  # wake-ups within a process are never lost

    def unwatch(self, claim: Claim) -> None:
        self._memory.wakeups.unwatch(claim.id)

    def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return self._step(name, law.look, name)

    def names(self, prefix: str, budget: float) -> list[str]:
        return self._memory.names(prefix)

    def break_hold(self, name: str, fence: int, budget: float) -> bool:
        return self._step(name, law.break_hold, fence)

    async def _listen(self, timeout: float | None) -> None:
        await self._signal.wait(timeout)

    def listen(self, timeout: float | None) -> Reply[None]:
        return self._listen(timeout)

    def interrupt(self) -> None:
        self._signal.set()

    def close(self) -> None:
        """Nothing to close: the memory lives as long as somebody refers to it."""


_shared: dict[str, Memory] = {}
_shared_mutex = forks.ForkSafeMutex()


def open_memory(url: str) -> Memory:
    """A private store, or the process-wide store of that name."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r}: write memory:// or memory://NAME, and nothing after it")
    if not parts.netloc:
        return Memory(clock.now, clock.wall)
    with _shared_mutex.lock:
        if parts.netloc not in _shared:
            _shared[parts.netloc] = Memory(clock.now, clock.wall, parts.netloc)
        return _shared[parts.netloc]
