"""Fences on one host: a clock that all its processes share, so that a grant writes nothing for it.

A fence is the host's BOOTTIME in µs plus an offset that is fixed per boot. Grants of a file are
made under SQLite's write lock, one after the other, and each reads the clock while it has the
lock; between two of them lies at least a commit, which takes several µs, and the clock never
steps. So the later fence is the greater one, in whatever process. Within a process we count up if
the clock has not moved.

Across boots the clock starts again. The file therefore keeps a *ceiling* that every fence stays
below: it is raised a minute ahead, before fences reach it, and a new boot begins above it, or at
the wall clock, whichever is higher. The wall clock is looked at only then, and when a new file is
made.
"""

from __future__ import annotations

from collections.abc import Callable

AHEAD = 60_000_000  # µs; how far the ceiling is raised at a time


class FenceClock:
    """One connection's source of fences. ``ceiling`` is what the file says, as far as we know."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.offset = 0
        self.ceiling = 0
        self.last = 0
        self._low_until = 0.0  # on the clock: so long we are far from the ceiling

    def know(self, offset: int, ceiling: int) -> None:
        """What the file says."""
        self.offset, self.ceiling = offset, ceiling
        self._low_until = (ceiling - offset - AHEAD // 10) / 1e6

    def starts_again(self, offset: int, ceiling: int) -> bool:
        """Is the clock behind where it was when the ceiling was last raised? Then this is another
        boot, also where the system does not tell which."""
        return offset + int(self._clock() * 1e6) < ceiling - AHEAD

    def begin(self, wall: float, ceiling: int) -> tuple[int, int]:
        """A new boot, or a new file: the offset and the ceiling to write down."""
        start = max(int(wall * 1e6), ceiling + 1)
        return start - int(self._clock() * 1e6), start + AHEAD

    def seen(self) -> int:
        """A number that no earlier fence exceeds and every later one does."""
        self.last = max(self.last, self.offset + int(self._clock() * 1e6))
        return self.last

    def next(self) -> int:
        """The next fence. Only under the write lock."""
        self.last = max(self.last + 1, self.offset + int(self._clock() * 1e6))
        return self.last

    @property
    def near_the_ceiling(self) -> bool:
        return self._clock() > self._low_until
