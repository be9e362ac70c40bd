"""Hand-overs of one lock on Redis with up to 200 waiters in four processes.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release until another contender is inside; so it contains the release's own
step at the store. All processes read the same CLOCK_MONOTONIC.

The floor is two processes that pass a token on bare sockets: each pushes to the other's list and
blocks on its own, two commands per pass. The limit for arrival order is as many contenders on bare
sockets, without a library (`_bare_contenders`).

The server counts commands (INFO commandstats) while all contenders are in the queue. A failed try
is a request in vain: of lockfast, each script beyond one claim and one release (refreshes of
waiters too); of the others, each SET that found the name taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

import redis
import redis_lock

import lockfast

from ._bare_contenders import LEAST, OURS, bare_entrance
from ._line import Line, at_least, at_most, number, times
from ._processes import Ready, together, wait_until
from ._redis import LEASE, SENT, Bare, Server, added, packed
from ._visits import Entrance, Outcome, Visit, judged, middle, visits_of

OF_THE_TOKEN = 0.6  # targets with the most waiters
SCRIPTS = 2.0
FAILED = 0.01
FAIR = 0.99
P99 = 4.0
PROCESSES = 4
LARGEST = 200
SIZES = (1, 10, 50, LARGEST)
SETTLE = 0.5  # seconds until all contenders are in the queue
PATIENCE = 10.0
OTHERS = ("redis-py Lock", "python-redis-lock")
BARE = (LEAST, OURS)


@dataclass(frozen=True, slots=True)
class ContendedOutcome(Outcome):
    """With the server's counters, per hand-over."""

    scripts: float
    sent: float
    commands: float
    failed: float
    connections: float


@dataclass(frozen=True, slots=True)
class Contest:
    """A contest: so many contenders wait, and one more is inside."""

    subject: str
    waiting: int

    def members(self) -> list[int]:
        """The number of threads of each process."""
        contenders = self.waiting + 1
        processes = min(PROCESSES, contenders)
        return [len(range(index, contenders, processes)) for index in range(processes)]


def measure(quick: bool) -> list[Line]:
    rounds, seconds, sizes = (1, 0.6, (1, LARGEST)) if quick else (3, 1.5, SIZES)
    contests = [Contest("token", 1), *(Contest("lockfast", size) for size in sizes)]
    contests += [Contest(bare, LARGEST) for bare in BARE]
    if quick:
        contests.append(Contest("python-redis-lock", LARGEST))
    else:
        contests += [Contest(other, size) for other in OTHERS for size in sizes]
    found: dict[Contest, list[ContendedOutcome]] = {contest: [] for contest in contests}
    with Server() as server:
        for round_number in range(rounds):
            for contest in contests:
                found[contest].append(_contend(server, contest, f"orders:{round_number}", seconds))
    lines = []
    for contest in contests:
        if contest.subject == "lockfast":
            lines += _lines(contest, found)
    overlaps = sum(outcome.overlaps for outcomes in found.values() for outcome in outcomes)
    return [*lines, at_most(0, "two inside at once", overlaps, "times")]


# ---- the table ------------------------------------------------------------------------------


def _lines(contest: Contest, found: dict[Contest, list[ContendedOutcome]]) -> list[Line]:
    ours, token = middle(found[contest]), middle(found[Contest("token", 1)])
    who = f"{contest.waiting} wait" if contest.waiting > 1 else "1 waits"
    largest = contest.waiting == LARGEST
    pairs = zip(found[contest], found[Contest("token", 1)], strict=True)
    ratio = median(here.rate / there.rate for here, there in pairs)
    floor = f"bare token {number(token.rate)}/s"
    if largest:
        lines = [times(f"{who}: hand-overs", ours.rate, "/s", floor, ratio, OF_THE_TOKEN)]
        lines += _limits(contest, found)
    else:
        lines = [Line(f"{who}: hand-overs", ours.rate, "/s", floor, f"{ratio:.2f}×")]
    others = {
        name: middle(found[key]) for name in OTHERS if (key := _counterpart(contest, name)) in found
    }
    for name, theirs in others.items():
        against = f"{name} {number(theirs.rate)}/s"
        times_theirs = f"{ours.rate / max(theirs.rate, 0.1):.1f}×"
        lines.append(Line(f"{who}: hand-overs", ours.rate, "/s", against, times_theirs))

    def line(what: str, field: str, unit: str = "") -> Line:
        shown = [f"{name} {number(getattr(theirs, field))}" for name, theirs in others.items()]
        return Line(f"{who}: {what}", getattr(ours, field), unit, ", ".join(shown))

    floor = f"bare token {number(token.p50)} µs"
    slower = f"{ours.p50 / token.p50:.1f}× its time"
    lines.append(Line(f"{who}: release→next p50", ours.p50, "µs", floor, slower))
    if not largest:
        return [
            *lines,
            line("release→next p99", "p99", "µs"),
            line("fairness", "fairness"),
            line("scripts per hand-over", "scripts"),
        ]
    spread = f"{ours.p99 / ours.p50:.1f}× its p50"
    p99 = f"{who}: release→next p99"
    fair = line("fairness", "fairness")
    beside = ours.scripts - 1  # every contender must claim, whatever the lock
    failed = line("failed tries per hand-over", "failed")
    return [
        *lines,
        Line(p99, ours.p99, "µs", "", spread, f"≤ {P99:g}× its p50", ours.p99 <= P99 * ours.p50),
        line("longest wait", "longest", "ms"),
        at_least(FAIR, fair.what, fair.value, "", fair.against),
        line("scripts per hand-over", "scripts"),
        at_most(SCRIPTS, f"{who}: scripts per hand-over beside the claim", beside, ""),
        line("commands sent per hand-over", "sent"),
        line("commands with those in scripts", "commands"),
        at_most(FAILED, failed.what, failed.value, "", failed.against),
        line("connections", "connections"),
    ]


def _limits(contest: Contest, found: dict[Contest, list[ContendedOutcome]]) -> list[Line]:
    """The cost of arrival order without a library, and lockfast's share of that rate."""
    lines = []
    for bare in BARE:
        theirs = found[_counterpart(contest, bare)]
        rate, floor = middle(theirs).rate, found[Contest("token", 1)]
        of_token = median(a.rate / b.rate for a, b in zip(theirs, floor, strict=True))
        left = median(a.rate / b.rate for a, b in zip(found[contest], theirs, strict=True))
        who = f"{contest.waiting} wait"
        token = f"bare token {number(middle(floor).rate)}/s"
        lines.append(Line(f"{who}: {bare}", rate, "/s", token, f"{of_token:.2f}×"))
        ours = middle(found[contest]).rate
        against = f"{bare} {number(rate)}/s"
        lines.append(Line(f"{who}: hand-overs", ours, "/s", against, f"{left:.2f}×"))
    return lines


def _counterpart(contest: Contest, subject: str) -> Contest:
    return Contest(subject, contest.waiting)


# ---- one round ------------------------------------------------------------------------------


def _contend(server: Server, contest: Contest, name: str, seconds: float) -> ContendedOutcome:
    """Run one round. Visits while contenders come and go do not count."""
    seen: list[tuple[float, dict[str, int]]] = []
    connections = 0

    def count(begin: float) -> None:
        nonlocal connections
        for moment in (begin + SETTLE, begin + SETTLE + seconds):
            wait_until(moment)
            connections = server.connections()
            seen.append((time.monotonic(), server.calls()))

    lasts = SETTLE + seconds + 0.1
    members = contest.members()
    arguments = (server.port, contest.subject, name, members, lasts)
    work = _pass_token if contest.subject == "token" else _member
    found = together(work, len(members), *arguments, lasts=lasts + PATIENCE, meanwhile=count)
    everybody = [visits for answers in found for visits in answers]
    (begin, before), (end, after) = seen
    outcome = judged(everybody, begin, end)
    acquired = sum(begin <= visit[2] < end for visits in everybody for visit in visits)
    scripts, tries = added(after, before, ("evalsha", "eval")), added(after, before, ("set",))
    vain = scripts - 2 * acquired if contest.subject == "lockfast" else tries - acquired
    each = max(outcome.rate * (end - begin), 1.0)
    return ContendedOutcome(
        **asdict(outcome),
        scripts=scripts / each,
        sent=added(after, before, SENT) / each,
        commands=added(after, before) / each,
        failed=max(vain, 0) / each,
        connections=connections,
    )


def _member(
    index: int,
    ready: Ready,
    port: int,
    subject: str,
    name: str,
    members: list[int],
    lasts: float,
) -> list[list[Visit]]:
    """One process with its contending threads: the visits of each."""
    with _entrance(subject, port, name) as enter:
        return visits_of(enter, ready(), members[index], lasts, PATIENCE)


@contextmanager
def _entrance(subject: str, port: int, name: str) -> Iterator[Entrance]:
    """A function that returns a context manager, which yields the fence, or 0."""
    plain = redis.Redis("127.0.0.1", port)
    if subject in BARE:
        with bare_entrance(port, name, subject) as enter:
            yield enter
    elif subject == "lockfast":
        with lockfast.connect(f"redis://127.0.0.1:{port}/0") as client:

            @contextmanager
            def enter() -> Iterator[int]:
                with client.lock(name, timeout=PATIENCE) as hold:
                    yield hold.fence

            yield enter
    elif subject == "redis-py Lock":

        @contextmanager
        def enter() -> Iterator[int]:
            with plain.lock(name, timeout=LEASE, blocking_timeout=PATIENCE):
                yield 0

        yield enter
    else:

        @contextmanager
        def enter() -> Iterator[int]:
            with redis_lock.Lock(plain, name, expire=LEASE):
                yield 0

        yield enter
    plain.close()


def _pass_token(
    index: int,
    ready: Ready,
    port: int,
    subject: str,
    name: str,
    members: list[int],
    lasts: float,
) -> list[list[Visit]]:
    """One of two processes: wait for the token, then pass it to the other."""
    bare = Bare(port)
    mine, yours = f"{name}:{index}", f"{name}:{1 - index}"
    wait, give = packed("BLPOP", mine, "1"), packed("RPUSH", yours, "x")
    end = ready() + lasts
    if index == 0:
        bare.ask(packed("RPUSH", mine, "x"))
    visits: list[Visit] = []
    now = time.monotonic
    while (asked := now()) < end:
        bare.socket.sendall(wait)
        if len(bare.socket.recv(4096)) < 8:
            break  # no token: the other process ended first
        acquired = now()
        visits.append((0, asked, acquired, now()))
        bare.socket.sendall(give)
        bare.socket.recv(4096)
    bare.close()
    return [visits]
