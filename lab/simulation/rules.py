"""The witness's state of one name, and the rule of a lock: one holder at a time.

A rule decides which holds may exist beside each other, and when the first waiter should be served.
It knows the clients' requests and the rows of the store, and uses none of the law's own functions.
The other kinds of names have rules of their own: `witness_permits`, `witness_readwrite`,
`witness_latches`, `witness_election`. `witness_multi` checks attempts on more than one name.
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
    """One grant, as the witness found it in the store."""

    claim_id: str
    name: str
    fence: int
    ends: float  # when the store's lease ends, as last extended, in true time
    since: float
    over: bool = False  # no longer at the store
    # Not the first grant of its claim: the request was doubled, or repeated after a pause.
    again: bool = False
    # Broken by an operator or forgotten by the store: the client's hold stays valid until it learns
    # of that.
    voided: bool = False


class Rule:
    """The rule of a lock. ``size`` is the number of slots; each claim takes some of them."""

    excludes = True  # False: a hold keeps nobody out

    def __init__(self, accuse: Accuse, name: str, size: int = 1) -> None:
        self.accuse = accuse
        self.name = name
        self.size = size
        self.history: History | None = History(size)
        self.takes: dict[str, int] = {}  # the slots that each claim asked for, by claim id
        self.live: dict[str, Grant] = {}  # the holds after the last step
        self.order: list[str] = []  # the fair waiters after the last step, in order
        self.last_fence = 0
        self.free_since: float | None = None
        self._claims: dict[str, Operation] = {}

    # ---- at the clients ------------------------------------------------------------------------

    def asked(self, node: Node, claim: Claim) -> None:
        """Record that a claim is sent for the first time: its history begins."""
        self.takes[claim.id] = claim.take
        if self.history is not None:
            now = node.world.time
            self._claims[claim.id] = self.history.invoke(
                node.name, "claim", claim.id, now, claim.take
            )

    def answered(self, claim_id: str, fence: int, at: float) -> None:
        """Record that the client knows of its grant."""
        if self.history is not None:
            self.history.answer(self._claims[claim_id], at, fence)

    # ---- at the store --------------------------------------------------------------------------

    def look(self, seen: Seen, fresh: Sequence[Row]) -> None:
        """Check P1 after a step, in which ``fresh`` were granted."""
        if self.clash([self.takes.get(row.id, row.take) for row in seen.holds]):
            holders = [row.id for row in seen.holds]
            self.accuse("P1", f"{holders} hold {self.name} beside each other")

    def clash(self, takes: Sequence[int]) -> bool:
        """Return True if holds that take so much must not exist beside each other."""
        return sum(takes) > self.size

    def fits(self, first: Row, seen: Seen) -> bool:
        """Return True if there is room for the first waiter."""
        return first.take <= self.size - sum(row.take for row in seen.holds)

    def keeps_order(self, row: Row) -> bool:
        """Return True if this grant must not overtake a waiter."""
        return row.fair

    def stays(self, row: Row) -> bool:
        """Return True if this hold may outlive its client."""
        return False

    def forgotten(self) -> None:
        """Reset the state: the store lost its data."""
        self.live.clear()
        self.order, self.free_since = [], None
