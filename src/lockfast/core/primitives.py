"""Primitives made of claims: latches and barriers, permits by their id, and once per period.

**Latches and barriers.** Callers wait for each other; see rule 7 of the law. A waiter is queued
like any other, refreshed by the keeper and woken by a wake-up. The hold that it is granted blocks
nobody, and is released at once.

**Permits** are owned by their id, not by a process: a hold that is detached right after it was
acquired.

**Once per period**: of all callers, one runs; the others find that it ran, or is running. The
caller that runs holds a name while it works. When it is done, it detaches the hold with a lease
until the end of the period: this mark needs no keeper and ends by itself. Periods are counted on
the store's clock, so the clocks of the callers do not matter. A caller that dies at work frees the
name as any holder would, and another one may then run in the same period.
"""

from __future__ import annotations

import logging
import math

from lockfast.core.claim import differs
from lockfast.core.keeper import MAX_BUDGET, budget_for
from lockfast.core.ledger import HELD, RELEASED, Held, shown
from lockfast.core.locks import Core
from lockfast.core.ports import answer_of
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, ConfigurationError, HoldLost
from lockfast.model import LATCH, Claim, Differs, Granted, Snapshot, kind_of

log = logging.getLogger("lockfast")
SHORTEST = 0.01  # seconds: a mark that would expire sooner is not worth a request
PeriodRun = tuple[Held, float]  # the hold during the work, and until when nobody else may run


# ---- latches and barriers ------------------------------------------------------------------


async def count_down(core: Core, terms: Terms) -> bool:
    """Count the latch down by one; False if it was open already. It is counted once, even if a
    reply is lost. The count has no owner: it stays if this process ends."""
    begun = core.begin(terms, 0)
    assert not isinstance(begun, Held), "each count-down is an owner of its own"
    claim = begun[0]
    try:
        now = core.runtime.now()
        until = now + budget_for(terms.lease)
        _, _, (answer,) = await core.claim_until_known((claim,), until, now)
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
        await core.wait_released(outcome)
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


# ---- permits -------------------------------------------------------------------------------


async def resize(core: Core, terms: Terms, permits: int) -> None:
    """Change the number of permits for holders and waiters. Holders of more permits than there are
    now keep them until they release."""
    had = await answer_of(core.store.resize(terms.name, terms.slots, permits, MAX_BUDGET))
    if had not in (0, terms.slots, permits):
        raise ConfigurationError(
            f"{shown(terms.name)} is in use as {kind_of(had)}, not as {kind_of(terms.slots)}: it "
            "was left unchanged"
        )


async def take_permit(core: Core, terms: Terms, timeout: float | None) -> str | Snapshot | None:
    """Acquire a permit and return its id. It lasts for its lease, even if this process ends."""
    outcome = await core.attempt(terms, timeout)
    if not isinstance(outcome, Held):
        return outcome
    try:
        return await core.detach(outcome)
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled, interrupted or not answered: nobody has the id, so nobody could release it.
        limit = budget_for(terms.lease)
        await core.runtime.shielded(_withdraw(core, outcome, limit), limit)
        raise


async def _withdraw(core: Core, held: Held, limit: float) -> None:
    with core.ledger.mutex:
        if held.state is HELD:
            core.ledger.end(held, RELEASED, core.runtime.now())
        core.ledger.forget(held)
    await core.withdraw(held.claim, limit)
    core.ledger.emit_end(held)


async def release_permit(core: Core, claim: Claim, fence: int) -> None:
    """Release a permit, whoever took it."""
    await core.give_back(_known(core, claim, fence))


async def renew_permit(core: Core, claim: Claim, fence: int) -> None:
    """Extend a permit to the claim's lease from now on."""
    budget = budget_for(claim.lease)
    (answer,) = await answer_of(core.store.renew([claim], [fence], budget))
    if not isinstance(answer, Granted):
        permit = _known(core, claim, fence)
        permit.cause = "it was released, or its lease ran out"
        raise permit.loss()


def _known(core: Core, claim: Claim, fence: int) -> Held:
    """A hold for a permit that is known by its id only; not in the ledger."""
    now = core.runtime.now()
    held = Held(claim, None, fence, now, False, now + claim.lease)
    held.extend_validity(now, claim.lease)
    return held


async def in_use(core: Core, terms: Terms) -> tuple[int, int]:
    """The number of permits that are taken, and their total."""
    seen = await core.inspect(terms.name)
    return sum(holder.take for holder in seen.holders), seen.slots or terms.slots


# ---- once per period -----------------------------------------------------------------------


async def begin_run(core: Core, terms: Terms, period: float, at_least: float) -> PeriodRun | None:
    """Begin the run of this period, or return None if another caller runs or has run."""
    began = core.runtime.now()
    held = await core.attempt(terms, 0.0)
    if not isinstance(held, Held):
        return None
    try:
        clock = (await core.inspect(terms.name)).now
    except BaseException:
        await core.runtime.shielded(core.wait_released(held), terms.lease)
        raise
    now = core.runtime.now()
    ends = now + (math.floor(clock / period) + 1) * period - clock
    return held, max(ends, began + at_least)


async def finish_run(core: Core, run: PeriodRun) -> None:
    """Leave the mark of a finished run, unless the period is over; then the caller's block releases
    the hold. `HoldLost` if the hold was lost meanwhile: another caller may have run too."""
    held, until = run
    if until - core.runtime.now() >= SHORTEST:
        await core.detach(held, until)
