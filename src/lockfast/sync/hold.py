# Generated from lockfast/aio/hold.py by tools/generate_sync.py: change that file instead.
"""Holds of the sync API."""

from __future__ import annotations

from typing import Self

from lockfast.api.blocks import end_of
from lockfast.api.hold import BaseHold, BaseMultiHold, Error, ErrorType, Trace, add_note
from lockfast.api.primitives import lease_or_none
from lockfast.core.multi import release_all, renew_all
from lockfast.core.validity import wait_lost
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.runtime.threads import run
from lockfast.sync.native import begin_body, block_end, end_block


class Hold(BaseHold):
    __doc__ = BaseHold.__doc__
    __slots__ = ()

    def release(self) -> None:
        """Release the hold, from any thread.

        Raises `HoldLost` if it had already ended, `NotHeld` if already released, `BackendError` if
        the store did not answer: the outcome is unknown, but it ends with its lease at the latest.
        """
        rest = self._client._core.release(self._held, self._take)
        if rest is not None:
            run(rest)

    def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend the hold now, to ``lease`` seconds from now (default: its lease). One round trip.

        Raises `HoldLost` if the hold has ended, `BackendError` if the store does not answer.
        """
        run(self._client._core.renew(self._held, lease_or_none(lease)))

    def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Block until the hold is lost (True), or is released or ``timeout`` is over (False)."""
        return run(self._client._core.wait_lost(self._held, checked_timeout(timeout)))

    def detach(self) -> str:
        """Stop renewing the hold, and return a secret text for ``client.attach(name, text)``.

        Any process may attach it before the lease ends. Raises `HoldLost` if the hold has ended,
        `NotHeld` inside a re-entered block.
        """
        return run(self._client._core.detach(self._held))

    def __enter__(self) -> Self:
        self._body = begin_body(self, end_of(self))
        return self

    @block_end
    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        return self._end(error)

    def _end(self, error: Error) -> None:
        return end_block(self, error)


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
        self._body = begin_body(self, end_of(self))
        return self

    @block_end
    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        return self._end(error)

    def _end(self, error: Error) -> None:
        """Release all holds. If the body raised, our error is added as a note."""
        raised = error if self._body is None else self._body.close(error)
        try:
            self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if raised is None:
                raise
            add_note(raised, ours)
