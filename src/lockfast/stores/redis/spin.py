"""Adaptive spinning: poll the socket for up to 100 µs before blocking, if replies arrive that fast.

Blocking and being woken takes longer than a server on the same host, or next to it, needs to reply,
and costs about as much CPU time as polling. With a distant server spinning fails; failures are
counted, and the next attempts become rarer and rarer. On a single core spinning would keep the
server from running, and with many threads it would take the core from threads that have work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

POLLS = 160  # about 100 µs
MOST_SKIPPED = 1023
BACK_OFF = 16
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NEVER = 1 << 62

Ready = Sequence[tuple[int, int]]


class Spin:
    """The spinning state of one connection, or of a group on which one thread sends together."""

    __slots__ = ("_failed", "_poll", "_skip")

    def __init__(self, poll: Callable[[int], Ready]) -> None:
        self._poll = poll
        self._skip = 0 if CORES > 1 else NEVER  # replies to wait for without spinning
        self._failed = 0  # how many replies were skipped after the last failure

    def poll(self) -> Ready:
        """Spin, and return what is readable. Empty: the caller has to block until something is."""
        if self._skip > 0:
            self._skip -= 1
            return ()
        poll = self._poll
        for _ in range(POLLS):
            if ready := poll(0):
                self._failed >>= 1
                return ready
        self._skip = self._failed = min(2 * self._failed + 1, MOST_SKIPPED)
        return ()

    def back_off(self) -> None:
        """Do not spin for the next `BACK_OFF` replies: another thread sent a command before this
        one, or waits for what this one holds, and needs the core."""
        self._skip = max(self._skip, BACK_OFF)


class SharingDetector:
    """Notices that several threads use one transport, and makes them back off from spinning."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: Spin | None = None

    def used_by(self, spin: Spin) -> None:
        """Note a command; back off if the previous one was another thread's."""
        if self._latest is not spin:
            self._latest = spin
            spin.back_off()
