"""Multi-lock of the sync API."""

from __future__ import annotations

from typing import Never, Self

from lockfast.api.hold import Error, ErrorType, Trace, add_note
from lockfast.api.lock import DEFAULT, Default, lease_or_none
from lockfast.api.multi import BaseMultiHold, BaseMultiLock
from lockfast.core.loss import wait_lost
from lockfast.core.multi import Refused, attempt_all, release_all, renew_all
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign
from lockfast.runtime.threads import run


class MultiHold(BaseMultiHold):
    __doc__ = BaseMultiHold.__doc__
    __slots__ = ()

    def release(self) -> None:
        """Release all holds, from any thread.

        Raises `HoldLost` if one had already ended, `NotHeld` if they were already released,
        `BackendError` if an outcome is unknown; the others are released in any case.
        """
        try:
            for error in run(release_all(self._entries)):
                raise error
        finally:
            self._stop_notifying()

    def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend all holds to ``lease`` seconds from now. Raises `HoldLost` if one has ended."""
        run(renew_all(self._pairs, lease_or_none(lease)))

    def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Block until one hold is lost (True), or they are released or time is over (False)."""
        return run(wait_lost(self._pairs, checked_timeout(timeout)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Release all holds. If the body raised, our error is added as a note."""
        try:
            self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if error is None:
                raise
            add_note(error, ours)


class MultiLock(BaseMultiLock[MultiHold]):
    __doc__ = BaseMultiLock.__doc__

    def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> MultiHold:
        """Acquire all names and return one hold for them.

        Blocks for at most ``timeout`` seconds in total (default: that of the lock), then raises
        `AcquireTimeout`, which shows the first name that was not free and its holder. A failed or
        interrupted acquire leaves nothing behind.
        """
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = run(attempt_all(self._parts, wait_for))
        if isinstance(held, Refused):
            run(held.part.core.refuse(held.part.terms, wait_for, held.outcome))
        return MultiHold(self._entries(held), self._on_lost)

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> MultiHold | None:
        """Acquire all names within ``timeout`` seconds (0: try once); return the hold, or None."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = run(attempt_all(self._parts, checked_timeout(timeout)))
        return None if isinstance(held, Refused) else MultiHold(self._entries(held), self._on_lost)

    def __enter__(self) -> MultiHold:
        hold = self.acquire()
        self._push(self._owner(), hold)
        return hold

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        self._pop(self._owner()).__exit__(kind, error, trace)
