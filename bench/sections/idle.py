"""Idle waiting on SQLite: 64 threads in 4 processes wait while a fifth process holds the lock."""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time

import lockfast

from ._line import Line, at_most
from ._processes import Ready, together, wait_until

IDLE_CPU = 0.05  # CPU seconds a second, all waiting processes together
PROCESSES = 4
THREADS = 16
SETTLE = 0.7


def measure(quick: bool) -> list[Line]:
    seconds = 2.0 if quick else 6.0  # the keeper refreshes waiters every 1.5 s
    counted: list[int] = []
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:

        def count(begin: float) -> None:
            for moment in (begin + SETTLE, begin + SETTLE + seconds):
                wait_until(moment)
                counted.append(_transactions(f"{folder}/locks.db-shm"))

        arguments = (f"{folder}/locks.db", seconds)
        lasts = SETTLE + seconds + 1.0
        spent = together(_member, PROCESSES + 1, *arguments, lasts=lasts, meanwhile=count)
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


def _member(index: int, ready: Ready, path: str, seconds: float) -> float:
    """Hold the lock in the first process, wait in the others; return the CPU seconds spent."""
    with lockfast.connect(f"sqlite://{path}") as client:
        lock = client.lock("orders:42")
        threads: list[threading.Thread] = []
        if index == 0:
            lock.acquire()
        begin = ready()
        if index > 0:
            patience = max(begin - time.monotonic(), 0.0) + SETTLE + seconds + 0.3
            threads = [
                threading.Thread(target=lambda: lock.try_acquire(timeout=patience), daemon=True)
                for _ in range(THREADS)
            ]
        for thread in threads:
            thread.start()
        wait_until(begin + SETTLE)
        before = time.process_time()
        wait_until(begin + SETTLE + seconds)
        spent = time.process_time() - before
        for thread in threads:
            thread.join(5.0)
        return spent
