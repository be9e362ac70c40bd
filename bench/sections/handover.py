"""One name and many who want it, on SQLite: how fast and how fairly it goes from one to the next.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release is asked for until the next one, another contender, is inside; so it
contains the release's own step at the store. All processes read the same CLOCK_MONOTONIC.

`filelock` has no queue: it asks again every 50 ms, and who has just released takes it again. Its
hand-overs are few: it is their rate and the longest wait that tell, not the latency of those few.
"Bare turns" is a token that goes round between as many processes: the floor (see `_turns`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import filelock

import lockfast

from ._line import Line, at_least, at_most, number
from ._processes import Ready, together, wait_until
from ._turns import take_turns
from ._visits import Outcome, Visit, judged, middle

P50 = 1000.0  # µs, and the others too are targets of SPEED.md
FAIR = 0.95
SETTLE = 0.3  # seconds until everybody stands in the queue


@dataclass(frozen=True, slots=True)
class Contest:
    """Who contends: so many wait, and one more is inside."""

    subject: str
    waiting: int
    threads: bool = False

    @property
    def title(self) -> str:
        kind = "thread" if self.threads else "process"
        several = {"thread": "threads", "process": "processes"}[kind]
        who = f"1 {kind} waits" if self.waiting == 1 else f"{self.waiting} {several} wait"
        return who


CONTESTS = (
    Contest("lockfast", 1),
    Contest("filelock", 1),
    Contest("turns", 1),
    Contest("lockfast", 8),
    Contest("filelock", 8),
    Contest("turns", 8),
    Contest("lockfast", 64),
    Contest("turns", 64),
    Contest("lockfast", 64, threads=True),
)


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (1, 0.8) if quick else (3, 1.5)
    outcomes: dict[Contest, list[Outcome]] = {contest: [] for contest in CONTESTS}
    for _ in range(rounds):
        for contest in CONTESTS:
            outcomes[contest].append(_contend(contest, seconds))
    lines = []
    for contest in CONTESTS:
        if contest.subject == "lockfast":
            lines += _lines(contest, outcomes)
    overlaps = sum(outcome.overlaps for found in outcomes.values() for outcome in found)
    return [*lines, at_most(0, "two inside at once", overlaps, "times")]


def _lines(contest: Contest, outcomes: dict[Contest, list[Outcome]]) -> list[Line]:
    ours = middle(outcomes[contest])
    turns = middle(outcomes[Contest("turns", contest.waiting)])
    floor, slower = f"bare turns {number(turns.p50)} µs", f"{ours.p50 / turns.p50:.1f}× its time"
    p50 = Line(f"{contest.title}: release→next p50", ours.p50, "µs", floor, slower)
    if contest.waiting >= 64:
        p50 = at_most(P50, p50.what, ours.p50, "µs", floor, slower)
    rate, wait, fairness = f"bare turns {number(turns.rate)}/s", "", ""
    ratio = f"{ours.rate / turns.rate:.2f}×"
    lines = []
    if Contest("filelock", contest.waiting) in outcomes:
        polls = middle(outcomes[Contest("filelock", contest.waiting)])
        lines.append(
            Line(
                f"{contest.title}: hand-overs",
                ours.rate,
                "/s",
                f"filelock {number(polls.rate)}/s",
                f"{ours.rate / max(polls.rate, 0.1):.0f}×",
            )
        )
        wait, fairness = f"filelock {number(polls.longest)} ms", f"filelock {polls.fairness:.2f}"
    return [
        *lines,
        Line(f"{contest.title}: hand-overs", ours.rate, "/s", rate, ratio),
        p50,
        Line(f"{contest.title}: release→next p99", ours.p99, "µs"),
        Line(f"{contest.title}: longest wait", ours.longest, "ms", wait),
        at_least(FAIR, f"{contest.title}: Jain", ours.fairness, "", fairness),
    ]


def _contend(contest: Contest, seconds: float) -> Outcome:
    """One round. What happened while they came and went is not counted."""
    contenders = contest.waiting + 1
    processes, threads = (1, contenders) if contest.threads else (contenders, 1)
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        lasts = SETTLE + seconds
        if contest.subject == "turns":
            answers = together(_turns, processes, folder, processes, lasts, lasts=lasts)
        else:
            told = (contest.subject, folder, threads, lasts)
            answers = together(_member, processes, *told, lasts=lasts)
    begin = min(begin for begin, _ in answers) + SETTLE
    everybody = [visits for _, found in answers for visits in found]
    return judged(everybody, begin, begin + seconds)


def _member(
    index: int, ready: Ready, subject: str, folder: str, threads: int, lasts: float
) -> tuple[float, list[list[Visit]]]:
    """One process with its contending threads: when it began, and what each of them noted."""
    with _entrance(subject, folder) as enter:
        begin = ready()
        visits: list[list[Visit]] = [[] for _ in range(threads)]
        crowd = [
            threading.Thread(target=_visit, args=(enter, begin, begin + lasts, noted), daemon=True)
            for noted in visits
        ]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(lasts + 15.0)
        return begin, visits


def _turns(
    index: int, ready: Ready, folder: str, count: int, lasts: float
) -> tuple[float, list[list[Visit]]]:
    begin, visits = take_turns(index, ready, folder, count, lasts)
    return begin, [visits]


def _visit(enter: Callable[[float], object], begin: float, end: float, noted: list[Visit]) -> None:
    wait_until(begin)
    now = time.monotonic
    while (asked := now()) < end:
        try:
            with enter(10.0) as fence:  # type: ignore[attr-defined]
                acquired = now()
                noted.append((fence, asked, acquired, now()))
        except TimeoutError:
            return


@contextmanager
def _entrance(subject: str, folder: str) -> Iterator[Callable[[float], object]]:
    """How to enter, given for how long to wait: a context manager that gives the fence, or 0."""
    if subject == "lockfast":
        with lockfast.connect(f"sqlite://{folder}/locks.db") as client:

            @contextmanager
            def enter(timeout: float) -> Iterator[int]:
                with client.lock("orders:42", timeout=timeout) as hold:
                    yield hold.fence

            client.inspect("orders:42")  # the file is open before the contest begins
            yield enter
    else:
        lock = filelock.FileLock(f"{folder}/a.lock")

        @contextmanager
        def enter(timeout: float) -> Iterator[int]:
            with lock.acquire(timeout=timeout):
                yield 0

        yield enter
