"""The rule of an election: one leader, never two in one term, and terms that grow.

The rule checks what the clients see: the term of each leader, and the leader that observers find.
"""

from __future__ import annotations

from lab.simulation.rules import Accuse, Rule
from lockfast.core.ledger import Held
from lockfast.model import Snapshot


class ElectionRule(Rule):
    def __init__(self, accuse: Accuse, name: str) -> None:
        super().__init__(accuse, name)
        self.greatest = 0  # the greatest term of a leader so far
        self._leaders: dict[int, str] = {}
        self._shown: dict[object, int] = {}

    def elected(self, held: Held, before: int) -> None:
        """Check a new leader. ``before`` is the greatest term when it stood for election."""
        term, claim_id = held.fence, held.claim.id
        other = self._leaders.setdefault(term, claim_id)
        if other != claim_id:
            self.accuse("election", f"{other} and {claim_id} led {self.name} in term {term}")
        if term <= before:
            self.accuse("election", f"{claim_id} leads in term {term}, after {before}")
        self.greatest = max(self.greatest, term)

    def shown(self, observer: object, seen: Snapshot) -> None:
        """Check an observation: the same leader as before, a later one, or none."""
        if len(seen.holders) > 1:
            self.accuse("election", f"{self.name} shows {len(seen.holders)} leaders")
        for holder in seen.holders:
            before = self._shown.get(observer, 0)
            if holder.fence < before:
                self.accuse("election", f"term {holder.fence} was shown after {before}")
            self._shown[observer] = max(before, holder.fence)
