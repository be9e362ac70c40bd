"""The rules of latches and barriers, at which many wait for each other.

A latch lets nobody through before it was counted down as often as it says, by count-downs that are
distinct: one whose reply was lost and that asks again counts once. Open, it lets everybody through.
A barrier lets parties go in groups of exactly as many as it says, each of which had come.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.network import Seen
from lab.simulation.rules import Accuse, Rule
from lab.simulation.world import Node
from lockfast.core.law import Row
from lockfast.model import Claim


class Gate(Rule):
    """Who passes holds nobody up."""

    excludes = False

    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.history = None

    def clash(self, takes: Sequence[int]) -> bool:
        return False


class LatchRule(Gate):
    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.calls: dict[str, object] = {}  # which count-down a claim id belongs to
        self.counted: set[str] = set()  # claim ids whose clients were told that they counted

    def asked(self, node: Node, claim: Claim) -> None:
        super().asked(node, claim)
        task = node.world.current
        if claim.take and task is not None:
            self.calls[claim.id] = task.call

    def count(self, seen: Seen) -> int:
        """How many distinct count-downs the store knows of."""
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
                self.accuse("latch", f"{self.name} forgot the count-downs {sorted(lost)}")

    def fits(self, first: Row, seen: Seen) -> bool:
        return self.count(seen) >= self.size

    def keeps_order(self, row: Row) -> bool:
        return row.id not in self.calls

    def stays(self, row: Row) -> bool:
        return row.id in self.calls

    def forgotten(self) -> None:
        super().forgotten()
        self.counted.clear()

    def told_counted(self, claim_ids: Sequence[str], seen: Seen) -> None:
        """A count-down said yes: it counted once, and stays counted."""
        known = {row.id for row in seen.holds}
        if not known.intersection(claim_ids):
            self.accuse("latch", f"{claim_ids} counted {self.name} down, which knows nothing of it")
        self.counted |= known.intersection(claim_ids)

    def told_open(self, seen: Seen) -> None:
        """A count-down said that nothing was left to count."""
        if (count := self.count(seen)) < self.size:
            self.accuse("latch", f"{self.name} is said to be open after {count} of {self.size}")

    def told_shut(self) -> None:
        """A waiter's time was over, although the latch was open before it asked."""
        self.accuse("latch", f"{self.name} is open and did not let somebody through")


class BarrierRule(Gate):
    def __init__(self, accuse: Accuse, name: str, size: int) -> None:
        super().__init__(accuse, name, size)
        self.groups = 0
        self.passed: set[str] = set()  # claim ids that left with a group
        self.left: set[str] = set()  # claim ids that had given up, for certain, before

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        if not fresh:
            return
        ids = {row.id for row in fresh}
        self.groups += 1
        if len(ids) != self.size:
            self.accuse("barrier", f"{self.name} let {len(ids)} of {self.size} go: {sorted(ids)}")
        if strangers := ids - self.takes.keys():
            self.accuse("barrier", f"{sorted(strangers)} passed {self.name} and never came")
        if gone := ids & self.left:
            self.accuse("barrier", f"{sorted(gone)} had left {self.name} before it let them go")
        self.passed |= ids

    def fits(self, first: Row, seen: Seen) -> bool:
        return len(seen.fair) >= self.size

    def told_passed(self, claim_ids: Sequence[str]) -> None:
        """A party was told that all had come."""
        if not self.passed.intersection(claim_ids):
            self.accuse("barrier", f"{claim_ids} passed {self.name} without a group")

    def told_late(self, claim_ids: Sequence[str]) -> None:
        """A party gave up, and no request of it is still under way."""
        self.left.update(claim_ids)
