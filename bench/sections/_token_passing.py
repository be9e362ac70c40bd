"""The floor for a hand-over between processes of one host: a token is passed on, without a store.

Each process waits on a Unix datagram socket and writes to the next process's. Nothing that wakes
another process can be faster on this machine at this moment.
"""

from __future__ import annotations

import socket
import time

from ._processes import Ready, wait_until


def pass_token(
    index: int, ready: Ready, folder: str, count: int, lasts: float
) -> tuple[float, list[tuple[int, float, float, float]]]:
    """Return the start time and this process's visits: round, asked, acquired, released."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as following,
    ):
        inbox.bind(f"{folder}/{index}")
        begin = ready()
        wait_until(begin)
        following.connect(f"{folder}/{(index + 1) % count}")
        inbox.settimeout(0.5)
        if index == 0:
            inbox.sendto(b"0", f"{folder}/0")  # the token starts here
        visits = []
        now = time.monotonic
        while (asked := now()) < begin + lasts:
            try:
                round_number = int(inbox.recv(32)) + 1
                acquired = now()
                visits.append((round_number, asked, acquired, now()))
                following.send(b"%d" % round_number)
            except OSError:
                break  # the other processes ended first
        return begin, visits
