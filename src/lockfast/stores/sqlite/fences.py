"""Fences from a clock that all processes of a host share, so that a grant need not write a counter.

A fence is the host's BOOTTIME in µs plus an offset that is fixed per boot. Grants are made under
SQLite's write lock, one after the other, and each reads the clock while it has the lock. Between
two grants there is at least a commit, which takes a few µs, and the clock never steps. So the later
fence is the greater one, in any process. Within a process the fence is incremented if the clock has
not advanced.

The clock starts again at each boot. The file therefore stores a *ceiling* above all fences: it is
raised a minute ahead, before fences reach it, and a new boot begins above it or at the wall clock,
whichever is higher. The wall clock is read only then, and when a new file is created.
"""

from __future__ import annotations

from collections.abc import Callable

AHEAD = 60_000_000  # µs by which the ceiling is raised at a time


class FenceClock:
    """The fences of one connection. ``ceiling`` is the file's, as last read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.offset = 0
        self.ceiling = 0
        self.last = 0
        self._safe_until = 0.0  # on the clock: until then fences stay well below the ceiling

    def load(self, offset: int, ceiling: int) -> None:
        """Set the values that the file stores."""
        self.offset, self.ceiling = offset, ceiling
        self._safe_until = (ceiling - offset - AHEAD // 10) / 1e6

    def is_new_boot(self, offset: int, ceiling: int) -> bool:
        """Is the clock behind its value when the ceiling was last raised? Then this is another
        boot, even where the system has no boot id."""
        return offset + int(self._clock() * 1e6) < ceiling - AHEAD

    def restart(self, wall: float, ceiling: int) -> tuple[int, int]:
        """The offset and the ceiling to store for a new boot or a new file."""
        start = max(int(wall * 1e6), ceiling + 1)
        return start - int(self._clock() * 1e6), start + AHEAD

    def current(self) -> int:
        """A number that no earlier fence exceeds and every later fence exceeds."""
        self.last = max(self.last, self.offset + int(self._clock() * 1e6))
        return self.last

    def next(self) -> int:
        """The next fence. The caller has the write lock."""
        self.last = max(self.last + 1, self.offset + int(self._clock() * 1e6))
        return self.last

    @property
    def ceiling_due(self) -> bool:
        return self._clock() > self._safe_until
