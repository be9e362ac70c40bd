"""Semaphore operations besides acquire: resizing, and permits owned by their id, not a process."""

from __future__ import annotations

from lockfast.core.acquire import leave
from lockfast.core.keeper import MAX_BUDGET, budget_for
from lockfast.core.ledger import HELD, RELEASED, Held, shown
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError
from lockfast.model import Claim, Granted, Snapshot, kind_of


async def resize(core: Core, terms: Terms, permits: int) -> None:
    """Change the number of permits for holders and waiters. Holders of more permits than there are
    now keep them until they release."""
    had = await core.backend.resize(terms.name, terms.slots, permits, MAX_BUDGET)
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
    await leave(core.backend, core.keeper, held.claim, limit)
    core.ledger.emit_end(held)


async def release_permit(core: Core, claim: Claim, fence: int) -> None:
    """Release a permit, whoever took it."""
    await core.give_back(_known(core, claim, fence))


async def renew_permit(core: Core, claim: Claim, fence: int) -> None:
    """Extend a permit to the claim's lease from now on."""
    budget = budget_for(claim.lease)
    (answer,) = await core.backend.renew([claim], [fence], budget)
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
