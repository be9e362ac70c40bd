"""A semaphore and expirable permits, for asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Never

from lockfast.aio.hold import Hold
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
        """So many permits at once, as one hold; or `AcquireTimeout` that names a holder."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        client, terms = self._client, self._taking(permits)
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        return await client.core.acquire_soon(terms, wait_for, self._made)

    def _made(self, held: Held) -> Hold:
        return Hold(self._client, held, self._on_lost)

    async def try_acquire(
        self, permits: int = 1, *, timeout: Seconds = 0, **foreign: Never
    ) -> Hold | None:
        """A hold of so many permits, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await self._client.core.attempt(self._taking(permits), checked_timeout(timeout))
        return self._made(held) if isinstance(held, Held) else None

    async def available(self) -> int:
        """How many permits are free. One round trip, and old news when it arrives."""
        used, size = await in_use(self._client.core, self._terms)
        return max(size - used, 0)

    async def in_use(self) -> int:
        """How many permits are held. One round trip, and old news when it arrives."""
        return (await in_use(self._client.core, self._terms))[0]

    async def resize(self, permits: int) -> None:
        """Another number of permits, for this object and for all who hold or wait now. Who holds
        more than there are goes on. Nothing is remembered when nobody holds it or waits: use the
        new number everywhere; whoever still says the old one gets an error that shows both."""
        size = checked_permits(permits)
        await resize(self._client.core, self._terms, size)
        self._terms = self._terms._replace(slots=size)

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        self._push(self._owner(), hold)
        return await hold.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pop(self._owner()).__aexit__(kind, error, trace)


class Permits(BasePermits):
    """Permits that expire: each has an id and a lease of its own, belongs to whoever knows the id,
    and ends with its lease, whatever becomes of the process that took it. Nobody renews it."""

    async def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        lease: Seconds | None = None,
        **foreign: Never,
    ) -> str:
        """A permit's id, or `AcquireTimeout` that names a holder. The id is a secret."""
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
        """A permit's id, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout", "lease"))
        terms = self._expiring(lease_or_none(lease))
        wait_for = checked_timeout(timeout)
        outcome = await take_permit(self._client.core, terms, wait_for)
        return outcome if isinstance(outcome, str) else None

    async def release(self, permit_id: str) -> None:
        """Give a permit back, in any process. `HoldLost` if it had ended before."""
        await release_permit(self._client.core, *self._known(permit_id))

    async def renew(self, permit_id: str, *, lease: Seconds | None = None) -> None:
        """Let it last for ``lease`` seconds from now on (or as long again). `HoldLost` if it had
        ended before."""
        known = self._known(permit_id, lease_or_none(lease))
        await renew_permit(self._client.core, *known)

    async def available(self) -> int:
        """How many permits are free. One round trip, and old news when it arrives."""
        used, size = await in_use(self._client.core, self._terms)
        return max(size - used, 0)

    async def in_use(self) -> int:
        """How many permits are taken. One round trip, and old news when it arrives."""
        return (await in_use(self._client.core, self._terms))[0]
