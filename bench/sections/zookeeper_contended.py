"""Hand-overs of one lock on ZooKeeper with up to 50 waiters in four processes.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release until another contender is inside; so it contains the release's own
write. All processes read the same CLOCK_MONOTONIC.

The floor is two processes that pass a token on bare sockets with the least requests that a queue of
nodes needs: each creates its next node, deletes this one, and watches the other's, three requests
per pass and hand-over. The server counts requests (mntr, packets received) while all contenders are
in the queue. A kazoo Lock is made for each visit, as lockfast's is. At the end 50 threads of one
process wait idly for a lock that another client holds, with the default session.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass

from kazoo.client import KazooClient

import lockfast
from lockfast.cli.bench_contest import Acquire, medians

from ._contests import TOKEN, Contended, Contest, Entrance, faster, lockfast_on
from ._idle import wait_idly
from ._line import Line, at_least, at_most, number, times
from ._processes import together, wait_until
from ._zookeeper import SESSION, Bare, Server, create, delete, url_of, watch

OF_KAZOO = 1.4  # target: hand-overs, as a multiple of kazoo's Lock
GROWTH = 1.25  # requests per hand-over with 50 waiters, as a multiple of those with 10
FAIR = 0.99
IDLE = 1.0  # requests a second of a process in which 50 wait: as on Redis
FEW, LARGEST = 10, 50
SIZES = (1, FEW, LARGEST)
SETTLE = 0.7  # seconds until all contenders are in the queue


@dataclass(frozen=True, slots=True)
class Counted(Contended):
    """With the server's counters."""

    packets: float  # received by the server, per hand-over
    connections: float


def measure(quick: bool) -> list[Line]:
    rounds, seconds, sizes = (1, 0.8, (FEW, LARGEST)) if quick else (4, 1.6, SIZES)
    contests = [
        Contest(TOKEN, 1),
        *(Contest(who, size) for size in sizes for who in ("lockfast", "kazoo Lock")),
    ]
    found: dict[Contest, list[Counted]] = {contest: [] for contest in contests}
    with Server() as server:
        for round_number in range(rounds):
            for contest in contests:
                found[contest].append(_contend(server, contest, f"orders:{round_number}", seconds))
        idle = _idle(server, 3.0 if quick else 8.0)
    lines = [line for size in sizes for line in _lines(size, found)]
    few, concurrent = (medians(found[Contest("lockfast", size)]).packets for size in (FEW, LARGEST))
    what = f"requests per hand-over, {LARGEST} wait against {FEW}"
    lines.append(at_most(GROWTH, what, concurrent / few, "×"))
    overlaps = sum(outcome.overlaps for outcomes in found.values() for outcome in outcomes)
    return [*lines, at_most(0, "two inside at once", overlaps, "times"), *idle]


# ---- the table ------------------------------------------------------------------------------


def _lines(size: int, found: dict[Contest, list[Counted]]) -> list[Line]:
    contests = [Contest("lockfast", size), Contest("kazoo Lock", size), Contest(TOKEN, 1)]
    ours, theirs, token = (medians(found[contest]) for contest in contests)
    who = contests[0].who

    of_kazoo, of_token = (faster(found[contests[0]], found[other]) for other in contests[1:])
    kazoo = f"kazoo Lock {number(theirs.handovers)}/s"
    floor = f"bare token {number(token.handovers)}/s"
    p50 = f"kazoo Lock {number(theirs.p50)} µs, bare token {number(token.p50)} µs"
    requests = f"kazoo Lock {number(theirs.packets)}, bare token {number(token.packets)}"
    fairness = f"kazoo Lock {number(theirs.fairness)}"
    hand_overs = f"{who}: hand-overs"
    return [
        times(hand_overs, ours.handovers, "/s", kazoo, of_kazoo, OF_KAZOO),
        Line(hand_overs, ours.handovers, "/s", floor, f"{of_token:.2f}×"),
        Line(f"{who}: release→next p50", ours.p50, "µs", p50, f"{theirs.p50 / ours.p50:.1f}×"),
        Line(f"{who}: release→next p99", ours.p99, "µs", f"kazoo Lock {number(theirs.p99)} µs"),
        Line(f"{who}: requests per hand-over", ours.packets, "", requests),
        at_least(FAIR, f"{who}: fairness", ours.fairness, "", fairness),
        Line(f"{who}: connections", ours.connections, "", f"kazoo Lock {theirs.connections:g}"),
    ]


# ---- one round ------------------------------------------------------------------------------


def _contend(server: Server, contest: Contest, name: str, seconds: float) -> Counted:
    """Run one round. Visits while contenders come and go do not count."""
    found = contest.run(
        _entrance,
        server.port,
        name,
        settle=SETTLE,
        seconds=seconds,
        observe=lambda: (server.received(), server.connections()),
    )
    outcome = found.outcome()
    (before, connections), (after, _) = found.before, found.after
    each = max(outcome.handovers * (found.end - found.begin), 1.0)
    return Counted(**asdict(outcome), packets=(after - before) / each, connections=connections)


@contextmanager
def _entrance(subject: str, process: int, port: int, name: str) -> Entrance:
    if subject == "lockfast":
        with lockfast_on(url_of(port), name) as acquire_of:
            yield acquire_of
    elif subject == TOKEN:
        with closing(Bare(port)) as bare:
            yield lambda index: _token(bare, process, name)
    else:
        kazoo = KazooClient(f"127.0.0.1:{port}", timeout=SESSION)
        kazoo.start()

        def acquire() -> tuple[int, Callable[[], object]]:
            lock = kazoo.Lock(f"/theirs/{name}")
            lock.acquire()
            return 0, lock.release

        try:
            yield lambda index: acquire
        finally:
            kazoo.stop()
            kazoo.close()


def _token(bare: Bare, process: int, name: str) -> Acquire:
    """One of two processes: round t is ours when the node of round t - 1 is gone."""

    def node(round_number: int) -> str:
        return f"/round-{name}-{round_number}"

    # Nodes of the first rounds are there before anybody looks for them.
    assert bare.ask(create(node(process))) == 0
    numbers = itertools.count(process, 2)

    def acquire() -> tuple[int, Callable[[], object]]:
        round_number = next(numbers)
        if round_number and bare.ask(watch(node(round_number - 1))) == 0:
            bare.wait_for_event()
        bare.ask(create(node(round_number + 2)))
        # Had it been gone when we looked, the watch would tell of its coming: never again.
        return round_number, lambda: bare.ask(delete(node(round_number)))

    return acquire


# ---- nothing happens ------------------------------------------------------------------------


def _idle(server: Server, seconds: float) -> list[Line]:
    """Fifty wait behind one who holds it: what their process asks beside what the holder does."""
    url = f"zookeeper://127.0.0.1:{server.port}"
    counted: list[int] = []
    settle = 2 * SETTLE

    def count() -> None:
        counted.append(server.received())

    with lockfast.connect(url) as client, client.lock("idle"):
        begin = time.monotonic()
        for moment in (settle, settle + seconds):
            wait_until(begin + moment)
            count()
        (spent,) = together(
            wait_idly,
            1,
            *(url, "idle", [LARGEST], settle, seconds),
            lasts=settle + seconds + 1.0,
            moments=(settle, settle + seconds),
            observe=count,
        )
    single, threads = ((counted[at + 1] - counted[at] - 1) / seconds for at in (0, 2))
    who = f"{LARGEST} wait in a process, idle"
    holder = f"who holds it {number(single)}/s"
    return [
        at_most(IDLE, f"{who}: requests", threads - single, "/s", holder),
        Line(f"{who}: CPU", spent / seconds, "s/s"),
    ]
