"""Hand-overs of one contended lock on SQLite: speed and fairness.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release until another contender is inside; so it contains the release's own
step at the store. All processes read the same CLOCK_MONOTONIC.

`filelock` has no queue: it polls every 50 ms, and the process that just released usually takes the
lock again. Its hand-overs are few, so compare their rate and the longest wait, not the latency of
those few. "Bare token" is a token passed between as many processes: the floor (`_token_passing`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import filelock

import lockfast

from ._line import Line, at_least, at_most, number
from ._processes import Ready, together
from ._token_passing import pass_token
from ._visits import Entrance, Outcome, Visit, judged, middle, visits_of

P50 = 1000.0  # µs
FAIR = 0.95
PATIENCE = 10.0
SETTLE = 0.3  # seconds until all contenders are in the queue


@dataclass(frozen=True, slots=True)
class Contest:
    """A contest: so many contenders wait, and one more is inside."""

    subject: str
    waiting: int
    threads: bool = False

    @property
    def title(self) -> str:
        kind = "thread" if self.threads else "process"
        plural = {"thread": "threads", "process": "processes"}[kind]
        return f"1 {kind} waits" if self.waiting == 1 else f"{self.waiting} {plural} wait"


CONTESTS = (
    Contest("lockfast", 1),
    Contest("filelock", 1),
    Contest("token", 1),
    Contest("lockfast", 8),
    Contest("filelock", 8),
    Contest("token", 8),
    Contest("lockfast", 64),
    Contest("token", 64),
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
    visits = middle(outcomes[Contest("token", contest.waiting)])
    floor, slower = f"bare token {number(visits.p50)} µs", f"{ours.p50 / visits.p50:.1f}× its time"
    p50 = Line(f"{contest.title}: release→next p50", ours.p50, "µs", floor, slower)
    if contest.waiting >= 64:
        p50 = at_most(P50, p50.what, ours.p50, "µs", floor, slower)
    rate, wait, fairness = f"bare token {number(visits.rate)}/s", "", ""
    ratio = f"{ours.rate / visits.rate:.2f}×"
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
        at_least(FAIR, f"{contest.title}: fairness", ours.fairness, "", fairness),
    ]


def _contend(contest: Contest, seconds: float) -> Outcome:
    """Run one round. Visits while contenders come and go do not count."""
    contenders = contest.waiting + 1
    processes, threads = (1, contenders) if contest.threads else (contenders, 1)
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        lasts = SETTLE + seconds
        if contest.subject == "token":
            answers = together(_pass_token, processes, folder, processes, lasts, lasts=lasts)
        else:
            arguments = (contest.subject, folder, threads, lasts)
            answers = together(_member, processes, *arguments, lasts=lasts)
    begin = min(begin for begin, _ in answers) + SETTLE
    everybody = [visits for _, found in answers for visits in found]
    return judged(everybody, begin, begin + seconds)


def _member(
    index: int, ready: Ready, subject: str, folder: str, threads: int, lasts: float
) -> tuple[float, list[list[Visit]]]:
    """One process with its contending threads: its start time, and the visits of each."""
    with _entrance(subject, folder) as enter:
        begin = ready()
        return begin, visits_of(enter, begin, threads, lasts, PATIENCE)


def _pass_token(
    index: int, ready: Ready, folder: str, count: int, lasts: float
) -> tuple[float, list[list[Visit]]]:
    begin, visits = pass_token(index, ready, folder, count, lasts)
    return begin, [visits]


@contextmanager
def _entrance(subject: str, folder: str) -> Iterator[Entrance]:
    """A function that returns a context manager, which yields the fence, or 0."""
    if subject == "lockfast":
        with lockfast.connect(f"sqlite://{folder}/locks.db") as client:

            @contextmanager
            def enter() -> Iterator[int]:
                with client.lock("orders:42", timeout=PATIENCE) as hold:
                    yield hold.fence

            client.inspect("orders:42")  # the file is open before the contest begins
            yield enter
    else:
        lock = filelock.FileLock(f"{folder}/a.lock")

        @contextmanager
        def enter() -> Iterator[int]:
            with lock.acquire(timeout=PATIENCE):
                yield 0

        yield enter
