"""A latch and a barrier, blocking."""

from __future__ import annotations

from lockfast.api.latches import BaseLatch
from lockfast.core.latches import count_down, pass_through, remaining, waiting
from lockfast.inputs import Seconds, checked_timeout
from lockfast.runtime.threads import run


class Latch(BaseLatch):
    """A count-down latch: closed until it was counted down so many times, then open. One that
    nobody has touched is closed. What is counted stays, whatever becomes of the process that
    counted, until it is forgotten ``keep`` seconds after the last count-down: use a new name each
    time."""

    @property
    def count(self) -> int:
        """How many times it has to be counted down in all."""
        return self._size

    def count_down(self) -> bool:
        """Count it down by one, and let those who wait through if it was the last. False: it was
        open already. Counted once, also if the store's answer gets lost."""
        return run(count_down(self._client.core, self._counting()))

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until it is open (True), or the time is over (False)."""
        return run(pass_through(self._client.core, self._waiting(), checked_timeout(timeout)))

    def remaining(self) -> int:
        """How many count-downs are missing; 0: it is open. One round trip."""
        return run(remaining(self._client.core, self._terms))


class Barrier(BaseLatch):
    """A barrier: so many parties wait for each other, and go on together. It can be used again at
    once. A party that dies while it waits leaves within seconds."""

    @property
    def parties(self) -> int:
        """How many have to come."""
        return self._size

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until all have come (True), or the time is over (False): then this party has left,
        and the others wait for another."""
        return run(pass_through(self._client.core, self._waiting(), checked_timeout(timeout)))

    def waiting(self) -> int:
        """How many wait there now. One round trip."""
        return run(waiting(self._client.core, self._terms))
