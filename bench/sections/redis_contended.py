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

from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import redis
import redis_lock

from lockfast.cli.bench_contest import PATIENCE, Acquire, medians

from ._bare_contenders import LEAST, OURS, Contender
from ._contests import TOKEN, Contended, Contest, Entrance, faster, lockfast_on
from ._line import Line, at_least, at_most, number, times
from ._redis import LEASE, SENT, Bare, Server, added, packed

OF_THE_TOKEN = 0.6  # targets with the most waiters
SCRIPTS = 2.0
FAILED = 0.01
FAIR = 0.99
P99 = 4.0
LARGEST = 200
SIZES = (1, 10, 50, LARGEST)
SETTLE = 0.5  # seconds until all contenders are in the queue
OTHERS = ("redis-py Lock", "python-redis-lock")
BARE = (LEAST, OURS)


@dataclass(frozen=True, slots=True)
class Counted(Contended):
    """With the server's counters, per hand-over."""

    scripts: float
    sent: float
    commands: float
    failed: float
    connections: float


def measure(quick: bool) -> list[Line]:
    rounds, seconds, sizes = (1, 0.6, (1, LARGEST)) if quick else (3, 1.5, SIZES)
    contests = [Contest(TOKEN, 1), *(Contest("lockfast", size) for size in sizes)]
    contests += [Contest(bare, LARGEST) for bare in BARE]
    if quick:
        contests.append(Contest("python-redis-lock", LARGEST))
    else:
        contests += [Contest(other, size) for other in OTHERS for size in sizes]
    found: dict[Contest, list[Counted]] = {contest: [] for contest in contests}
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


def _lines(contest: Contest, found: dict[Contest, list[Counted]]) -> list[Line]:
    ours, token = medians(found[contest]), medians(found[Contest(TOKEN, 1)])
    who = contest.who
    largest = contest.waiting == LARGEST
    ratio = faster(found[contest], found[Contest(TOKEN, 1)])
    floor = f"bare token {number(token.handovers)}/s"
    if largest:
        lines = [times(f"{who}: hand-overs", ours.handovers, "/s", floor, ratio, OF_THE_TOKEN)]
        lines += _limits(contest, found)
    else:
        lines = [Line(f"{who}: hand-overs", ours.handovers, "/s", floor, f"{ratio:.2f}×")]
    others = {
        name: medians(found[key]) for name in OTHERS if (key := contest.with_subject(name)) in found
    }
    for name, theirs in others.items():
        against = f"{name} {number(theirs.handovers)}/s"
        times_theirs = f"{ours.handovers / max(theirs.handovers, 0.1):.1f}×"
        lines.append(Line(f"{who}: hand-overs", ours.handovers, "/s", against, times_theirs))

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


def _limits(contest: Contest, found: dict[Contest, list[Counted]]) -> list[Line]:
    """The cost of arrival order without a library, and lockfast's share of that rate."""
    lines = []
    for bare in BARE:
        theirs = found[contest.with_subject(bare)]
        rate, floor = medians(theirs).handovers, found[Contest(TOKEN, 1)]
        of_token, left = faster(theirs, floor), faster(found[contest], theirs)
        who = f"{contest.waiting} wait"
        token = f"bare token {number(medians(floor).handovers)}/s"
        lines.append(Line(f"{who}: {bare}", rate, "/s", token, f"{of_token:.2f}×"))
        ours = medians(found[contest]).handovers
        against = f"{bare} {number(rate)}/s"
        lines.append(Line(f"{who}: hand-overs", ours, "/s", against, f"{left:.2f}×"))
    return lines


# ---- one round ------------------------------------------------------------------------------


def _contend(server: Server, contest: Contest, name: str, seconds: float) -> Counted:
    """Run one round. Visits while contenders come and go do not count."""
    found = contest.run(
        _entrance,
        server.port,
        name,
        settle=SETTLE,
        seconds=seconds,
        observe=lambda: (server.connections(), server.calls()),
    )
    outcome, acquired = found.outcome(), found.acquires()
    (_, before), (connections, after) = found.before, found.after
    scripts, tries = added(after, before, ("evalsha", "eval")), added(after, before, ("set",))
    vain = scripts - 2 * acquired if contest.subject == "lockfast" else tries - acquired
    each = max(outcome.handovers * (found.end - found.begin), 1.0)
    return Counted(
        **asdict(outcome),
        scripts=scripts / each,
        sent=added(after, before, SENT) / each,
        commands=added(after, before) / each,
        failed=max(vain, 0) / each,
        connections=connections,
    )


@contextmanager
def _entrance(subject: str, process: int, port: int, name: str) -> Entrance:
    if subject == "lockfast":
        with lockfast_on(f"redis://127.0.0.1:{port}/0", name) as acquire_of:
            yield acquire_of
    elif subject == TOKEN:
        with closing(Bare(port)) as bare:
            yield lambda index: _token(bare, process, name)
    elif subject in BARE:
        yield lambda index: Contender(port, name, subject, index).enter
    else:
        with redis.Redis("127.0.0.1", port) as plain:

            def acquire() -> tuple[int, Callable[[], object]]:
                lock: Any
                if subject == "redis-py Lock":
                    lock = plain.lock(name, timeout=LEASE, blocking_timeout=PATIENCE)
                else:
                    lock = redis_lock.Lock(plain, name, expire=LEASE)
                if not lock.acquire():
                    raise TimeoutError
                return 0, lock.release

            yield lambda index: acquire


def _token(bare: Bare, process: int, name: str) -> Acquire:
    """One of two processes: wait for the token, then pass it to the other."""
    mine, yours = f"{name}:{process}", f"{name}:{1 - process}"
    wait, give = packed("BLPOP", mine, "1"), packed("RPUSH", yours, "x")
    send, receive = bare.socket.sendall, bare.socket.recv
    if process == 0:
        bare.ask(packed("RPUSH", mine, "x"))

    def pass_on() -> None:
        send(give)
        receive(4096)

    def acquire() -> tuple[int, Callable[[], object]]:
        send(wait)
        if len(receive(4096)) < 8:
            raise TimeoutError  # no token: the other process ended first
        return 0, pass_on

    return acquire
