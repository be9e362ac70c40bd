"""Multi-lock of the async API."""

from __future__ import annotations

import asyncio
from typing import Never, Self

from lockfast.aio.hold import Body
from lockfast.api.hold import Error, ErrorType, Trace, add_note
from lockfast.api.lock import DEFAULT, Default, lease_or_none
from lockfast.api.multi import BaseMultiHold, BaseMultiLock
from lockfast.core.loss import wait_lost
from lockfast.core.multi import Refused, attempt_all, release_all, renew_all
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign


class MultiHold(BaseMultiHold, Body):
    __doc__ = BaseMultiHold.__doc__
    __slots__ = ("_cancelled", "_cancelling", "_task")

    async def release(self) -> None:
        """Release all holds, from any task.

        Raises `HoldLost` if one had already ended, `NotHeld` if they were already released,
        `BackendError` if an outcome is unknown; the others are released in any case.
        """
        try:
            for error in await release_all(self._entries):
                raise error
        finally:
            self._stop_notifying()

    async def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend all holds to ``lease`` seconds from now. Raises `HoldLost` if one has ended."""
        await renew_all(self._pairs, lease_or_none(lease))

    async def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Wait until one hold is lost (True), or they are released or time is over (False)."""
        return await wait_lost(self._pairs, checked_timeout(timeout))

    async def __aenter__(self) -> Self:
        self._task = None
        if self._on_lost != "flag":
            self._open(asyncio.current_task())
            for core, held in self._pairs:
                core.ledger.on_end(held, self._stop)
        return self

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Release all holds. If the body raised, our error is added as a note. A body that was
        cancelled because a hold was lost ends in `HoldLost`."""
        raised = error
        if self._task is not None:
            for core, held in self._pairs:
                core.ledger.off_end(held, self._stop)
            raised = self._close(error)
        try:
            await self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if raised is None:
                raise ours from error
            add_note(raised, ours)


class MultiLock(BaseMultiLock[MultiHold]):
    __doc__ = BaseMultiLock.__doc__

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> MultiHold:
        """Acquire all names and return one hold for them.

        Waits for at most ``timeout`` seconds in total (default: that of the lock), then raises
        `AcquireTimeout`, which shows the first name that was not free and its holder. A failed or
        cancelled acquire leaves nothing behind.
        """
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = await attempt_all(self._parts, wait_for)
        if isinstance(held, Refused):
            await held.part.core.refuse(held.part.terms, wait_for, held.outcome)
        return MultiHold(self._entries(held), self._on_lost)

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> MultiHold | None:
        """Acquire all names within ``timeout`` seconds (0: try once); return the hold, or None."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await attempt_all(self._parts, checked_timeout(timeout))
        return None if isinstance(held, Refused) else MultiHold(self._entries(held), self._on_lost)

    async def __aenter__(self) -> MultiHold:
        hold = await self.acquire()
        self._push(self._owner(), hold)
        return await hold.__aenter__()

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        await self._pop(self._owner()).__aexit__(kind, error, trace)
