"""Waiting on SQLite while nothing happens: 64 threads in 4 processes, and somebody who holds it."""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time

import lockfast

from ._line import Line, at_most
from ._processes import Ready, together, wait_until

NEAR_ZERO = 0.05  # CPU seconds a second, all waiting processes together
PROCESSES = 4
THREADS = 16
SETTLE = 0.7


def measure(quick: bool) -> list[Line]:
    seconds = 2.0 if quick else 6.0  # a waiter refreshes its place every 1.5 s
    counted: list[int] = []
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:

        def count(begin: float) -> None:
            for moment in (begin + SETTLE, begin + SETTLE + seconds):
                wait_until(moment)
                counted.append(_transactions(f"{folder}/locks.db-shm"))

        told = (f"{folder}/locks.db", seconds)
        lasts = SETTLE + seconds + 1.0
        spent = together(_member, PROCESSES + 1, *told, lasts=lasts, meanwhile=count)
    waiting = f"{PROCESSES * THREADS} wait, {PROCESSES} processes × {THREADS} threads"
    rate = (counted[1] - counted[0]) / seconds
    return [
        at_most(NEAR_ZERO, f"{waiting}: CPU", sum(spent[1:]) / seconds, "s/s"),
        Line(f"{waiting}: transactions", rate, "/s", "refreshes of places"),
        Line("the holder meanwhile: CPU", spent[0] / seconds, "s/s"),
    ]


def _transactions(shm: str) -> int:
    """How many SQLite has committed: the counter iChange of the WAL index (sqlite.org/walformat).
    Only in a process that has not the store open: closing this file would drop its locks."""
    descriptor = os.open(shm, os.O_RDONLY)
    try:
        (count,) = struct.unpack("=I", os.pread(descriptor, 4, 8))
    finally:
        os.close(descriptor)
    return int(count)


def _member(index: int, ready: Ready, path: str, seconds: float) -> float:
    """The first holds it, the others wait: CPU seconds that this process spent meanwhile."""
    with lockfast.connect(f"sqlite://{path}") as client:
        lock = client.lock("orders:42")
        crowd: list[threading.Thread] = []
        if index == 0:
            lock.acquire()
        begin = ready()
        if index > 0:
            patience = max(begin - time.monotonic(), 0.0) + SETTLE + seconds + 0.3
            crowd = [
                threading.Thread(target=lambda: lock.try_acquire(timeout=patience), daemon=True)
                for _ in range(THREADS)
            ]
        for thread in crowd:
            thread.start()
        wait_until(begin + SETTLE)
        before = time.process_time()
        wait_until(begin + SETTLE + seconds)
        spent = time.process_time() - before
        for thread in crowd:
            thread.join(5.0)
        return spent
