"""Whether a server is so near that who asks looks for its answer, instead of sleeping for it.

To be put to sleep and woken takes longer than the answer of a server on the same host, or next to
it, and costs the processor about as much as to look for the answer some times. Far away it is in
vain; that is noticed, and tried again more and more seldom. On a single processor it would keep the
server from answering, and among many threads it would keep those from working who could.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

LOOKS = 160  # some 100 µs
MOST_ASLEEP = 1023
CROWDED = 16
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NEVER = 1 << 62

Ready = Sequence[tuple[int, int]]


class Near:
    """Of one connection, or of several on which the same thread asks together."""

    __slots__ = ("_asleep", "_poll", "_vain")

    def __init__(self, poll: Callable[[int], Ready]) -> None:
        self._poll = poll
        self._asleep = 0 if CORES > 1 else NEVER  # of so many answers we do not even try it
        self._vain = 0  # so many they were after we tried in vain

    def look(self) -> Ready:
        """What there is to read. Nothing: sleep until there is."""
        if self._asleep > 0:
            self._asleep -= 1
            return ()
        poll = self._poll
        for _ in range(LOOKS):
            if ready := poll(0):
                self._vain >>= 1
                return ready
        self._asleep = self._vain = min(2 * self._vain + 1, MOST_ASLEEP)
        return ()

    def crowded(self) -> None:
        """Another thread asked before this one, or waits for what it has: the processor is for
        them, for some time."""
        self._asleep = max(self._asleep, CROWDED)


class Company:
    """The threads that ask through one transport: who did not ask last is not alone."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: Near | None = None

    def asks(self, near: Near) -> None:
        if self._latest is not near:
            self._latest = near
            near.crowded()
