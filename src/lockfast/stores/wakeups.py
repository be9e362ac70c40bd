"""Who in this process waits for which bell.

A bell may ring before anybody watches it: the claim is at the store, its reply still on the way to
us. Such an early bell is kept for a while, so that a waiter that begins to watch need not ask the
store again. Bells come on any thread and are hints, so no mutex is needed: the order of the lines
below sees to it that a bell is at worst heard twice.
"""

from __future__ import annotations

from lockfast.core.ports import Wake
from lockfast.model import Granted

MOST_EARLY = 256


class Wakeups:
    def __init__(self) -> None:
        self._wakes: dict[str, Wake] = {}
        self._early: dict[str, Granted | None] = {}

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._wakes

    def __bool__(self) -> bool:
        return bool(self._wakes)

    def watch(self, claim_id: str, wake: Wake) -> None:
        self._wakes[claim_id] = wake
        if claim_id in self._early:
            wake(self._early.pop(claim_id, None))

    def unwatch(self, claim_id: str) -> None:
        self._wakes.pop(claim_id, None)

    def wake(self, claim_id: str, grant: Granted | None) -> None:
        wake = self._wakes.get(claim_id)
        if wake is None:
            if len(self._early) >= MOST_EARLY:  # of those who left meanwhile, mostly
                self._early.pop(next(iter(self._early)), None)
            self._early[claim_id] = grant
            wake = self._wakes.get(claim_id)  # it may have come just now, and not seen it
        if wake is not None:
            wake(grant)

    def wake_all(self) -> None:
        """Bells may have been lost: let everybody ask."""
        for wake in list(self._wakes.values()):
            wake(None)

    def clear(self) -> None:
        self._wakes.clear()
        self._early.clear()
