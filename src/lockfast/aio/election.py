"""An election, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Never, TypeVar

from lockfast.aio.hold import Hold
from lockfast.aio.lock import Lock
from lockfast.api.election import BaseElection
from lockfast.api.hold import add_note
from lockfast.api.lock import DEFAULT, Default
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.model import Leader

T = TypeVar("T")


class Leadership(Lock):
    """The lead, as a lock: whoever holds it leads."""

    on_gained: Callable[[Hold], object] | None = None

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """The lead, or `AcquireTimeout` that names the leader."""
        return await self._gained(await super().acquire(timeout=timeout, **foreign))

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        return self._begun(hold._held, hold)

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """The lead, or None: at once, or after waiting ``timeout`` seconds."""
        hold = await super().try_acquire(timeout=timeout, **foreign)
        return None if hold is None else await self._gained(hold)

    async def _gained(self, hold: Hold) -> Hold:
        if self.on_gained is not None:
            try:
                self.on_gained(hold)
            except BaseException as error:
                try:
                    await hold.release()
                except (HoldLost, BackendError, NotHeld) as ours:
                    add_note(error, ours)
                raise
        return hold


class Election(BaseElection[Hold]):
    __doc__ = BaseElection.__doc__

    def lead(self, *, timeout: Seconds | None = None) -> Leadership:
        """Stand for election: ``async with election.lead() as hold:`` waits until we lead, and
        resigns at the end. ``hold.fence`` is the term. A lead that is lost is told as with any
        lock."""
        wait_for = None if timeout is None else checked_timeout(timeout)
        leadership = Leadership(self._client, self._terms, wait_for, self._on_lost)
        leadership.on_gained = self._on_gained
        return leadership

    async def run(self, work: Callable[[Hold], Awaitable[T]]) -> T:
        """Call ``work`` with the hold whenever we lead, and stand again if the lead is lost under
        it, until it returns: what it returned. It is cancelled when the lead is lost."""
        while True:
            hold: Hold | None = None
            try:
                async with self.lead() as hold:
                    return await work(hold)
            except HoldLost as loss:
                if not self._is_ours(loss, hold):
                    raise
                self._again(loss)

    async def leader(self) -> Leader | None:
        """Who leads now, and what it tells of itself. One round trip, and old news when it
        arrives."""
        return self._leader(await self._client.core.inspect(self._terms.name))
