"""Idle waiting on Redis: 50 threads of one process wait for a lock that another client holds.

The threads start one after another within two seconds; commands sent during that time do not count.
The holder has a long lease and sends nothing.
"""

from __future__ import annotations

import lockfast

from ._idle import wait_idly
from ._line import Line, at_most, number
from ._processes import together
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
        client.lock(NAME, lease=600, renew=False).acquire()
        (spent,) = together(
            wait_idly,
            1,
            *(server.url, NAME, [THREADS], SETTLE, seconds, ARRIVE),
            lasts=ARRIVE + SETTLE + seconds + 1.0,
            moments=(ARRIVE + SETTLE, ARRIVE + SETTLE + seconds),
            observe=lambda: counted.append((server.calls(), server.connections())),
        )
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
