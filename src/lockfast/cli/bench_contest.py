"""A contest: threads that acquire and release one lock, and the figures of their hand-overs.

`lockfast bench` and the repository's ``bench/`` run the same contest, the latter also with locks of
other libraries. Each contender acquires and releases once, so that it has its connection; then all
begin together, with no work inside, and note the times of every visit.

A **hand-over** lasts from just before one contender calls release until another contender holds the
lock, so it includes the release's own round trip to the store. With a single contender it is the
release and acquire of that contender: the cycle of an uncontended lock.

Costs are per acquire. With a full queue every acquire is a hand-over. One of few contenders may
acquire twice in a row, so costs per acquire then include cycles without a hand-over.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lockfast.cli.workers import error_line, pause, ready
from lockfast.core.ports import Signal
from lockfast.errors import LockfastError
from lockfast.sync import Client, Lock, connect

if TYPE_CHECKING:
    from lockfast.stores import Endpoint

PATIENCE = 10.0  # acquire timeout of a contender, which then counts it and tries again
LEAVING = 2.0  # limit for the threads to leave the queue after the command has closed the pipe
# Interval of checking for failed contenders: while threads start and end, and while they work.
POLL, WORK_POLL = 0.005, 0.1
# Each call of these is one request to the store, or one transaction.
VERBS = {"claim", "release", "renew"}
VERBS |= {"leave", "transfer", "shrink", "resize", "inspect", "names", "break_hold"}

now = time.monotonic

# Acquires the lock and returns its fence (0 if it has none) and its release.
Acquire = Callable[[], tuple[int, Callable[[], object]]]


@dataclass(slots=True)
class Visits:
    """Record of one contender: fence and times of each hold."""

    fences: array[int] = field(default_factory=lambda: array("q"))
    asked: array[float] = field(default_factory=lambda: array("d"))
    acquired: array[float] = field(default_factory=lambda: array("d"))
    released: array[float] = field(default_factory=lambda: array("d"))
    timeouts: int = 0

    def add(self, fence: int, asked: float, acquired: float, released: float) -> None:
        self.fences.append(fence)
        self.asked.append(asked)
        self.acquired.append(acquired)
        self.released.append(released)

    def __iter__(self) -> Iterator[tuple[int, float, float, float]]:
        return zip(self.fences, self.asked, self.acquired, self.released, strict=True)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """Measurements of one worker; requests and CPU seconds of the counted time only."""

    visits: list[Visits]
    requests: int = 0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """One round of one worker."""

    contenders: int
    settle: float  # seconds at the start of the round that are not counted
    seconds: float
    work: float = 0.0  # seconds that each hold lasts
    warm: bool = True  # acquire and release once before the round

    @property
    def lasts(self) -> float:
        """Time until the last contender has left, at most."""
        return self.settle + self.seconds + 2 * PATIENCE


class Contest:
    """The contenders of this process in one round: `run` it, in the `ready` state of a worker."""

    def __init__(
        self,
        terms: Terms,
        acquire_of: Callable[[int], Acquire],  # called in the thread of each contender
        requests: Callable[[], int] = lambda: 0,
    ) -> None:
        self._terms, self._acquire_of, self._requests = terms, acquire_of, requests
        self._begin = threading.Event()
        self._begins, self._until = 0.0, math.inf
        self._warm = threading.Semaphore(0)
        self._failure: str | None = None
        self._visits = [Visits() for _ in range(terms.contenders)]
        self._threads = [
            threading.Thread(target=self._contend, args=each, daemon=True)
            for each in enumerate(self._visits)
        ]

    def run(self, pipe: Connection) -> WorkerResult:
        try:
            return self._run(pipe)
        finally:
            self._leave()

    def _run(self, pipe: Connection) -> WorkerResult:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            while not self._warm.acquire(timeout=POLL):
                self._pause(pipe, 0.0)
        self._begins = ready(pipe)
        counted = self._begins + self._terms.settle
        self._until = end = counted + self._terms.seconds
        self._begin.set()
        self._pause_until(pipe, counted)
        requests, cpu = self._requests(), time.process_time()
        self._pause_until(pipe, end)
        requests, cpu = self._requests() - requests, time.process_time() - cpu
        for thread in self._threads:
            while thread.is_alive() and now() < end + 2 * PATIENCE:
                self._pause(pipe, POLL)
        self._pause(pipe, 0.0)
        return WorkerResult(self._visits, requests, cpu)

    def _leave(self) -> None:
        """Stop the threads. One that still waits is served soon, as all others leave as well."""
        self._until = 0.0
        self._begin.set()
        until = now() + LEAVING
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(until - now(), 0.0))

    def _pause_until(self, pipe: Connection, moment: float) -> None:
        while (left := moment - now()) > 0:
            self._pause(pipe, min(left, WORK_POLL))

    def _pause(self, pipe: Connection, seconds: float) -> None:
        pause(pipe, seconds)
        if self._failure is not None:
            raise LockfastError(self._failure)

    def _contend(self, index: int, visits: Visits) -> None:
        work = self._terms.work
        try:
            acquire = self._acquire_of(index)
            if self._terms.warm:
                _, release = acquire()
                release()
            self._warm.release()
            self._begin.wait()
            time.sleep(max(self._begins - now(), 0.0))
            while (asked := now()) < self._until:
                try:
                    fence, release = acquire()
                except TimeoutError:
                    visits.timeouts += 1
                    continue
                acquired = now()
                if work:
                    time.sleep(work)
                released = now()
                release()
                visits.add(fence, asked, acquired, released)
        except Exception as error:  # in a thread: the main thread reports it
            self._failure = error_line(error)


def acquire_of(lock: Lock) -> Acquire:
    def acquire() -> tuple[int, Callable[[], object]]:
        hold = lock.acquire()
        return hold.fence, hold.release

    return acquire


# ---- lockfast's own round: requests are counted ---------------------------------------------


def contend(pipe: Connection, url: str, name: str, terms: Terms) -> WorkerResult:
    """Compete for a name in the namespace of the same name."""
    # Warnings were shown already, when the command probed the store.
    logging.disable(logging.CRITICAL)
    requests = itertools.count()
    counted = itertools.count()

    def count() -> int:
        """Number of requests so far. Reading the counter advances it, which is subtracted."""
        return next(requests) - next(counted)

    with closing(connect(url, namespace=name)) as plain:
        endpoint = Counted(plain._endpoint, requests)
        with Client._on(cast("Endpoint", endpoint), lease=plain._lease, namespace=name) as client:

            def new_acquire(index: int) -> Acquire:
                return acquire_of(client.lock(name, timeout=PATIENCE))

            return Contest(terms, new_acquire, count).run(pipe)


class Counted:
    """A proxy of a store, and of the store that it makes, which counts requests. Each verb is
    wrapped once, so that counting costs a fraction of a microsecond."""

    def __init__(self, inner: object, requests: itertools.count[int]) -> None:
        self._inner, self._requests = inner, requests

    def blocking(self, signal: Callable[[], Signal]) -> Any:
        return Counted(cast("Endpoint", self._inner).blocking(signal), self._requests)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name in VERBS:
            attribute = partial(_counted, attribute, self._requests)
        if name != "capabilities":  # may change after the first contact with the store
            setattr(self, name, attribute)
        return attribute


def _counted(verb: Callable[..., Any], requests: itertools.count[int], *arguments: Any) -> Any:
    next(requests)  # atomic: a single C call under the GIL
    return verb(*arguments)


# ---- figures --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one round, or their medians over several. Times in µs; NaN means unknown."""

    handovers: float  # per second
    p50: float  # release → next holder
    p99: float
    fairness: float  # Jain's index of the contenders' acquires
    requests: float  # to the store, as lockfast counts them, per acquire
    cpu: float  # of the worker processes, per acquire
    server_cpu: float  # of the server, per acquire
    overlaps: float  # times that two contenders held the lock at once
    timeouts: float  # acquires that timed out

    def as_json(self) -> dict[str, float | None]:
        """Fields for JSON, which has no NaN: unknown is null."""
        return {key: None if math.isnan(value) else value for key, value in asdict(self).items()}


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def outcome(
    workers: Sequence[WorkerResult], begin: float, end: float, server_cpu: float | None = None
) -> Outcome:
    """Compute the figures from ``begin`` to ``end``.

    Visits are ordered by fence, or by time where a lock has no fences (0). A visit that began
    before the one before it had ended is an overlap.
    """
    contenders = [visits for worker in workers for visits in worker.visits]
    merged = sorted(
        (fence, acquired, released, contender)
        for contender, visits in enumerate(contenders)
        for fence, _, acquired, released in visits
    )
    gaps, overlaps = [], 0
    shares = [0] * len(contenders)
    for _, acquired, _, contender in merged:
        shares[contender] += begin <= acquired < end
    for (_, _, released, before), (_, acquired, _, after) in itertools.pairwise(merged):
        overlaps += acquired < released
        if begin <= acquired < end and (before != after or len(contenders) == 1):
            gaps.append((acquired - released) * 1e6)
    acquires = sum(shares) or math.nan
    return Outcome(
        handovers=len(gaps) / (end - begin),
        p50=percentile(gaps, 0.5),
        p99=percentile(gaps, 0.99),
        fairness=jain(shares),
        requests=sum(worker.requests for worker in workers) / acquires,
        cpu=sum(worker.cpu for worker in workers) * 1e6 / acquires,
        server_cpu=math.nan if server_cpu is None else server_cpu * 1e6 / acquires,
        overlaps=overlaps,
        timeouts=sum(visits.timeouts for visits in contenders),
    )


def medians(rounds: Sequence[AnyOutcome]) -> AnyOutcome:
    """Median of each figure over the rounds; overlaps and time-outs are added up.

    Figures are rounded here, once, so that the table, the chart and the JSON agree.
    """

    def of(name: str) -> float:
        values: list[float] = [getattr(outcome, name) for outcome in rounds]
        if name in ("overlaps", "timeouts"):
            return sum(values)
        known = [value for value in values if not math.isnan(value)]
        return round(median(known), 4) if known else math.nan

    return type(rounds[0])(**{each.name: of(each.name) for each in fields(rounds[0])})


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that this share of the values does not exceed; NaN if there are none."""
    if not values:
        return math.nan
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one contender got everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else math.nan
