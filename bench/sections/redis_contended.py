"""One name on Redis and up to 200 who wait, in four processes: how it goes from one to the next.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release is asked for until the next one, another contender, is inside; so it
contains the release's own step at the store. All processes read the same CLOCK_MONOTONIC.

The floor is two processes that take turns on bare sockets: each pushes to the other's list and
blocks on its own, two commands a turn. The limit of the order of arrival is the same crowd on bare
sockets, without a library (`_bare_contenders`).

Commands are counted by the server (INFO commandstats) while everybody stands in the queue. A failed
try is what is asked in vain: by lockfast, each script beyond the one that claims and the one that
releases (refreshes of places too); by the others, each SET that found the name taken.
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

OF_THE_TURNS = 0.6  # targets of SPEED.md, for the largest crowd
SCRIPTS = 2.0
FAILED = 0.01
FAIR = 0.99
P99 = 4.0
PROCESSES = 4
LARGEST = 200
SIZES = (1, 10, 50, LARGEST)
SETTLE = 0.5  # seconds until everybody stands in the queue
PATIENCE = 10.0
OTHERS = ("redis-py Lock", "python-redis-lock")
BARE = (LEAST, OURS)


@dataclass(frozen=True, slots=True)
class Crowd(Outcome):
    """And what the server counted, per hand-over."""

    scripts: float
    sent: float
    commands: float
    failed: float
    connections: float


@dataclass(frozen=True, slots=True)
class Contest:
    """So many wait, and one more is inside."""

    subject: str
    waiting: int

    def members(self) -> list[int]:
        """How many threads each process has."""
        contenders = self.waiting + 1
        processes = min(PROCESSES, contenders)
        return [len(range(index, contenders, processes)) for index in range(processes)]


def measure(quick: bool) -> list[Line]:
    rounds, seconds, sizes = (1, 0.6, (1, LARGEST)) if quick else (3, 1.5, SIZES)
    contests = [Contest("turns", 1), *(Contest("lockfast", size) for size in sizes)]
    contests += [Contest(bare, LARGEST) for bare in BARE]
    if quick:
        contests.append(Contest("python-redis-lock", LARGEST))
    else:
        contests += [Contest(other, size) for other in OTHERS for size in sizes]
    found: dict[Contest, list[Crowd]] = {contest: [] for contest in contests}
    with Server() as server:
        for turn in range(rounds):
            for contest in contests:
                found[contest].append(_contend(server, contest, f"orders:{turn}", seconds))
    lines = []
    for contest in contests:
        if contest.subject == "lockfast":
            lines += _lines(contest, found)
    overlaps = sum(outcome.overlaps for outcomes in found.values() for outcome in outcomes)
    return [*lines, at_most(0, "two inside at once", overlaps, "times")]


# ---- what is shown --------------------------------------------------------------------------


def _lines(contest: Contest, found: dict[Contest, list[Crowd]]) -> list[Line]:
    ours, turns = middle(found[contest]), middle(found[Contest("turns", 1)])
    who = f"{contest.waiting} wait" if contest.waiting > 1 else "1 waits"
    largest = contest.waiting == LARGEST
    pairs = zip(found[contest], found[Contest("turns", 1)], strict=True)
    ratio = median(here.rate / there.rate for here, there in pairs)
    floor = f"bare turns {number(turns.rate)}/s"
    if largest:
        lines = [times(f"{who}: hand-overs", ours.rate, "/s", floor, ratio, OF_THE_TURNS)]
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
        said = [f"{name} {number(getattr(theirs, field))}" for name, theirs in others.items()]
        return Line(f"{who}: {what}", getattr(ours, field), unit, ", ".join(said))

    floor = f"bare turns {number(turns.p50)} µs"
    slower = f"{ours.p50 / turns.p50:.1f}× its time"
    lines.append(Line(f"{who}: release→next p50", ours.p50, "µs", floor, slower))
    if not largest:
        return [
            *lines,
            line("release→next p99", "p99", "µs"),
            line("Jain", "fairness"),
            line("scripts per hand-over", "scripts"),
        ]
    spread = f"{ours.p99 / ours.p50:.1f}× its p50"
    p99 = f"{who}: release→next p99"
    fair = line("Jain", "fairness")
    beside = ours.scripts - 1  # everybody who comes must claim, whatever the lock
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


def _limits(contest: Contest, found: dict[Contest, list[Crowd]]) -> list[Line]:
    """What the order of arrival costs without a library, and what of that is left with ours."""
    lines = []
    for bare in BARE:
        theirs = found[_counterpart(contest, bare)]
        rate, floor = middle(theirs).rate, found[Contest("turns", 1)]
        of_turns = median(a.rate / b.rate for a, b in zip(theirs, floor, strict=True))
        left = median(a.rate / b.rate for a, b in zip(found[contest], theirs, strict=True))
        who = f"{contest.waiting} wait"
        turns = f"bare turns {number(middle(floor).rate)}/s"
        lines.append(Line(f"{who}: {bare}", rate, "/s", turns, f"{of_turns:.2f}×"))
        ours = middle(found[contest]).rate
        against = f"{bare} {number(rate)}/s"
        lines.append(Line(f"{who}: hand-overs", ours, "/s", against, f"{left:.2f}×"))
    return lines


def _counterpart(contest: Contest, subject: str) -> Contest:
    return Contest(subject, contest.waiting)


# ---- one round ------------------------------------------------------------------------------


def _contend(server: Server, contest: Contest, name: str, seconds: float) -> Crowd:
    """What happened while they came and went is not counted."""
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
    told = (server.port, contest.subject, name, members, lasts)
    work = _turns if contest.subject == "turns" else _member
    found = together(work, len(members), *told, lasts=lasts + PATIENCE, meanwhile=count)
    everybody = [visits for answers in found for visits in answers]
    (begin, before), (end, after) = seen
    outcome = judged(everybody, begin, end)
    acquired = sum(begin <= visit[2] < end for visits in everybody for visit in visits)
    scripts, tries = added(after, before, ("evalsha", "eval")), added(after, before, ("set",))
    vain = scripts - 2 * acquired if contest.subject == "lockfast" else tries - acquired
    each = max(outcome.rate * (end - begin), 1.0)
    return Crowd(
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
    """One process with its contending threads: what each of them noted."""
    with _entrance(subject, port, name) as enter:
        return visits_of(enter, ready, members[index], lasts, PATIENCE)


@contextmanager
def _entrance(subject: str, port: int, name: str) -> Iterator[Entrance]:
    """How to enter: a context manager that gives the fence, or 0."""
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


def _turns(
    index: int,
    ready: Ready,
    port: int,
    subject: str,
    name: str,
    members: list[int],
    lasts: float,
) -> list[list[Visit]]:
    """One of two processes: wait for our turn, give the other one its."""
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
            break  # none came: the other's time was over first
        acquired = now()
        visits.append((0, asked, acquired, now()))
        bare.socket.sendall(give)
        bare.socket.recv(4096)
    bare.close()
    return [visits]
