"""Semaphores, expirable permits, latches and barriers of the async API."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Never

from lockfast.aio.hold import Hold
from lockfast.aio.native import begin_body, block_end
from lockfast.api.blocks import end_of
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.primitives import (
    DEFAULT,
    BaseMeeting,
    BasePermits,
    BaseSemaphore,
    Default,
    checked_permits,
    lease_or_none,
)
from lockfast.core.ledger import Held
from lockfast.core.primitives import (
    count_down,
    in_use,
    pass_through,
    release_permit,
    remaining,
    renew_permit,
    resize,
    take_permit,
    waiting,
)
from lockfast.inputs import Seconds, checked_timeout


class Pool(BasePermits[Hold]):
    """A number of permits, of which some are taken."""

    async def available(self) -> int:
        """Return the number of free permits. One round trip; may be outdated on arrival."""
        used, size = await in_use(self._client._core, self._terms)
        return max(size - used, 0)

    async def in_use(self) -> int:
        """Return the number of taken permits. One round trip; may be outdated on arrival."""
        used, _ = await in_use(self._client._core, self._terms)
        return used


class Semaphore(Pool, BaseSemaphore[Hold]):
    __doc__ = BaseSemaphore.__doc__

    async def acquire(
        self, permits: int = 1, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """Acquire ``permits`` permits at once and return one hold for them.

        Waits for at most ``timeout`` seconds (default: that of the semaphore), then raises
        `AcquireTimeout`, which names a holder. `BackendError`: the store does not answer. A
        cancelled acquire leaves nothing behind.
        """
        wait_for = self._wait_for("acquire()", timeout, foreign)
        held = self._client._core.acquire(self._taking(permits), wait_for)
        if not isinstance(held, Held):
            held = await held
        return Hold(self._client, held, self._on_lost)

    async def try_acquire(
        self, permits: int = 1, *, timeout: Seconds = 0, **foreign: Never
    ) -> Hold | None:
        """Acquire permits within ``timeout`` seconds (0: try once) and return the hold, or None."""
        wait_for = self._wait_for("try_acquire()", timeout, foreign)
        held = await self._client._core.attempt(self._taking(permits), wait_for)
        return Hold(self._client, held, self._on_lost) if isinstance(held, Held) else None

    async def resize(self, permits: int) -> None:
        """Change the number of permits, for this object and for all current holders and waiters.

        Existing holds stay, even if they are more. The store keeps the number only while somebody
        holds or waits: change it in every program; the old number raises `ConfigurationError`.
        """
        size = checked_permits(permits)
        await resize(self._client._core, self._terms, size)
        self._terms = self._terms._replace(slots=size)

    async def __aenter__(self) -> Hold:
        end = end_of(self)
        hold = await self.acquire()
        self._push(self._owner(), hold)
        hold._body = begin_body(hold, end)
        return hold

    @block_end
    def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> Coroutine[Any, Any, None]:
        return self._pop(self._owner())._end(error)


class Permits(Pool):
    """Expirable permits: each has an id and a lease, and belongs to whoever knows the id.

    A permit ends with its lease unless `renew` is called: nothing renews it automatically, and the
    end of its process does not end it.
    """

    async def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        lease: Seconds | None = None,
        **foreign: Never,
    ) -> str:
        """Acquire a permit and return its id, which is a secret.

        Waits for at most ``timeout`` seconds (default: that of the pool), then raises
        `AcquireTimeout`, which names a holder.
        """
        wait_for = self._wait_for("acquire()", timeout, foreign, "lease")
        core, terms = self._client._core, self._expiring(lease_or_none(lease))
        outcome = await take_permit(core, terms, wait_for)
        if not isinstance(outcome, str):
            await core.refuse(terms, wait_for, outcome)
        return outcome

    async def try_acquire(
        self, *, timeout: Seconds = 0, lease: Seconds | None = None, **foreign: Never
    ) -> str | None:
        """Acquire a permit within ``timeout`` seconds (0: try once) and return its id, or None."""
        wait_for = self._wait_for("try_acquire()", timeout, foreign, "lease")
        terms = self._expiring(lease_or_none(lease))
        outcome = await take_permit(self._client._core, terms, wait_for)
        return outcome if isinstance(outcome, str) else None

    async def release(self, permit_id: str) -> None:
        """Release a permit, from any process. Raises `HoldLost` if it had already ended."""
        await release_permit(self._client._core, *self._known(permit_id))

    async def renew(self, permit_id: str, *, lease: Seconds | None = None) -> None:
        """Extend a permit to ``lease`` seconds from now (default: its previous lease). Raises
        `HoldLost` if it had already ended."""
        await renew_permit(self._client._core, *self._known(permit_id, lease_or_none(lease)))


class Latch(BaseMeeting):
    """A count-down latch: closed until it was counted down ``count`` times, then open.

    A new latch is closed. A count-down stays even if the process that made it dies, until the store
    forgets the latch, ``keep`` seconds after the last count-down. Use a new name each time.
    """

    @property
    def count(self) -> int:
        """Number of count-downs that open the latch."""
        return self._size

    async def count_down(self) -> bool:
        """Count down by one; the last count-down wakes all waiters. False if it was already open.

        Counts exactly once, even if the request is repeated because the reply was lost. Raises
        `BackendError` if the store does not answer at all.
        """
        return await count_down(self._client._core, self._counting())

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the latch is open (True), or ``timeout`` seconds are over (False)."""
        return await pass_through(self._client._core, self._waiting(), checked_timeout(timeout))

    async def remaining(self) -> int:
        """Return the number of missing count-downs; 0 means open. One round trip."""
        return await remaining(self._client._core, self._terms)


class Barrier(BaseMeeting):
    """A barrier: ``parties`` parties wait for each other and continue together.

    It can be used again immediately. A waiting party that dies leaves it within seconds.
    """

    @property
    def parties(self) -> int:
        """Number of parties that must arrive."""
        return self._size

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until all parties have arrived (True), or ``timeout`` seconds are over (False).

        After a timeout or a cancellation this party has left, and the others wait for another one.
        """
        return await pass_through(self._client._core, self._waiting(), checked_timeout(timeout))

    async def waiting(self) -> int:
        """Return the number of parties that are waiting now. One round trip."""
        return await waiting(self._client._core, self._terms)
