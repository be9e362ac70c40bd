"""Idle waiting on Redis: 50 threads of one process wait for a lock that another client holds.

The threads start one after another within two seconds; commands sent during that time do not count.
The holder has a long lease and sends nothing.
"""

from __future__ import annotations

import threading
import time

import lockfast

from ._line import Line, at_most, number
from ._processes import Ready, together, wait_until
from ._redis import SENT, Server, added

COMMANDS = 1.0  # a second
IDLE_CPU = 0.05  # CPU seconds a second
THREADS = 50
ARRIVE = 2.0
SETTLE = 1.0
NAME = "orders:42"


def measure(quick: bool) -> list[Line]:
    seconds = 3.0 if quick else 9.0  # the keeper refreshes waiters every 1.5 s
    counted: list[tuple[dict[str, int], int]] = []
    with Server() as server, lockfast.connect(server.url) as client:

        def count(begin: float) -> None:
            for moment in (begin + ARRIVE + SETTLE, begin + ARRIVE + SETTLE + seconds):
                wait_until(moment)
                counted.append((server.calls(), server.connections()))

        client.lock(NAME, lease=600, renew=False).acquire()
        lasts = ARRIVE + SETTLE + seconds + 1.0
        arguments = (server.url, seconds)
        (spent,) = together(_member, 1, *arguments, lasts=lasts, meanwhile=count)
    (before, _), (after, connections) = counted
    who = f"{THREADS} wait in one process"
    scripts = added(after, before, ("evalsha", "eval")) / seconds
    inside = f"{number(added(after, before) / seconds)}/s with those in scripts"
    sent = added(after, before, (*SENT, "ping")) / seconds
    return [
        Line(f"{who}: scripts", scripts, "/s", "refreshes of waiters"),
        at_most(COMMANDS, f"{who}: commands", sent, "/s", inside),
        at_most(IDLE_CPU, f"{who}: CPU", spent / seconds, "s/s"),
        Line(f"{who}: connections", connections - 1, "", "without the holder's"),
    ]


def _member(index: int, ready: Ready, url: str, seconds: float) -> float:
    """Return the CPU seconds that this process spent while all threads waited."""
    with lockfast.connect(url) as client:
        begin = ready()
        end = begin + ARRIVE + SETTLE + seconds

        def wait(number: int) -> None:
            wait_until(begin + ARRIVE * number / THREADS)
            client.lock(NAME).try_acquire(timeout=end + 0.3 - time.monotonic())

        threads = [
            threading.Thread(target=wait, args=(number,), daemon=True) for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        wait_until(end - seconds)
        before = time.process_time()
        wait_until(end)
        spent = time.process_time() - before
        for thread in threads:
            thread.join(5.0)
        return spent
