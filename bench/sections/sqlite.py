"""Uncontended cycles on SQLite: against a bare row cycle, and against `filelock`.

The bare row cycle is the limit of any lock that keeps a row in SQLite: a row written in one
transaction and deleted in another, with the same durability, and nothing else.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable

import filelock

import lockfast
import lockfast.aio

from ._line import Line, number, times
from ._processes import Ready, together, wait_until
from ._rounds import Rounds, Subject, cycles, gathered, interleaved

OF_THE_ROW_CYCLE = 0.5
OF_FILELOCK = 1.5
PROCESSES = 4
ROW = """CREATE TABLE IF NOT EXISTS holds (
    name TEXT PRIMARY KEY, id TEXT NOT NULL, fence INTEGER NOT NULL, ends REAL NOT NULL
) WITHOUT ROWID"""


def measure(quick: bool) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        return [*_uncontended(folder, quick), *_four(folder, quick)]


def _uncontended(folder: str, quick: bool) -> list[Line]:
    with (
        asyncio.Runner() as runner,
        lockfast.connect(f"sqlite://{folder}/locks.db") as client,
    ):
        tasks = lockfast.aio.connect(f"sqlite://{folder}/locks.db")
        file_lock = filelock.FileLock(f"{folder}/a.lock")
        subjects = {
            "lockfast": cycles(lambda: client.lock("orders:42")),
            "asyncio": gathered(runner, 1, lambda index: tasks.lock("orders:43")),
            "row cycle": _row_cycle(f"{folder}/rows.db", "orders:42"),
            "filelock": cycles(lambda: file_lock),
        }
        found = interleaved(subjects, rounds=5 if quick else 15, seconds=0.05 if quick else 0.15)
        runner.run(tasks.close())
    return [
        _line(found, "1 process: with client.lock(name)", "lockfast", "row cycle"),
        _line(found, "1 process: with client.lock(name)", "lockfast", "filelock"),
        _line(found, "1 process: async with aclient.lock(name)", "asyncio", "row cycle"),
        _line(found, "1 process: async with aclient.lock(name)", "asyncio", "filelock"),
    ]


def _line(found: Rounds, what: str, subject: str, other: str) -> Line:
    least = OF_FILELOCK if other == "filelock" else OF_THE_ROW_CYCLE
    against = f"{other} {number(found.per_second(other))}/s"
    ratio = found.faster(subject, other)
    return times(what, found.per_second(subject), "cycles/s", against, ratio, least)


def _four(folder: str, quick: bool) -> list[Line]:
    """Names of their own, one file: only the file's write lock is between them."""
    rounds, seconds = (1, 0.7) if quick else (4, 0.8)
    counts = together(_member, PROCESSES, folder, rounds, seconds, lasts=2 * rounds * seconds)
    ours = sum(count for count, _ in counts) / (rounds * seconds)
    bare = sum(count for _, count in counts) / (rounds * seconds)
    what = f"{PROCESSES} processes, a name each: together"
    against = f"row cycle {number(bare)}/s"
    return [Line(what, ours, "cycles/s", against, f"{ours / bare:.2f}×")]


def _member(
    index: int, ready: Ready, folder: str, rounds: int, seconds: float
) -> tuple[float, float]:
    """How often it came round with lockfast, and with the bare rows, taking turns."""
    with lockfast.connect(f"sqlite://{folder}/four.db") as client:
        subjects = [
            cycles(lambda: client.lock(f"orders:{index}")),
            _row_cycle(f"{folder}/four-rows.db", f"orders:{index}"),
        ]
        for subject in subjects:
            subject(10)
        begin = ready()
        counts = [0, 0]
        for round_number in range(2 * rounds):
            wait_until(begin + round_number * seconds)
            counts[round_number % 2] += _within(
                subjects[round_number % 2], begin + (round_number + 1) * seconds
            )
        return counts[0], counts[1]


def _within(subject: Subject, until: float) -> int:
    count = 0
    while time.monotonic() < until:
        subject(10)
        count += 10
    return count


def _row_cycle(path: str, name: str) -> Subject:
    rows = sqlite3.connect(path, isolation_level=None, timeout=10)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = NORMAL")
    rows.execute(ROW)
    execute: Callable[..., object] = rows.execute

    def cycle(count: int) -> None:
        for fence in range(count):
            execute("BEGIN IMMEDIATE")
            execute("INSERT INTO holds VALUES (?, ?, ?, ?)", (name, "an id", fence, 30.0))
            execute("COMMIT")
            execute("BEGIN IMMEDIATE")
            execute("DELETE FROM holds WHERE name = ? AND id = ?", (name, "an id"))
            execute("COMMIT")

    return cycle
