"""Latch and barrier of the sync API."""

from __future__ import annotations

from lockfast.api.latches import BaseLatchOrBarrier
from lockfast.core.latches import count_down, pass_through, remaining, waiting
from lockfast.inputs import Seconds, checked_timeout
from lockfast.runtime.threads import run


class Latch(BaseLatchOrBarrier):
    """A count-down latch: closed until it was counted down ``count`` times, then open.

    A new latch is closed. A count-down stays even if the process that made it dies, until the store
    forgets the latch, ``keep`` seconds after the last count-down. Use a new name each time.
    """

    @property
    def count(self) -> int:
        """Number of count-downs that open the latch."""
        return self._size

    def count_down(self) -> bool:
        """Count down by one; the last count-down wakes all waiters. False if it was already open.

        Counts exactly once, even if the request is repeated because the reply was lost. Raises
        `BackendError` if the store does not answer at all.
        """
        return run(count_down(self._client.core, self._counting()))

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until the latch is open (True), or ``timeout`` seconds are over (False)."""
        return run(pass_through(self._client.core, self._waiting(), checked_timeout(timeout)))

    def remaining(self) -> int:
        """Return the number of missing count-downs; 0 means open. One round trip."""
        return run(remaining(self._client.core, self._terms))


class Barrier(BaseLatchOrBarrier):
    """A barrier: ``parties`` parties wait for each other and continue together.

    It can be used again immediately. A waiting party that dies leaves it within seconds.
    """

    @property
    def parties(self) -> int:
        """Number of parties that must arrive."""
        return self._size

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until all parties have arrived (True), or ``timeout`` seconds are over (False).

        After a timeout this party has left, and the others wait for another one.
        """
        return run(pass_through(self._client.core, self._waiting(), checked_timeout(timeout)))

    def waiting(self) -> int:
        """Return the number of parties that are waiting now. One round trip."""
        return run(waiting(self._client.core, self._terms))
