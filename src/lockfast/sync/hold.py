"""Hold of the sync API."""

from __future__ import annotations

from typing import Self

from lockfast.api.hold import BaseHold, Error, ErrorType, Trace, add_note
from lockfast.api.lock import lease_or_none
from lockfast.core.ledger import DETACHED
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.runtime.threads import run


class Hold(BaseHold):
    __doc__ = BaseHold.__doc__
    __slots__ = ()

    def release(self) -> None:
        """Release the hold, from any thread.

        Raises `HoldLost` if it had already ended, `NotHeld` if already released, `BackendError` if
        the store did not answer: the outcome is unknown, but it ends with its lease at the latest.
        """
        rest = self._client.core.release_now(self._held, self._take)
        if rest is not None:
            run(rest)

    def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend the hold now, to ``lease`` seconds from now (default: its lease). One round trip.

        Raises `HoldLost` if the hold has ended, `BackendError` if the store does not answer.
        """
        run(self._client.core.renew(self._held, lease_or_none(lease)))

    def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Block until the hold is lost (True), or is released or ``timeout`` is over (False)."""
        return run(self._client.core.wait_lost(self._held, checked_timeout(timeout)))

    def detach(self) -> str:
        """Stop renewing the hold, and return a secret text for ``client.attach(name, text)``.

        Any process may attach it before the lease ends. Raises `HoldLost` if the hold has ended,
        `NotHeld` inside a re-entered block.
        """
        return run(self._client.core.detach(self._held))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Release the hold, unless detached. If the body raised, our error is added as a note."""
        if self._held.state is DETACHED:
            return
        try:
            rest = self._client.core.release_now(self._held, self._take)
            if rest is not None:
                run(rest)
        except (HoldLost, BackendError, NotHeld) as ours:
            if error is None:
                raise
            add_note(error, ours)
