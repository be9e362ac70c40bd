"""Delivery of wake-ups to the waiters of this process.

A wake-up may arrive before its waiter watches: the claim is at the store, and its reply still on
the way. Such an early wake-up is kept for a while, so that a waiter that begins to watch need not
ask the store again. Wake-ups come on any thread and are hints, so no mutex is needed: the order of
the statements below ensures that a wake-up is at worst delivered twice.
"""

from __future__ import annotations

from lockfast.core.ports import Wake
from lockfast.model import Granted

MOST_EARLY = 256


class Wakeups:
    """The waiters of one client or process, by claim id."""

    def __init__(self) -> None:
        self._wakes: dict[str, Wake] = {}
        self._early: dict[str, Granted | None] = {}

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._wakes

    def __bool__(self) -> bool:
        return bool(self._wakes)

    def watch(self, claim_id: str, wake: Wake) -> None:
        """Call ``wake`` for this claim from now on, and at once for an early wake-up."""
        self._wakes[claim_id] = wake
        if claim_id in self._early:
            wake(self._early.pop(claim_id, None))

    def unwatch(self, claim_id: str) -> None:
        self._wakes.pop(claim_id, None)

    def deliver(self, claim_id: str, grant: Granted | None) -> None:
        """Wake the waiter of this claim; without one, keep the wake-up for it."""
        wake = self._wakes.get(claim_id)
        if wake is None:
            if len(self._early) >= MOST_EARLY:  # mostly of waiters that have left meanwhile
                self._early.pop(next(iter(self._early)), None)
            self._early[claim_id] = grant
            wake = self._wakes.get(claim_id)  # it may have begun to watch just now, and missed it
        if wake is not None:
            wake(grant)

    def wake_all(self) -> None:
        """Make every waiter claim again, because wake-ups may have been lost."""
        for wake in list(self._wakes.values()):
            wake(None)

    def clear(self) -> None:
        self._wakes.clear()
        self._early.clear()
