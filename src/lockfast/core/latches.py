"""Latches and barriers: what many wait for together. See rule 7 of the law.

Who waits stands in the queue like anybody else, is refreshed by the keeper and woken by a bell.
What it is granted then holds nobody up, and is given back at once.
"""

from __future__ import annotations

import logging

from lockfast.core.acquire import claim_until_known, differs
from lockfast.core.keeper import budget_for
from lockfast.core.ledger import Held, shown
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, HoldLost
from lockfast.model import LATCH, Differs, Granted

log = logging.getLogger("lockfast")


async def count_down(core: Core, terms: Terms) -> bool:
    """Count it down by one; False: it was open already. Counted once, also if a reply is lost. What
    is counted belongs to nobody: it stays although this process may end."""
    begun = core.begin(terms, 0)
    assert not isinstance(begun, Held), "each time is an owner of its own"
    claim = begun[0]
    try:
        now, limit = core.runtime.now(), budget_for(terms.lease)
        _, _, answer = await claim_until_known(core.runtime, core.backend, claim, now, limit)
    finally:
        core.ledger.asking.discard(claim.id)
    if isinstance(answer, Differs):
        raise differs(claim, answer)
    return isinstance(answer, Granted)


async def pass_through(core: Core, terms: Terms, timeout: float | None) -> bool:
    """Wait for the others; False: the time was over, and our place is given up. Unless we were let
    through just before: the others have gone on and count on us."""
    outcome = await core.attempt(terms, timeout)
    if not isinstance(outcome, Held):
        return outcome is not None and outcome.crossed
    try:
        await core.release(outcome)
    except (BackendError, HoldLost) as error:
        log.debug("lockfast: %s was passed; it ends by its lease: %s", shown(terms.name), error)
    return True


async def remaining(core: Core, terms: Terms) -> int:
    """How many have still to count down. One that nobody has touched is not open."""
    seen = await core.inspect(terms.name)
    return terms.slots - LATCH - sum(holder.take for holder in seen.holders)


async def waiting(core: Core, terms: Terms) -> int:
    """How many wait there now."""
    return len((await core.inspect(terms.name)).waiters)
