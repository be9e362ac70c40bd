"""Election of the async API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Never, TypeVar

from lockfast.aio.hold import Hold
from lockfast.aio.lock import Lock
from lockfast.api.blocks import end_of
from lockfast.api.hold import add_note
from lockfast.api.primitives import DEFAULT, BaseElection, Default
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.model import Leader

T = TypeVar("T")


class Leadership(Lock):
    """The lead of an election, as a lock: its holder is the leader."""

    on_gained: Callable[[Hold], object] | None = None

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """Wait until this process leads, and return the hold; its fence is the term.

        Raises `AcquireTimeout`, which names the leader. If ``on_gained`` raises, the lead is
        released and the exception passes through. A cancelled call leaves nothing behind.
        """
        return await self._gained(await super().acquire(timeout=timeout, **foreign))

    async def __aenter__(self) -> Hold:
        end = end_of(self)
        return self._begin_block(await self.acquire(), end)

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """Return the hold if this process leads within ``timeout`` seconds, or None."""
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


class Election(BaseElection):
    __doc__ = BaseElection.__doc__

    def lead(self, *, timeout: Seconds | None = None) -> Leadership:
        """Stand for election: ``async with election.lead() as hold:`` waits for the lead, then
        resigns. ``hold.fence`` is the term. A lost lead cancels the block, as for any lock, and
        raises `HoldLost`."""
        wait_for = checked_timeout(timeout)
        leadership = Leadership(self._client, self._terms, wait_for, self._on_lost)
        leadership.on_gained = self._on_gained
        return leadership

    async def run(self, work: Callable[[Hold], Awaitable[T]]) -> T:
        """Call ``work(hold)`` whenever this process leads, until it returns; return its result.

        A lost lead cancels ``work``; then stands for election again and calls ``work`` again.
        """
        while True:
            fence = None
            try:
                async with self.lead() as hold:
                    fence = hold.fence
                    return await work(hold)
            except HoldLost as loss:
                if not self._is_ours(loss, fence):
                    raise
                self._log_lost_lead(loss)

    async def leader(self) -> Leader | None:
        """Return the leader with metadata and term, or None. One round trip; may be outdated."""
        return self._leader(await self._client._core.inspect(self._terms.name))
