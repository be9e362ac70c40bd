"""Hand-overs of one lock on ZooKeeper with up to 50 waiters in four processes.

Each contender acquires, notes the time, and releases, with no work inside. A hand-over is measured
from just before the release until another contender is inside; so it contains the release's own
write. All processes read the same CLOCK_MONOTONIC.

The floor is two processes that pass a token on bare sockets with the least requests that a queue of
nodes needs: each creates its next node, deletes this one, and watches the other's, three requests
per pass. The server counts requests (mntr, packets received) while all contenders are in the queue.
A kazoo Lock is made for each visit, as lockfast's is. At the end 50 threads of one process wait
idly for a lock that another client holds, with the default session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

from kazoo.client import KazooClient

import lockfast

from ._line import Line, at_least, at_most, number, times
from ._processes import Ready, together, wait_until
from ._visits import Entrance, Outcome, Visit, judged, middle, visits_of
from ._zookeeper import SESSION, Bare, Server, create, delete, url_of, watch

OF_KAZOO = 1.4  # target: hand-overs, as a multiple of kazoo's Lock
GROWTH = 1.25  # requests per hand-over with 50 waiters, as a multiple of those with 10
FAIR = 0.99
IDLE = 1.0  # requests a second of a process in which 50 wait: as on Redis
PROCESSES = 4
FEW, LARGEST = 10, 50
SIZES = (1, FEW, LARGEST)
SETTLE = 0.7  # seconds until all contenders are in the queue
PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class ContendedOutcome(Outcome):
    """With the server's counters."""

    requests: float  # per hand-over
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
    rounds, seconds, sizes = (1, 0.8, (FEW, LARGEST)) if quick else (4, 1.6, SIZES)
    contests = [
        Contest("token", 1),
        *(Contest(who, size) for size in sizes for who in ("lockfast", "kazoo Lock")),
    ]
    found: dict[Contest, list[ContendedOutcome]] = {contest: [] for contest in contests}
    with Server() as server:
        for round_number in range(rounds):
            for contest in contests:
                found[contest].append(_contend(server, contest, f"orders:{round_number}", seconds))
        idle = _idle(server, 3.0 if quick else 8.0)
    lines = [line for size in sizes for line in _lines(size, found)]
    few, concurrent = (middle(found[Contest("lockfast", size)]).requests for size in (FEW, LARGEST))
    what = f"requests per hand-over, {LARGEST} wait against {FEW}"
    lines.append(at_most(GROWTH, what, concurrent / few, "×"))
    overlaps = sum(outcome.overlaps for outcomes in found.values() for outcome in outcomes)
    return [*lines, at_most(0, "two inside at once", overlaps, "times"), *idle]


# ---- the table ------------------------------------------------------------------------------


def _lines(size: int, found: dict[Contest, list[ContendedOutcome]]) -> list[Line]:
    contests = [Contest("lockfast", size), Contest("kazoo Lock", size), Contest("token", 1)]
    ours, theirs, token = (middle(found[contest]) for contest in contests)
    who = f"{size} wait" if size > 1 else "1 waits"

    def ratio(other: Contest) -> float:
        pairs = zip(found[contests[0]], found[other], strict=True)
        return median(here.rate / max(there.rate, 0.1) for here, there in pairs)

    kazoo = f"kazoo Lock {number(theirs.rate)}/s"
    floor = f"bare token {number(token.rate)}/s"
    p50 = f"kazoo Lock {number(theirs.p50)} µs, bare token {number(token.p50)} µs"
    requests = f"kazoo Lock {number(theirs.requests)}, bare token {number(token.requests)}"
    fairness = f"kazoo Lock {number(theirs.fairness)}"
    hand_overs = f"{who}: hand-overs"
    return [
        times(hand_overs, ours.rate, "/s", kazoo, ratio(contests[1]), OF_KAZOO),
        Line(hand_overs, ours.rate, "/s", floor, f"{ratio(contests[2]):.2f}×"),
        Line(f"{who}: release→next p50", ours.p50, "µs", p50, f"{theirs.p50 / ours.p50:.1f}×"),
        Line(f"{who}: release→next p99", ours.p99, "µs", f"kazoo Lock {number(theirs.p99)} µs"),
        Line(f"{who}: requests per hand-over", ours.requests, "", requests),
        at_least(FAIR, f"{who}: fairness", ours.fairness, "", fairness),
        Line(f"{who}: connections", ours.connections, "", f"kazoo Lock {theirs.connections:g}"),
    ]


# ---- one round ------------------------------------------------------------------------------


def _contend(server: Server, contest: Contest, name: str, seconds: float) -> ContendedOutcome:
    """Run one round. Visits while contenders come and go do not count."""
    seen: list[tuple[float, int, int]] = []

    def count(begin: float) -> None:
        for moment in (begin + SETTLE, begin + SETTLE + seconds):
            wait_until(moment)
            seen.append((time.monotonic(), server.received(), server.connections()))

    lasts = SETTLE + seconds + 0.1
    members = contest.members()
    arguments = (server.port, contest.subject, name, members, lasts)
    work = _pass_token if contest.subject == "token" else _member
    found = together(work, len(members), *arguments, lasts=lasts + PATIENCE, meanwhile=count)
    everybody = [visits for answers in found for visits in answers]
    (begin, before, connections), (end, after, _) = seen
    outcome = judged(everybody, begin, end)
    each = max(outcome.rate * (end - begin), 1.0)
    return ContendedOutcome(
        **asdict(outcome), requests=(after - before) / each, connections=connections
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
        return visits_of(enter, ready(), members[index], lasts, PATIENCE)


@contextmanager
def _entrance(subject: str, port: int, name: str) -> Iterator[Entrance]:
    """How to enter: a context manager that gives the fence, or 0."""
    if subject == "lockfast":
        with lockfast.connect(url_of(port)) as client:

            @contextmanager
            def enter() -> Iterator[int]:
                with client.lock(name, timeout=PATIENCE) as hold:
                    yield hold.fence

            client.inspect(name)  # connects
            yield enter
        return
    kazoo = KazooClient(f"127.0.0.1:{port}", timeout=SESSION)
    kazoo.start()

    @contextmanager
    def enter() -> Iterator[int]:
        with kazoo.Lock(f"/theirs/{name}"):
            yield 0

    try:
        yield enter
    finally:
        kazoo.stop()
        kazoo.close()


def _pass_token(
    index: int,
    ready: Ready,
    port: int,
    subject: str,
    name: str,
    members: list[int],
    lasts: float,
) -> list[list[Visit]]:
    """One of two processes: turn t is ours when the node of turn t - 1 is gone."""
    bare = Bare(port)

    def node(round_number: int) -> str:
        return f"/turn-{name}-{round_number}"

    # Nodes of the first turns are there before anybody looks for them.
    assert bare.ask(create(node(index))) == 0
    end = ready() + lasts
    visits: list[Visit] = []
    now = time.monotonic
    round_number = index
    while (asked := now()) < end:
        if round_number and bare.ask(watch(node(round_number - 1))) == 0:
            bare.wait_for_event()
        acquired = now()
        bare.ask(create(node(round_number + 2)))
        released = now()
        visits.append((round_number, asked, acquired, released))
        bare.ask(delete(node(round_number)))
        # Had it been gone when we looked, the watch would tell of its coming: never again.
        round_number += 2
    bare.close()
    return [visits]


# ---- nothing happens ------------------------------------------------------------------------


def _idle(server: Server, seconds: float) -> list[Line]:
    """Fifty wait behind one who holds it: what their process asks beside what the holder does."""
    url = f"zookeeper://127.0.0.1:{server.port}"
    counted: list[int] = []

    def count(begin: float) -> None:
        for moment in (begin + 2 * SETTLE, begin + 2 * SETTLE + seconds):
            wait_until(moment)
            counted.append(server.received())

    with lockfast.connect(url) as client, client.lock("idle"):
        count(time.monotonic())
        lasts = 2 * SETTLE + seconds
        arguments = (url, lasts)
        (spent,) = together(_waits, 1, *arguments, lasts=lasts + PATIENCE, meanwhile=count)
    single, threads = ((counted[at + 1] - counted[at] - 1) / seconds for at in (0, 2))
    who = f"{LARGEST} wait in a process, idle"
    holder = f"who holds it {number(single)}/s"
    return [
        at_most(IDLE, f"{who}: requests", threads - single, "/s", holder),
        Line(f"{who}: CPU", spent / seconds, "s/s"),
    ]


def _waits(index: int, ready: Ready, url: str, lasts: float) -> float:
    """CPU seconds that this process spent while all its threads waited."""
    with lockfast.connect(url) as client:
        client.inspect("idle")
        begin = ready()
        end = begin + lasts

        def wait() -> None:
            client.lock("idle").try_acquire(timeout=end + 0.3 - time.monotonic())

        threads = [threading.Thread(target=wait, daemon=True) for _ in range(LARGEST)]
        for thread in threads:
            thread.start()
        wait_until(begin + 2 * SETTLE)
        before = time.process_time()
        wait_until(end)
        spent = time.process_time() - before
        for thread in threads:
            thread.join(5.0)
        return spent
