"""Waiting for the end of one's own holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockfast.core.ledger import HELD, LOST, Held
from lockfast.core.terms import FOREVER

if TYPE_CHECKING:
    from lockfast.core.validity import Validity


async def wait_lost(holds: Sequence[tuple[Validity, Held]], timeout: float | None) -> bool:
    """Wait until any of the holds ends; True if lost. Wakes at deadlines too, without a keeper."""
    runtime = holds[0][0].runtime
    until = FOREVER if timeout is None else runtime.now() + timeout
    signal = runtime.signal()
    for core, held in holds:
        core.ledger.on_end(held, signal.set)
    try:
        while True:
            for core, held in holds:
                core.settle(held)
            now = runtime.now()
            states = {held.state for _, held in holds}
            if states != {HELD} or now >= until:
                return LOST in states
            first = min(held.deadline for _, held in holds)
            await signal.wait(min(until, first) - now)
    finally:
        for core, held in holds:
            core.ledger.off_end(held, signal.set)
