"""The rules of latches and barriers, at which clients wait for each other.

A latch of n lets nobody through before n distinct count-downs: one that is repeated after a lost
reply counts once. An open latch lets every waiter through. A barrier of n lets parties go in groups
of exactly n, all of which had arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.network import Seen
from lab.simulation.rules import Accuse, Rule
from lab.simulation.world import Node
from lockfast.core.law import Row
from lockfast.model import Claim


class RendezvousRule(Rule):
    """The rule of a name whose holders keep nobody out."""

    excludes = False

    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.history = None

    def clash(self, takes: Sequence[int]) -> bool:
        return False


class LatchRule(RendezvousRule):
    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.calls: dict[str, object] = {}  # the count-down of each claim id
        self.counted: set[str] = set()  # claim ids whose clients know that they counted

    def asked(self, node: Node, claim: Claim) -> None:
        super().asked(node, claim)
        task = node.world.current
        if claim.take and task is not None:
            self.calls[claim.id] = task.call

    def count(self, seen: Seen) -> int:
        """Return the number of distinct count-downs in the store."""
        return len({self.calls[row.id] for row in seen.holds if row.id in self.calls})

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        count = self.count(seen)
        for row in fresh:
            if row.id not in self.calls and count < self.size:
                self.accuse(
                    "latch",
                    f"{self.name} let {row.id} through after {count} of {self.size} count-downs",
                )
        if self.counted:
            lost = self.counted.difference(row.id for row in seen.holds)
            if lost:
                self.counted -= lost
                self.accuse("latch", f"{self.name} lost the count-downs {sorted(lost)}")

    def fits(self, first: Row, seen: Seen) -> bool:
        return self.count(seen) >= self.size

    def keeps_order(self, row: Row) -> bool:
        return row.id not in self.calls

    def stays(self, row: Row) -> bool:
        return row.id in self.calls

    def forgotten(self) -> None:
        super().forgotten()
        self.counted.clear()

    def count_down_confirmed(self, claim_ids: Sequence[str], seen: Seen) -> None:
        """Check a count-down that reported success: it counted, and stays counted."""
        known = {row.id for row in seen.holds}
        if not known.intersection(claim_ids):
            self.accuse("latch", f"{claim_ids} counted {self.name} down, but it was not counted")
        self.counted |= known.intersection(claim_ids)

    def latch_reported_open(self, seen: Seen) -> None:
        """Check a count-down that reported an open latch."""
        if (count := self.count(seen)) < self.size:
            self.accuse("latch", f"{self.name} was reported open after {count} of {self.size}")

    def refused_though_open(self) -> None:
        """Record that a waiter timed out, although the latch was open before it asked."""
        self.accuse("latch", f"{self.name} is open and did not let a waiter through")


class BarrierRule(RendezvousRule):
    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.groups = 0
        self.passed: set[str] = set()  # claim ids that left with a group
        self.left: set[str] = set()  # claim ids of parties that had given up for certain

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        if not fresh:
            return
        ids = {row.id for row in fresh}
        self.groups += 1
        if len(ids) != self.size:
            self.accuse("barrier", f"{self.name} let {len(ids)} of {self.size} go: {sorted(ids)}")
        if strangers := ids - self.takes.keys():
            self.accuse("barrier", f"{sorted(strangers)} passed {self.name} and never arrived")
        if gone := ids & self.left:
            self.accuse("barrier", f"{sorted(gone)} had left {self.name} before it let them go")
        self.passed |= ids

    def fits(self, first: Row, seen: Seen) -> bool:
        return len(seen.fair) >= self.size

    def passed_confirmed(self, claim_ids: Sequence[str]) -> None:
        """Check a party that passed: it left with a group."""
        if not self.passed.intersection(claim_ids):
            self.accuse("barrier", f"{claim_ids} passed {self.name} without a group")

    def left_for_certain(self, claim_ids: Sequence[str]) -> None:
        """Record that a party gave up, and that no request of it is under way."""
        self.left.update(claim_ids)
