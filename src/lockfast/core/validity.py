"""Validity of a hold: checks by our own clock and the ledger, without asking the store."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.core.ledger import HELD, LOST, Held, Ledger, shown
from lockfast.core.ports import Runtime
from lockfast.core.terms import FOREVER, Terms
from lockfast.errors import NotHeld
from lockfast.model import ALL_SLOTS


class Validity:
    """Mixin of a client's validity checks on its holds."""

    runtime: Runtime
    ledger: Ledger

    def is_held(self, held: Held) -> bool:
        """True while the hold is valid: False at the latest when the lease may have expired, with
        no help from keeper or store."""
        return held.state is HELD and self.runtime.now() < held.deadline

    def settle(self, held: Held) -> None:
        """Mark a hold as lost if it has expired by our own clock and the keeper has not noticed."""
        if held.state is HELD and self.runtime.now() >= held.deadline:
            self.ledger.lose(held, held.expiry_reason())

    def check(self, held: Held) -> None:
        """Raise unless the hold is still valid. No I/O."""
        self.settle(held)
        if held.state is LOST:
            raise held.loss()
        if held.state is not HELD:
            raise NotHeld(f"the hold on {shown(held.claim.name)} was {held.state.value} already")

    async def wait_lost(self, held: Held, timeout: float | None) -> bool:
        """Wait for the end of the hold; True if it was lost."""
        return await wait_lost([(self, held)], timeout)

    def held_by(self, terms: Terms, owner: object) -> Held | None:
        """The hold of this owner, if it covers the terms: a reader's does not cover a write."""
        held = self.ledger.by_owner.get((terms.name, owner))
        return None if held is None or terms.take > held.claim.take else held

    def find(self, terms: Terms) -> Held:
        """The current owner's hold, or `NotHeld`."""
        owner = terms.owner if terms.owner is not None else self.runtime.owner()
        held = self.held_by(terms, owner)
        if held is not None and held.writes and terms.take < ALL_SLOTS:
            held = held if held.count > held.writes else None  # a writer with no read entry
        if held is None:
            raise NotHeld(
                f"{shown(terms.name)} is not held by {_describe(owner)}: it was released "
                "already, or another thread, task or owner= acquired it"
            )
        return held


def _describe(owner: object) -> str:
    return f"owner {owner!r}" if isinstance(owner, str | int) else "the current thread or task"


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
