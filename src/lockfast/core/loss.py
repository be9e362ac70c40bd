"""To wait until something is lost: the one place where a caller sleeps on holds that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockfast.core.ledger import HELD, LOST, Held
from lockfast.core.terms import FOREVER

if TYPE_CHECKING:
    from lockfast.core.validity import Validity


async def wait_lost(several: Sequence[tuple[Validity, Held]], timeout: float | None) -> bool:
    """Wait for the end of any; True if that is a loss. Needs no keeper: deadlines wake us too."""
    runtime = several[0][0].runtime
    until = FOREVER if timeout is None else runtime.now() + timeout
    signal = runtime.signal()
    for core, held in several:
        core.ledger.on_end(held, signal.set)
    try:
        while True:
            for core, held in several:
                core.settle(held)
            now = runtime.now()
            states = {held.state for _, held in several}
            if states != {HELD} or now >= until:
                return LOST in states
            first = min(held.deadline for _, held in several)
            await signal.wait(min(until, first) - now)
    finally:
        for core, held in several:
            core.ledger.off_end(held, signal.set)
