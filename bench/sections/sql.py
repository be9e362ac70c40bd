"""PostgreSQL and MariaDB: uncontended cycles and hand-overs, against bare statements and polling.

The bare cycle is a row with a primary key that is inserted and deleted, by the driver's own cursor,
as a user would write it (psycopg prepares it); in asyncio by the asyncio driver's. Both servers
run without fsync, so the comparison is about statements, not the disk. "A poll" is a client that
tries every 100 ms: a single waiter finds the lock free 50 ms late on average; of many waiters one
always tries soon, but not the one that waited longest, and each fails ten times a second. So with
one waiter the target is the time between holders, with many it is fairness.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import asyncmy
import psycopg

import lockfast
from lab.servers.mariadb_server import MariaDBServer
from lab.servers.postgres_server import PostgresServer
from lockfast.cli.bench_contest import jain, percentile
from lockfast.stores.sql.channel import ThreadChannel

from ._line import Line, at_least, at_most, number, times
from ._processes import Ready, together
from ._rounds import Subject, cycles, interleaved

OF_THE_BARE_CYCLE = 0.8
POLL = 0.1
OF_THE_POLL = 5.0
FAIR = 0.95
WAITERS = (1, 10, 50)
MOST_READS = 5.0  # statements per second of 50 waiters in one process, after a long wait
LASTS = 80.0  # seconds, at most, of a contest
LONG = 7.0  # seconds; the pace of polling falls for six seconds
Visit = tuple[int, float, float, str]  # fence, begin, end, contender
TABLE = "CREATE TABLE bare (id {key} PRIMARY KEY, who varchar(100))"


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.06) if quick else (15, 0.2)
    lines = []
    for name, kind in (("PostgreSQL", PostgresServer), ("MariaDB", MariaDBServer)):
        with kind() as server:
            lines += _uncontended(name, server, rounds, seconds)
            lines.append(asyncio.run(_uncontended_in_tasks(name, server, rounds, seconds)))
            for waiters in (1, 10) if quick else WAITERS:
                lines += _handed_over(name, server.url, waiters, 8 if quick else 30)
            lines.append(_idle(name, server.url, 1.0 if quick else 5.0))
    return lines


# ---- uncontended -------------------------------------------------------------------------------


def _uncontended(name: str, server: Any, rounds: int, seconds: float) -> list[Line]:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE.format(key="bytea" if name == "PostgreSQL" else "binary(32)"))
        client = lockfast.connect(server.url)
        subjects: dict[str, Subject] = {
            "lockfast": cycles(lambda: client.lock("orders:42")),
            "bare": _bare(cursor),
            "locks": _database_locks(cursor, name == "PostgreSQL"),
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
        client.close()
    what, value = f"{name}: with client.lock(name)", found.per_second("lockfast")
    bare = found.faster("lockfast", "bare")
    locks = found.faster("lockfast", "locks")
    theirs = "advisory lock, a session's" if name == "PostgreSQL" else "GET_LOCK, a session's"
    return [
        times(what, value, "/s", "insert + delete, driver's cursor", bare, OF_THE_BARE_CYCLE),
        Line(what, value, "/s", theirs, f"{locks:.2f}×"),
    ]


async def _uncontended_in_tasks(name: str, server: Any, rounds: int, seconds: float) -> Line:
    """Measure asyncio in alternating rounds."""
    if name == "PostgreSQL":
        theirs: Any = await psycopg.AsyncConnection.connect(server.url, autocommit=True)
    else:
        options = {"host": "127.0.0.1", "port": server.port, "user": "root", "autocommit": True}
        theirs = await asyncmy.connect(**options, database=server.database)
    key = bytes(range(32))
    async with lockfast.aio.connect(server.url) as client, theirs.cursor() as cursor:

        async def ours() -> None:
            async with client.lock("orders:42"):
                pass

        async def bare() -> None:
            await cursor.execute("INSERT INTO bare VALUES (%s, %s)", (key, "somebody"))
            await cursor.execute("DELETE FROM bare WHERE id = %s", (key,))

        ratios, rates = [], []
        for _ in range(rounds):
            (mine, rate), (other, _) = [await _timed(one, seconds) for one in (ours, bare)]
            ratios.append(other / mine)
            rates.append(rate)
        closed = theirs.close()
        if closed is not None:
            await closed
    what = f"{name}: asyncio: async with client.lock(name)"
    ratio = f"{median(ratios):.2f}×"
    return Line(what, median(rates), "/s", "insert + delete, asyncio cursor", ratio)


async def _timed(cycle: Callable[[], Awaitable[None]], seconds: float) -> tuple[float, float]:
    """Seconds per cycle, and cycles per second."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or not count:
        await cycle()
        count += 1
    return took / count, count / took


def _bare(cursor: Any) -> Subject:
    key = bytes(range(32))

    def cycle(count: int) -> None:
        for _ in range(count):
            cursor.execute("INSERT INTO bare VALUES (%s, %s)", (key, "somebody"))
            cursor.execute("DELETE FROM bare WHERE id = %s", (key,))

    return cycle


def _database_locks(cursor: Any, postgres: bool) -> Subject:
    take = "SELECT pg_advisory_lock(%s)" if postgres else "SELECT GET_LOCK(%s, 10)"
    give = "SELECT pg_advisory_unlock(%s)" if postgres else "SELECT RELEASE_LOCK(%s)"

    key = 42 if postgres else "forty-two"

    def cycle(count: int) -> None:
        for _ in range(count):
            cursor.execute(take, (key,))
            cursor.execute(give, (key,))

    return cycle


# ---- hand-overs ---------------------------------------------------------------------------------


def _handed_over(name: str, url: str, waiters: int, each: int) -> list[Line]:
    """Measure two processes with so many contending threads together."""
    ours, polled = (_visits_of(url, waiters, each, polls=polls) for polls in (False, True))
    took, theirs = (percentile(_gaps(visits), 0.5) for visits in (ours, polled))
    what = f"{name}: {waiters} wait: release→next p50"
    if waiters == 1:
        return [times(what, took * 1e3, "ms", "a poll every 100 ms", theirs / took, OF_THE_POLL)]
    fair, unfair = _fairness(ours, waiters), _fairness(polled, waiters)
    return [
        Line(what, took * 1e3, "ms", "a poll every 100 ms", f"{theirs / took:.2f}×"),
        at_least(FAIR, f"{name}: {waiters} wait: fairness", fair, "", f"polls {number(unfair)}"),
    ]


def _gaps(visits: list[Visit]) -> list[float]:
    pairs = itertools.pairwise(visits)
    return [after[1] - before[2] for before, after in pairs if before[3] != after[3]]


def _fairness(visits: list[Visit], waiters: int) -> float:
    """Fairness in the first half, while all contenders still contend."""
    shares = Counter(visit[3] for visit in visits[: len(visits) // 2])
    return jain([*shares.values(), *[0] * (waiters + 1 - len(shares))])


def _visits_of(url: str, waiters: int, each: int, *, polls: bool) -> list[Visit]:
    shares = [(waiters + 1) // 2, (waiters + 1) - (waiters + 1) // 2]
    noted = together(_contend, len(shares), url, shares, each, polls, lasts=LASTS)
    visits = sorted(visit for process in noted for visit in process)
    return visits[: len(visits) * 2 // 3]  # the last visits are uncontended


def _contend(
    index: int, ready: Ready, url: str, threads: list[int], each: int, polls: bool
) -> list[Visit]:
    """One process: so many visits of each of its threads.

    Not the contest of the other sections, which lasts a given time: a client that polls takes the
    lock again before the others look, so that in a given time they would hardly get it at all.
    """
    client = lockfast.connect(url)
    visits: list[Visit] = []

    def contend() -> None:
        lock = client.lock("contended")
        for _ in range(each):
            if polls:
                while (hold := lock.try_acquire()) is None:
                    time.sleep(POLL)
            else:
                hold = lock.acquire()
            inside = time.monotonic()
            time.sleep(0.002)  # some work, so that the others queue
            leaving = time.monotonic()
            hold.release()
            me = f"{threading.get_ident()} of {os.getpid()}"
            visits.append((hold.fence, inside, leaving, me))

    crew = [threading.Thread(target=contend) for _ in range(threads[index])]
    client.names()
    ready()
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    client.close()
    return visits


# ---- waiting ------------------------------------------------------------------------------------


def _idle(name: str, url: str, seconds: float) -> Line:
    """Count the statements of 50 threads of one process that wait for one lock."""
    holder, client = lockfast.connect(url), lockfast.connect(url)
    hold = holder.lock("idle").acquire()
    crew = [threading.Thread(target=_patient, args=(client,)) for _ in range(50)]
    for thread in crew:
        thread.start()
    while len(holder.inspect("idle").waiters) < 50:
        time.sleep(0.02)
    time.sleep(LONG)
    sent = _counted(lambda: time.sleep(seconds))
    hold.release()
    for thread in crew:
        thread.join()
    holder.close()
    client.close()
    return at_most(MOST_READS, f"{name}: 50 wait in one process: statements", sent / seconds, "/s")


def _patient(client: lockfast.Client) -> None:
    with client.lock("idle", timeout=60):
        pass


def _counted(work: Callable[[], None]) -> int:
    """Count the requests of all clients of this process during ``work``."""
    count, send = 0, ThreadChannel.send

    def counting(self: ThreadChannel, request: Any, budget: float) -> Any:
        nonlocal count
        count += 1
        return send(self, request, budget)

    ThreadChannel.send = counting  # type: ignore[method-assign]
    try:
        work()
    finally:
        ThreadChannel.send = send  # type: ignore[method-assign]
    return count
