"""Once per period: of all that call, one runs; the others find that it ran, or runs.

Who runs holds a name while it works, and when it is done lets go of it without releasing it, with a
lease until the period is over: that mark needs nobody to keep it and ends by itself. Periods are
counted on the store's clock, so the clocks of the callers do not matter. A caller that dies at work
frees the name as any holder would, and another may run then, still in this period.
"""

from __future__ import annotations

import math

from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.core.terms import Terms

SHORTEST = 0.01  # a mark that is over before it is written is not worth writing
Turn = tuple[Held, float]  # what is held while at work, and until when nobody else is to run


async def begin(core: Core, terms: Terms, period: float, at_least: float) -> Turn | None:
    """Our turn, or None: somebody else has it, or had it."""
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


async def finish(core: Core, turn: Turn) -> None:
    """We are done: leave a mark, unless the time is over already. Then the block that we are in
    gives the turn back. `HoldLost` if it was lost meanwhile: somebody else may have run too."""
    held, until = turn
    if until - core.runtime.now() >= SHORTEST:
        await core.detach(held, until)
