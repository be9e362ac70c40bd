"""A multi-lock, for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Never, Self

from lockfast.aio.hold import Body
from lockfast.api.hold import add_note
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
        """Give all of them back, from any task. `HoldLost` if one had ended before, `NotHeld` if
        they were released already, `BackendError` if an outcome is unknown; in any case all that
        can be released is."""
        try:
            for error in await release_all(self._entries):
                raise error
        finally:
            self._tell_no_more()

    async def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend all by hand, to ``lease`` seconds from now. `HoldLost` if one has ended."""
        await renew_all(self._pairs, lease_or_none(lease))

    async def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Wait until one is lost (True), or until they are released or the time is over."""
        return await wait_lost(self._pairs, checked_timeout(timeout))

    async def __aenter__(self) -> Self:
        self._task = None
        if self._on_lost != "flag":
            self._open(asyncio.current_task())
            for core, held in self._pairs:
                core.ledger.on_end(held, self._stop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give all back. The body's exception comes first; what went wrong with the release is
        attached to it. A body that we cancelled ends in `HoldLost`."""
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
        """All of them, or `AcquireTimeout` that names the first that was in the way and its holder.
        Waits ``timeout`` seconds in all."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = await attempt_all(self._parts, wait_for)
        if isinstance(held, Refused):
            await held.part.core.refuse(held.part.terms, wait_for, held.outcome)
        return MultiHold(self._entries(held), self._on_lost)

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> MultiHold | None:
        """All of them, or None: at once, or after waiting ``timeout`` seconds in all."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await attempt_all(self._parts, checked_timeout(timeout))
        return None if isinstance(held, Refused) else MultiHold(self._entries(held), self._on_lost)

    async def __aenter__(self) -> MultiHold:
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
