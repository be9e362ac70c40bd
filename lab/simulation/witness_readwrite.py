"""The rule of a read-write lock: never a reader and a writer together, never two writers.

The rule knows the writers from the clients' requests, until a client downgrades: then it keeps its
hold and its fence, and the store admits other readers.
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
        """Record that a client writes no more. In the history, the writer may end from now on."""
        self.takes[held.claim.id] = 1
        self.downgrades.add(held.claim.id)
        if self.history is not None:
            self.history.broken(held.claim.id, at)

    def downgraded(self, held: Held, fence: int, seen: Seen) -> None:
        """Check a downgrade that the store confirmed: the hold exists, as a reader's."""
        if held.fence != fence:
            self.accuse("downgrade", f"{held.claim.id} had fence {fence} and has {held.fence}")
        grant = self.live.get(held.claim.id)
        if grant is not None and (grant.voided or grant.fence != fence):
            return
        rows = [row for row in seen.holds if row.id == held.claim.id]
        if not rows:
            self.accuse("downgrade", f"{held.claim.id} was downgraded, and its hold is gone")
        for row in rows:
            if row.take != 1:
                self.accuse("downgrade", f"{held.claim.id} was downgraded, and keeps readers out")

    def may_write(self, held: Held) -> None:
        """Record that a reader was allowed to write, which should raise `WouldDeadlock`."""
        self.accuse("downgrade", f"{held.claim.id} reads and was allowed to write")
