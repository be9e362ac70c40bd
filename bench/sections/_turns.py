"""The floor of a hand-over between processes of one host: a token that goes round, and no store.

Each process has a Unix datagram socket, waits on it, and writes to the next one's. Nothing that
wakes another process can be faster on this machine at this moment.
"""

from __future__ import annotations

import socket
import time

from ._processes import Ready, wait_until


def take_turns(
    index: int, ready: Ready, folder: str, count: int, lasts: float
) -> tuple[float, list[tuple[int, float, float, float]]]:
    """When it began, and this process's visits: turn, asked, acquired, released."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as following,
    ):
        bell.bind(f"{folder}/{index}")
        begin = ready()
        wait_until(begin)
        following.connect(f"{folder}/{(index + 1) % count}")
        bell.settimeout(0.5)
        if index == 0:
            bell.sendto(b"0", f"{folder}/0")  # the first turn is ours
        visits = []
        now = time.monotonic
        while (asked := now()) < begin + lasts:
            try:
                turn = int(bell.recv(32)) + 1
                acquired = now()
                visits.append((turn, asked, acquired, now()))
                following.send(b"%d" % turn)
            except OSError:
                break  # the others' time was over first
        return begin, visits
