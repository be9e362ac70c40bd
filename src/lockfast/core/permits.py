"""What a semaphore can do besides being acquired: change its size, and give out permits that belong
to whoever knows their id, not to a process."""

from __future__ import annotations

from lockfast.core.acquire import leave
from lockfast.core.keeper import MAX_BUDGET, budget_for
from lockfast.core.ledger import HELD, RELEASED, Held, shown
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError
from lockfast.model import Claim, Granted, Snapshot, kind_of


async def resize(core: Core, terms: Terms, permits: int) -> None:
    """Those who hold it and those who wait for it do so with another number of permits. Those who
    hold more than there are now go on until they release."""
    had = await core.backend.resize(terms.name, terms.slots, permits, MAX_BUDGET)
    if had not in (0, terms.slots, permits):
        raise ConfigurationError(
            f"{shown(terms.name)} is in use as {kind_of(had)}, not as {kind_of(terms.slots)}: it "
            "was left as it is"
        )


async def take_permit(core: Core, terms: Terms, timeout: float | None) -> str | Snapshot | None:
    """The id of a permit that lasts as long as its lease, whatever becomes of this process."""
    outcome = await core.attempt(terms, timeout)
    if not isinstance(outcome, Held):
        return outcome
    try:
        return await core.detach(outcome)
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled, interrupted, not answered: its id, which nobody was told, nobody can give back.
        limit = budget_for(terms.lease)
        await core.runtime.shielded(_drop(core, outcome, limit), limit)
        raise


async def _drop(core: Core, held: Held, limit: float) -> None:
    with core.ledger.mutex:
        if held.state is HELD:
            core.ledger.end(held, RELEASED, core.runtime.now())
        core.ledger.forget(held)
    await leave(core.backend, core.keeper, held.claim, limit)
    core.ledger.emit_end(held)


async def release_permit(core: Core, claim: Claim, fence: int) -> None:
    """Give back a permit, whoever took it."""
    await core.give_back(_known(core, claim, fence))


async def renew_permit(core: Core, claim: Claim, fence: int) -> None:
    """Let it last for the claim's lease from now on."""
    budget = budget_for(claim.lease)
    (answer,) = await core.backend.renew([claim], [fence], budget)
    if not isinstance(answer, Granted):
        permit = _known(core, claim, fence)
        permit.cause = "it was released, or its lease ran out"
        raise permit.loss()


def _known(core: Core, claim: Claim, fence: int) -> Held:
    now = core.runtime.now()
    held = Held(claim, None, fence, now, False, now + claim.lease)
    held.extend_validity(now, claim.lease)
    return held


async def in_use(core: Core, terms: Terms) -> tuple[int, int]:
    """How many permits are taken, and how many there are."""
    seen = await core.inspect(terms.name)
    return sum(holder.take for holder in seen.holders), seen.slots or terms.slots
