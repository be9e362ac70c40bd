"""Rounds of the contest that `lockfast bench` runs, with lockfast, other libraries, or a token.

A contender is whatever acquires and releases. A **token** that processes pass on to each other, by
the least that this needs on a store, is the floor for a hand-over between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import lockfast
from lockfast.cli import bench_contest
from lockfast.cli.bench_contest import PATIENCE, Acquire, Outcome, Terms, WorkerResult, outcome

from ._processes import run

TOKEN = "token"
MARGIN = 0.1  # seconds that contenders go on after the last look at the counters
# Of each contender of a process, by its number: how it acquires.
Entrance = Iterator[Callable[[int], Acquire]]


@dataclass(frozen=True, slots=True)
class Contended(Outcome):
    longest: float  # wait, in ms


@dataclass(frozen=True, slots=True)
class Round:
    """The visits of one round, and what was observed at both ends of the time that counts."""

    workers: list[WorkerResult]
    begin: float
    end: float
    before: Any
    after: Any

    def outcome(self) -> Contended:
        visits = [visit for worker in self.workers for each in worker.visits for visit in each]
        waits = [acquired - asked for _, asked, acquired, _ in visits if asked < self.end]
        longest = max(waits, default=0.0) * 1e3
        return Contended(**asdict(outcome(self.workers, self.begin, self.end)), longest=longest)

    def acquires(self) -> int:
        times = [each.acquired for worker in self.workers for each in worker.visits]
        return sum(self.begin <= acquired < self.end for each in times for acquired in each)


@dataclass(frozen=True, slots=True)
class Contest:
    """So many contenders wait, and one more is inside."""

    subject: str
    waiting: int
    processes: int = 4  # at most

    def with_subject(self, subject: str) -> Contest:
        return Contest(subject, self.waiting, self.processes)

    @property
    def who(self) -> str:
        return f"{self.waiting} wait" if self.waiting > 1 else "1 waits"

    def run(
        self,
        entrance: Callable[..., AbstractContextManager[Callable[[int], Acquire]]],
        *arguments: object,
        settle: float,
        seconds: float,
        observe: Callable[[], object] = lambda: None,
        work: float = 0.0,
    ) -> Round:
        """Run one round. ``entrance(subject, process, *arguments)`` is entered in each process."""
        contenders = self.waiting + 1
        processes = min(self.processes, contenders)
        shares = []
        for index in range(processes):
            threads = len(range(index, contenders, processes))
            # A token is nowhere before all are ready to receive it.
            terms = Terms(threads, settle, seconds + MARGIN, work, warm=self.subject != TOKEN)
            shares.append((entrance, (self.subject, index, *arguments), terms))
        seen: list[tuple[float, object]] = []
        workers = run(
            _contend,
            shares,
            lasts=shares[0][2].lasts,
            moments=(settle, settle + seconds),
            observe=lambda: seen.append((time.monotonic(), observe())),
        )
        (begin, before), (end, after) = seen
        return Round(workers, begin, end, before, after)


def _contend(
    pipe: Connection, entrance: Callable[..., Any], arguments: tuple[Any, ...], terms: Terms
) -> WorkerResult:
    with entrance(*arguments) as acquire_of:
        return bench_contest.Contest(terms, acquire_of).run(pipe)


@contextmanager
def lockfast_on(url: str, name: str) -> Entrance:
    """Contenders with a lockfast client; each makes a lock for each visit, as the others do."""
    with lockfast.connect(url) as client:

        def acquire() -> tuple[int, Callable[[], object]]:
            hold = client.lock(name, timeout=PATIENCE).acquire()
            return hold.fence, hold.release

        yield lambda index: acquire


def faster(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> float:
    """The median ratio of the rates within each round."""
    pairs = zip(ours, theirs, strict=True)
    return median(here.handovers / max(there.handovers, 0.1) for here, there in pairs)
