"""Hand-overs of one contended lock on SQLite: speed and fairness.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release until another contender is inside; so it contains the release's own
step at the store. All processes read the same CLOCK_MONOTONIC.

`filelock` has no queue: it polls every 50 ms, and the process that just released usually takes the
lock again. Its hand-overs are few, so compare their rate and the longest wait, not the latency of
those few. "Bare token" is a token passed between as many processes: the floor. Each
process waits on a Unix datagram socket and writes to the next one's; nothing that wakes another
process can be faster on this machine at this moment.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import filelock

from lockfast.cli.bench_contest import PATIENCE, Acquire, medians

from ._contests import TOKEN, Contended, Contest, Entrance, lockfast_on
from ._line import Line, at_least, at_most, number

P50 = 1000.0  # µs
FAIR = 0.95
SETTLE = 0.3  # seconds until all contenders are in the queue


def _contest(subject: str, waiting: int, *, threads: bool = False) -> Contest:
    """A process for each contender, or one with a thread for each."""
    return Contest(subject, waiting, processes=1 if threads else waiting + 1)


CONTESTS = (
    _contest("lockfast", 1),
    _contest("filelock", 1),
    _contest(TOKEN, 1),
    _contest("lockfast", 8),
    _contest("filelock", 8),
    _contest(TOKEN, 8),
    _contest("lockfast", 64),
    _contest(TOKEN, 64),
    _contest("lockfast", 64, threads=True),
)


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (1, 0.8) if quick else (3, 1.5)
    outcomes: dict[Contest, list[Contended]] = {contest: [] for contest in CONTESTS}
    for _ in range(rounds):
        for contest in CONTESTS:
            outcomes[contest].append(_contend(contest, seconds))
    lines = []
    for contest in CONTESTS:
        if contest.subject == "lockfast":
            lines += _lines(contest, outcomes)
    overlaps = sum(outcome.overlaps for found in outcomes.values() for outcome in found)
    return [*lines, at_most(0, "two inside at once", overlaps, "times")]


def _lines(contest: Contest, outcomes: dict[Contest, list[Contended]]) -> list[Line]:
    ours = medians(outcomes[contest])
    kind = ("process", "processes") if contest.processes > 1 else ("thread", "threads")
    title = f"1 {kind[0]} waits" if contest.waiting == 1 else f"{contest.waiting} {kind[1]} wait"
    token = medians(outcomes[_contest(TOKEN, contest.waiting)])
    floor, slower = f"bare token {number(token.p50)} µs", f"{ours.p50 / token.p50:.1f}× its time"
    p50 = Line(f"{title}: release→next p50", ours.p50, "µs", floor, slower)
    if contest.waiting >= 64:
        p50 = at_most(P50, p50.what, ours.p50, "µs", floor, slower)
    rate, wait, fairness = f"bare token {number(token.handovers)}/s", "", ""
    ratio = f"{ours.handovers / token.handovers:.2f}×"
    lines = []
    if _contest("filelock", contest.waiting) in outcomes:
        polls = medians(outcomes[_contest("filelock", contest.waiting)])
        lines.append(
            Line(
                f"{title}: hand-overs",
                ours.handovers,
                "/s",
                f"filelock {number(polls.handovers)}/s",
                f"{ours.handovers / max(polls.handovers, 0.1):.0f}×",
            )
        )
        wait, fairness = f"filelock {number(polls.longest)} ms", f"filelock {polls.fairness:.2f}"
    return [
        *lines,
        Line(f"{title}: hand-overs", ours.handovers, "/s", rate, ratio),
        p50,
        Line(f"{title}: release→next p99", ours.p99, "µs"),
        Line(f"{title}: longest wait", ours.longest, "ms", wait),
        at_least(FAIR, f"{title}: fairness", ours.fairness, "", fairness),
    ]


def _contend(contest: Contest, seconds: float) -> Contended:
    """Run one round. Visits while contenders come and go do not count."""
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        arguments = (folder, contest.waiting + 1)
        return contest.run(_entrance, *arguments, settle=SETTLE, seconds=seconds).outcome()


@contextmanager
def _entrance(subject: str, process: int, folder: str, contenders: int) -> Entrance:
    if subject == "lockfast":
        with lockfast_on(f"sqlite://{folder}/locks.db", "orders:42") as acquire_of:
            yield acquire_of
    elif subject == TOKEN:
        with ExitStack() as stack:
            inbox, following = (
                stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in "12"
            )
            inbox.bind(f"{folder}/{process}")
            paths = f"{folder}/0", f"{folder}/{(process + 1) % contenders}"
            yield lambda index: _token(inbox, following, process, *paths)
    else:
        lock = filelock.FileLock(f"{folder}/a.lock", timeout=PATIENCE)

        def acquire() -> tuple[int, Callable[[], object]]:
            lock.acquire()
            return 0, lock.release

        yield lambda index: acquire


def _token(
    inbox: socket.socket, following: socket.socket, process: int, first: str, next_one: str
) -> Acquire:
    inbox.settimeout(0.5)
    is_first = True

    def acquire() -> tuple[int, Callable[[], object]]:
        nonlocal is_first
        if is_first:  # all are bound by now
            is_first = False
            following.connect(next_one)
            if process == 0:
                inbox.sendto(b"0", first)  # the token starts here
        number = int(inbox.recv(32)) + 1
        return number, lambda: _give(following, number)

    return acquire


def _give(following: socket.socket, number: int) -> None:
    try:
        following.send(b"%d" % number)
    except OSError:
        pass  # the other processes ended first
