"""The rule of multi-locks: all or nothing.

After an attempt that did not get all of its names (refused, cancelled, an error), the client holds
none of them, except for those it held before. The end of a run shows that there was no deadlock:
every worker is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.simulation.rules import Accuse
from lockfast.core.ledger import Held, State
from lockfast.core.locks import Core


def got_all(accuse: Accuse, names: Sequence[str], holds: Sequence[Held]) -> None:
    """Check an attempt that was granted: one hold of each name."""
    got = sorted(held.claim.name for held in holds)
    if got != sorted(names):
        accuse("multi", f"asked for {sorted(names)} and got {got}")


def got_nothing(accuse: Accuse, core: Core, claim_ids: Sequence[str], had: Held | None) -> None:
    """Check an attempt that was not granted. ``had`` was held before, once."""
    for claim_id in claim_ids:
        if claim_id in core.ledger.kept:
            name = core.ledger.kept[claim_id].claim.name
            accuse("multi", f"{claim_id} on {name} is kept by a multi-lock that was not granted")
    if had is not None and had.state is not State.LOST and had.count != 1:
        accuse("multi", f"{had.claim.id} was held before, and is entered {had.count} times now")
