"""One process of the demo: reads commands from stdin, one per line, and replies on stdout.

    race bare|lock START END        increment the counter from START to END: "raced HANDOVERS"
    hold NAME LEASE SECONDS         acquire with this timeout: "held FENCE TIME", or "busy"
    write TEXT                      write to the witness with our fence: "accepted" or "refused"
    release                         release the lock: "released" or "lost"

The process exits at the end of stdin, so it cannot outlive the demo. Times are on lockfast's clock,
which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lockfast
from lockfast import clock

COUNTER, SCORES, WITNESS, LOCKS = "counter", "scores", "witness.db", "locks.db"
SLOT = 8


class Worker:
    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._client = lockfast.connect(f"sqlite://{folder / LOCKS}")
        self._counter = os.open(folder / COUNTER, os.O_RDWR)
        with open(folder / SCORES, "r+b") as scores:
            self._scores = mmap.mmap(scores.fileno(), 0)
        self._hold: lockfast.Hold | None = None

    def race(self, kind: str, start: str, end: str) -> str:
        until = float(end)
        lock = self._client.lock("counter") if kind == "lock" else contextlib.nullcontext()
        score = handovers = 0
        time.sleep(max(float(start) - clock.now(), 0.0))
        while clock.now() < until:
            with lock:
                value, last = read_counter(self._counter)
                time.sleep(0)  # between read and write: this is where updates get lost
                write_counter(self._counter, value + 1, self._number)
            score += 1
            handovers += last != self._number
            self._scores[self._number * SLOT : (self._number + 1) * SLOT] = score.to_bytes(SLOT)
        return f"raced {handovers}"

    def hold(self, name: str, lease: str, timeout: str) -> str:
        lock = self._client.lock(name, lease=float(lease), renew=True)
        self._hold = lock.try_acquire(timeout=float(timeout))
        return f"held {self._hold.fence} {clock.now()}" if self._hold else "busy"

    def write(self, text: str) -> str:
        """Write without checking that the lock is still held, as a careless program does."""
        assert self._hold is not None
        with contextlib.closing(sqlite3.connect(self._folder / WITNESS, timeout=10)) as witness:
            with witness:
                done = witness.execute(
                    "UPDATE account SET text = :text, fence = :fence WHERE fence <= :fence",
                    {"text": text, "fence": self._hold.fence},
                )
            return "accepted" if done.rowcount else "refused"

    def release(self) -> str:
        assert self._hold is not None
        try:
            self._hold.release()
        except lockfast.HoldLost:
            return "lost"
        return "released"


def read_counter(counter: int) -> tuple[int, int]:
    """Read the count, and the number of the process that incremented it last."""
    value, last = os.pread(counter, 24, 0).split()
    return int(value), int(last)


def write_counter(counter: int, value: int, number: int) -> None:
    os.pwrite(counter, f"{value:020d} {number:2d}\n".encode(), 0)


def main() -> None:
    worker = Worker(Path(sys.argv[1]), int(sys.argv[2]))
    verbs: dict[str, Callable[..., str]] = {
        "race": worker.race,
        "hold": worker.hold,
        "write": worker.write,
        "release": worker.release,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        print(verbs[verb](*arguments), flush=True)


if __name__ == "__main__":
    main()
