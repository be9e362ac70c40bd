"""Idle waiting on SQLite: 64 threads in 4 processes wait while a fifth process holds the lock."""

from __future__ import annotations

import os
import struct
import tempfile

from ._idle import wait_idly
from ._line import Line, at_most
from ._processes import together

IDLE_CPU = 0.05  # CPU seconds a second, all waiting processes together
PROCESSES = 4
THREADS = 16
SETTLE = 0.7


def measure(quick: bool) -> list[Line]:
    seconds = 2.0 if quick else 6.0  # the keeper refreshes waiters every 1.5 s
    counted: list[int] = []
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        threads = [0, *[THREADS] * PROCESSES]
        spent = together(
            wait_idly,
            len(threads),
            *(f"sqlite://{folder}/locks.db", "orders:42", threads, SETTLE, seconds),
            lasts=SETTLE + seconds + 1.0,
            moments=(SETTLE, SETTLE + seconds),
            observe=lambda: counted.append(_transactions(f"{folder}/locks.db-shm")),
        )
    waiting = f"{PROCESSES * THREADS} wait, {PROCESSES} processes × {THREADS} threads"
    rate = (counted[1] - counted[0]) / seconds
    return [
        at_most(IDLE_CPU, f"{waiting}: CPU", sum(spent[1:]) / seconds, "s/s"),
        Line(f"{waiting}: transactions", rate, "/s", "refreshes of waiters"),
        Line("the holder meanwhile: CPU", spent[0] / seconds, "s/s"),
    ]


def _transactions(shm: str) -> int:
    """The commits of SQLite so far: the counter iChange of the WAL index (sqlite.org/walformat).
    Only for a process without the store: closing this file would release SQLite's file locks."""
    descriptor = os.open(shm, os.O_RDONLY)
    try:
        (count,) = struct.unpack("=I", os.pread(descriptor, 4, 8))
    finally:
        os.close(descriptor)
    return int(count)
