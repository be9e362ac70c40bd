"""Latches and barriers, at which callers wait for each other. See rule 7 of the law.

A waiter is queued like any other, refreshed by the keeper and woken by a wake-up. The hold that it
is granted blocks nobody, and is released at once.
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
    """Count the latch down by one; False if it was open already. It is counted once, even if a
    reply is lost. The count has no owner: it stays if this process ends."""
    begun = core.begin(terms, 0)
    assert not isinstance(begun, Held), "each count-down is an owner of its own"
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
    """Wait for the others; False on time-out, when the claim is withdrawn. A grant that crosses the
    withdrawal counts as True: the others have already passed and count on this caller."""
    outcome = await core.attempt(terms, timeout)
    if not isinstance(outcome, Held):
        return outcome is not None and outcome.crossed
    try:
        await core.release(outcome)
    except (BackendError, HoldLost) as error:
        log.debug("lockfast: %s passed; its lease ends the hold: %s", shown(terms.name), error)
    return True


async def remaining(core: Core, terms: Terms) -> int:
    """The number of counts that are missing. A latch that nobody has counted down is closed."""
    seen = await core.inspect(terms.name)
    return terms.slots - LATCH - sum(holder.take for holder in seen.holders)


async def waiting(core: Core, terms: Terms) -> int:
    """The number of waiters."""
    return len((await core.inspect(terms.name)).waiters)
