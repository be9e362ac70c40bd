"""PostgreSQL and MariaDB: a lock that is alone, and hand-overs, against bare statements and polls.

The bare cycle is a row with a primary key that is inserted and deleted, by the driver's own cursor,
as a user would write it (psycopg prepares it); in asyncio by the asyncio driver's. Both servers
keep their data in memory mostly (no fsync), so it is the statements that are compared, not the
disk. "A poll" is who tries every 100 ms: one that waits finds the lock free 50 ms too late, on the
average; of many one always looks soon, but not the one that has waited longest, and each asks in
vain ten times a second. So a target for the time between two of them makes sense for one that
waits; for many, that everybody has its turn.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
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
from lockfast.cli.bench_outcome import jain, percentile
from lockfast.stores.sql.threads import BlockingTransport

from ._line import Line, at_least, at_most, number, times
from ._rounds import Subject, interleaved

OF_THE_BARE_CYCLE = 0.8
POLL = 0.1
OF_THE_POLL = 5.0
FAIR = 0.95
WAITERS = (1, 10, 50)
MOST_READS = 5.0  # statements a second of 50 who wait in one process, when they have waited
LONG = 7.0  # so long: who looks at a pace looks less and less, for six seconds
Turn = tuple[int, float, float, str]  # its fence, when it began, when it ended, whose
TABLE = "CREATE TABLE bare (id {key} PRIMARY KEY, who varchar(100))"


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.06) if quick else (15, 0.2)
    lines = []
    for name, kind in (("PostgreSQL", PostgresServer), ("MariaDB", MariaDBServer)):
        with kind() as server:
            lines += _alone(name, server, rounds, seconds)
            lines.append(asyncio.run(_alone_in_tasks(name, server, rounds, seconds)))
            for waiters in (1, 10) if quick else WAITERS:
                lines += _handed_over(name, server.url, waiters, 8 if quick else 30)
            lines.append(_idle(name, server.url, 1.0 if quick else 5.0))
    return lines


# ---- nobody in the way --------------------------------------------------------------------------


def _alone(name: str, server: Any, rounds: int, seconds: float) -> list[Line]:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE.format(key="bytea" if name == "PostgreSQL" else "binary(32)"))
        client = lockfast.connect(server.url)
        subjects: dict[str, Subject] = {
            "lockfast": _cycle(client),
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


async def _alone_in_tasks(name: str, server: Any, rounds: int, seconds: float) -> Line:
    """The same in asyncio, in rounds that take turns."""
    if name == "PostgreSQL":
        theirs: Any = await psycopg.AsyncConnection.connect(server.url, autocommit=True)
    else:
        waiter = {"host": "127.0.0.1", "port": server.port, "user": "root", "autocommit": True}
        theirs = await asyncmy.connect(**waiter, database=server.database)
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
    """Seconds a cycle took, and cycles a second."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or not count:
        await cycle()
        count += 1
    return took / count, count / took


def _cycle(client: lockfast.Client) -> Subject:
    def cycle(count: int) -> None:
        for _ in range(count):
            with client.lock("orders:42"):
                pass

    return cycle


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
    """Two processes with so many threads together; from a release to the next that is inside."""
    ours, polled = (_turns(url, waiters, each, polls=polls) for polls in (False, True))
    took, theirs = (percentile(_gaps(turns), 0.5) for turns in (ours, polled))
    what = f"{name}: {waiters} wait: release→next p50"
    if waiters == 1:
        return [times(what, took * 1e3, "ms", "a poll every 100 ms", theirs / took, OF_THE_POLL)]
    fair, unfair = _fairness(ours, waiters), _fairness(polled, waiters)
    return [
        Line(what, took * 1e3, "ms", "a poll every 100 ms", f"{theirs / took:.2f}×"),
        at_least(FAIR, f"{name}: {waiters} wait: Jain", fair, "", f"polls {number(unfair)}"),
    ]


def _gaps(turns: list[Turn]) -> list[float]:
    pairs = itertools.pairwise(turns)
    return [after[1] - before[2] for before, after in pairs if before[3] != after[3]]


def _fairness(turns: list[Turn], waiters: int) -> float:
    """Of the first half, in which everybody still wants it."""
    shares = Counter(turn[3] for turn in turns[: len(turns) // 2])
    return jain([*shares.values(), *[0] * (waiters + 1 - len(shares))])


def _turns(url: str, waiters: int, each: int, *, polls: bool) -> list[Turn]:
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    shares = [(waiters + 1) // 2, (waiters + 1) - (waiters + 1) // 2]
    gate = context.Barrier(len(shares))
    crew = [
        context.Process(target=_contend, args=(url, share, each, polls, gate, told))
        for share in shares
    ]
    for process in crew:
        process.start()
    turns: list[Turn] = sorted(turn for _ in crew for turn in told.get())
    for process in crew:
        process.join()
    return turns[: len(turns) * 2 // 3]  # those at the end find nobody in their way


def _contend(url: str, threads: int, each: int, polls: bool, gate: Any, told: Any) -> None:
    client = lockfast.connect(url)
    turns: list[Turn] = []

    def contend() -> None:
        lock = client.lock("contended")
        for _ in range(each):
            if polls:
                while (hold := lock.try_acquire()) is None:
                    time.sleep(POLL)
            else:
                hold = lock.acquire()
            inside = time.monotonic()
            time.sleep(0.002)  # some work, so that the others are there
            leaving = time.monotonic()
            hold.release()
            me = f"{threading.get_ident()} of {os.getpid()}"
            turns.append((hold.fence, inside, leaving, me))

    crew = [threading.Thread(target=contend) for _ in range(threads)]
    client.names()
    gate.wait()
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    told.put(turns)
    client.close()


# ---- waiting ------------------------------------------------------------------------------------


def _idle(name: str, url: str, seconds: float) -> Line:
    """What 50 threads of a process that wait for one lock ask of the server."""
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
    """How many requests all clients of this process send meanwhile."""
    count, send = 0, BlockingTransport.send

    def counting(self: BlockingTransport, request: Any, budget: float) -> Any:
        nonlocal count
        count += 1
        return send(self, request, budget)

    BlockingTransport.send = counting  # type: ignore[method-assign]
    try:
        work()
    finally:
        BlockingTransport.send = send  # type: ignore[method-assign]
    return count
