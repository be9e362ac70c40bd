"""The rule of a semaphore: never more permits than its size, and one size at a time.

A semaphore can be resized while it is held. Then the rows of all holders and waiters have the new
size. Holders of more permits than the new size continue, but nobody is let in beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.network import Seen
from lab.simulation.rules import Accuse, Rule
from lockfast.core.law import Row


class PermitsRule(Rule):
    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.sizes = {size}  # all sizes that were ever requested
        self.resizes = 0
        self._asked_at = 0.0

    def resizing(self, size: int, at: float) -> bool:
        """Record that a client requests a resize, which may take effect from now on. Return True if
        no other resize can be under way."""
        sole = at > self._asked_at + 1.0
        self.sizes.add(size)
        self.resizes += 1
        self._asked_at = at
        if self.history is not None:
            self.history.slots = max(self.sizes)
        return sole

    def resized(self, size: int, before: Seen, after: Seen) -> None:
        """Check a resize that is done, without another one at the same time."""
        known = {row.id for kind in before for row in kind}
        for row in (row for kind in after for row in kind):
            if row.id in known and row.slots != size:
                self.accuse("size", f"{row.id} on {self.name} was not resized to {size}")

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        sizes = {row.slots for kind in seen for row in kind}
        if len(sizes) > 1 or not sizes <= self.sizes:
            self.accuse("size", f"{self.name} has the sizes {sorted(sizes)} at the same time")
        if sizes:
            self.size = min(sizes)
        if fresh:
            super().look(seen, fresh)
