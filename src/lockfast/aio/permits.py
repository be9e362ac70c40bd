"""Semaphore and expirable permits of the async API."""

from __future__ import annotations

from typing import Never

from lockfast.aio.hold import Hold
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.lock import DEFAULT, Default, lease_or_none
from lockfast.api.permits import BasePermits, BaseSemaphore, checked_permits
from lockfast.core.ledger import Held
from lockfast.core.permits import in_use, release_permit, renew_permit, resize, take_permit
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign


class Semaphore(BaseSemaphore[Hold]):
    __doc__ = BaseSemaphore.__doc__

    async def acquire(
        self, permits: int = 1, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """Acquire ``permits`` permits at once and return one hold for them.

        Waits for at most ``timeout`` seconds (default: that of the semaphore), then raises
        `AcquireTimeout`, which names a holder. `BackendError`: the store does not answer. A
        cancelled acquire leaves nothing behind.
        """
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        client, terms = self._client, self._taking(permits)
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        return await client.core.acquire_soon(terms, wait_for, self._new_hold)

    def _new_hold(self, held: Held) -> Hold:
        return Hold(self._client, held, self._on_lost)

    async def try_acquire(
        self, permits: int = 1, *, timeout: Seconds = 0, **foreign: Never
    ) -> Hold | None:
        """Acquire permits within ``timeout`` seconds (0: try once) and return the hold, or None."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await self._client.core.attempt(self._taking(permits), checked_timeout(timeout))
        return self._new_hold(held) if isinstance(held, Held) else None

    async def available(self) -> int:
        """Return the number of free permits. One round trip; may be outdated on arrival."""
        used, size = await in_use(self._client.core, self._terms)
        return max(size - used, 0)

    async def in_use(self) -> int:
        """Return the number of held permits. One round trip; may be outdated on arrival."""
        return (await in_use(self._client.core, self._terms))[0]

    async def resize(self, permits: int) -> None:
        """Change the number of permits, for this object and for all current holders and waiters.

        Existing holds stay, even if they are more. The store keeps the number only while somebody
        holds or waits: change it in every program; the old number raises `ConfigurationError`.
        """
        size = checked_permits(permits)
        await resize(self._client.core, self._terms, size)
        self._terms = self._terms._replace(slots=size)

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        self._push(self._owner(), hold)
        return await hold.__aenter__()

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        await self._pop(self._owner()).__aexit__(kind, error, trace)


class Permits(BasePermits):
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
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout", "lease"))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        terms = self._expiring(lease_or_none(lease))
        outcome = await take_permit(self._client.core, terms, wait_for)
        if not isinstance(outcome, str):
            await self._client.core.refuse(terms, wait_for, outcome)
        return outcome

    async def try_acquire(
        self, *, timeout: Seconds = 0, lease: Seconds | None = None, **foreign: Never
    ) -> str | None:
        """Acquire a permit within ``timeout`` seconds (0: try once) and return its id, or None."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout", "lease"))
        terms = self._expiring(lease_or_none(lease))
        outcome = await take_permit(self._client.core, terms, checked_timeout(timeout))
        return outcome if isinstance(outcome, str) else None

    async def release(self, permit_id: str) -> None:
        """Release a permit, from any process. Raises `HoldLost` if it had already ended."""
        await release_permit(self._client.core, *self._known(permit_id))

    async def renew(self, permit_id: str, *, lease: Seconds | None = None) -> None:
        """Extend a permit to ``lease`` seconds from now (default: its previous lease). Raises
        `HoldLost` if it had already ended."""
        known = self._known(permit_id, lease_or_none(lease))
        await renew_permit(self._client.core, *known)

    async def available(self) -> int:
        """Return the number of free permits. One round trip; may be outdated on arrival."""
        used, size = await in_use(self._client.core, self._terms)
        return max(size - used, 0)

    async def in_use(self) -> int:
        """Return the number of taken permits. One round trip; may be outdated on arrival."""
        return (await in_use(self._client.core, self._terms))[0]
