"""The rule of a read-write lock: never a reader and a writer together, never two writers.

Who writes is known from what its client asked for, until that client says that it only reads from
now on (a downgrade). Then it keeps its hold and its fence, and the store lets others read.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.network import Seen
from lab.simulation.rules import Accuse, Rule
from lockfast.core.law import Row
from lockfast.core.ledger import Held
from lockfast.model import ALL_SLOTS


class ReadWriteRule(Rule):
    def __init__(self, accuse: Accuse, name: str) -> None:
        super().__init__(accuse, name, ALL_SLOTS)
        self.downgrades: set[str] = set()

    def clash(self, takes: Sequence[int]) -> bool:
        return ALL_SLOTS in takes and len(takes) > 1

    def fits(self, first: Row, seen: Seen) -> bool:
        if self.takes[first.id] == ALL_SLOTS:
            return not seen.holds
        return all(row.take != ALL_SLOTS for row in seen.holds)

    def downgrading(self, held: Held, at: float) -> None:
        """Its client writes no more. For its history the writer may end from now on."""
        self.takes[held.claim.id] = 1
        self.downgrades.add(held.claim.id)
        if self.history is not None:
            self.history.broken(held.claim.id, at)

    def downgraded(self, held: Held, fence: int, seen: Seen) -> None:
        """The store was told, and said yes: it is still held, as by a reader."""
        if held.fence != fence:
            self.accuse("downgrade", f"{held.claim.id} had fence {fence} and has {held.fence}")
        grant = self.live.get(held.claim.id)
        if grant is not None and (grant.voided or grant.fence != fence):
            return
        rows = [row for row in seen.holds if row.id == held.claim.id]
        if not rows:
            self.accuse("downgrade", f"{held.claim.id} reads on, and is held no more")
        for row in rows:
            if row.take != 1:
                self.accuse("downgrade", f"{held.claim.id} only reads, and keeps readers out")

    def may_write(self, held: Held) -> None:
        """A reader asked to write, and was not told that it would wait for itself."""
        self.accuse("downgrade", f"{held.claim.id} reads and was allowed to write")
