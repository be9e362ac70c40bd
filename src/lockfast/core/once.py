"""Once per period: of all callers, one runs; the others find that it ran, or is running.

The caller that runs holds a name while it works. When it is done, it detaches the hold with a lease
until the end of the period: this mark needs no keeper and ends by itself. Periods are counted on
the store's clock, so the clocks of the callers do not matter. A caller that dies at work frees the
name as any holder would, and another one may then run in the same period.
"""

from __future__ import annotations

import math

from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.core.terms import Terms

SHORTEST = 0.01  # seconds: a mark that would expire sooner is not worth a request
PeriodRun = tuple[Held, float]  # the hold during the work, and until when nobody else may run


async def begin(core: Core, terms: Terms, period: float, at_least: float) -> PeriodRun | None:
    """Begin the run of this period, or return None if another caller runs or has run."""
    began = core.runtime.now()
    held = await core.attempt(terms, 0.0)
    if not isinstance(held, Held):
        return None
    try:
        clock = (await core.inspect(terms.name)).now
    except BaseException:
        await core.runtime.shielded(core.release(held), terms.lease)
        raise
    now = core.runtime.now()
    ends = now + (math.floor(clock / period) + 1) * period - clock
    return held, max(ends, began + at_least)


async def finish(core: Core, run: PeriodRun) -> None:
    """Leave the mark of a finished run, unless the period is over; then the caller's block releases
    the hold. `HoldLost` if the hold was lost meanwhile: another caller may have run too."""
    held, until = run
    if until - core.runtime.now() >= SHORTEST:
        await core.detach(held, until)
