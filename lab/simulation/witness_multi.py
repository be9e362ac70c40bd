"""The rule of multi-locks: all or nothing.

However an attempt ends that did not get all of its names (refused, cancelled, an error), its client
holds nothing of it from then on, and what it held before it holds as before. That nobody waits for
another in a circle is seen at the end of a run: everybody is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.rules import Accuse
from lockfast.core.ledger import Held, State
from lockfast.core.locks import Core


def got_all(accuse: Accuse, names: Sequence[str], several: Sequence[Held]) -> None:
    """The attempt was granted: one hold of each name."""
    got = sorted(held.claim.name for held in several)
    if got != sorted(names):
        accuse("multi", f"asked for {sorted(names)} and was given {got}")


def got_nothing(accuse: Accuse, core: Core, claim_ids: Sequence[str], had: Held | None) -> None:
    """The attempt is over, and was not granted. ``had`` was held before, once."""
    for claim_id in claim_ids:
        if claim_id in core.ledger.kept:
            name = core.ledger.kept[claim_id].claim.name
            accuse("multi", f"{claim_id} on {name} is kept by a multi-lock that was not granted")
    if had is not None and had.state is not State.LOST and had.count != 1:
        accuse("multi", f"{had.claim.id} was held before, and is entered {had.count} times now")
