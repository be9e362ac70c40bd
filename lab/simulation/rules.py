"""What the witness knows of one name, and the rule of a lock: one at a time.

A rule says who may hold a name beside whom, and when the first who waits should be served. It goes
by what the clients asked for and by the rows that the store shows, and uses none of the law's own
functions. The other kinds of names have rules of their own: `witness_permits`, `witness_readwrite`,
`witness_gates`, `witness_election`; `witness_multi` is about several names at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.history import History, Operation
from lab.simulation.network import Seen
from lab.simulation.world import Node
from lockfast.core.law import Row
from lockfast.model import Claim

Accuse = Callable[[str, str], None]


@dataclass(slots=True)
class Grant:
    """One grant, as the store showed it."""

    claim_id: str
    name: str
    fence: int
    ends: float  # true time at which the store's lease ends, as last extended
    since: float
    over: bool = False  # no longer at the store
    # Not the first of its claim: a doubled request, or asked again after a pause.
    again: bool = False
    # Broken by an operator or forgotten by the store: belief may outlive it until it is told.
    voided: bool = False


class Rule:
    """A lock. ``size`` is how much of it there is, and everybody takes some."""

    excludes = True  # is anybody kept out by who holds it?

    def __init__(self, accuse: Accuse, name: str, size: int = 1) -> None:
        self.accuse = accuse
        self.name = name
        self.size = size
        self.history: History | None = History(size)
        self.takes: dict[str, int] = {}  # what was asked for, by claim id
        self.live: dict[str, Grant] = {}  # what was held when we last looked
        self.order: list[str] = []  # who waited then, in order
        self.last_fence = 0
        self.free_since: float | None = None
        self._claims: dict[str, Operation] = {}

    # ---- at the clients ------------------------------------------------------------------------

    def asked(self, node: Node, claim: Claim) -> None:
        """A claim leaves for the store for the first time: its history begins."""
        self.takes[claim.id] = claim.take
        if self.history is not None:
            now = node.world.time
            self._claims[claim.id] = self.history.invoke(
                node.name, "claim", claim.id, now, claim.take
            )

    def answered(self, claim_id: str, fence: int, at: float) -> None:
        """The client knows that it is granted."""
        if self.history is not None:
            self.history.answer(self._claims[claim_id], at, fence)

    # ---- at the store --------------------------------------------------------------------------

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        """P1, after each step; ``fresh`` was granted in it."""
        if self.clash([self.takes.get(row.id, row.take) for row in seen.holds]):
            holders = [row.id for row in seen.holds]
            self.accuse("P1", f"{holders} hold {self.name} beside each other")

    def clash(self, takes: Sequence[int]) -> bool:
        """Can those who took so much not hold it beside each other?"""
        return sum(takes) > self.size

    def fits(self, first: Row, seen: Seen) -> bool:
        """Is there room for the first who waits?"""
        return first.take <= self.size - sum(row.take for row in seen.holds)

    def keeps_order(self, row: Row) -> bool:
        """May this grant overtake nobody who waits?"""
        return row.fair

    def stays(self, row: Row) -> bool:
        """Does this hold outlive its client?"""
        return False

    def forgotten(self) -> None:
        """The store forgot everything."""
        self.live.clear()
        self.order, self.free_since = [], None
