"""A hold, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lockfast.api.hold import BaseHold, add_note
from lockfast.api.lock import lease_or_none
from lockfast.core.ledger import DETACHED
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.runtime.threads import run


class Hold(BaseHold):
    __doc__ = BaseHold.__doc__
    __slots__ = ()

    def release(self) -> None:
        """Give it back, from any thread. `HoldLost` if it had ended before, `NotHeld` if it was
        released already, `BackendError` if the outcome is unknown."""
        rest = self._client.core.release_now(self._held, self._take)
        if rest is not None:
            run(rest)

    def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend it by hand, to ``lease`` seconds from now. `HoldLost` if it has ended."""
        run(self._client.core.renew(self._held, lease_or_none(lease)))

    def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Block until it is lost (True), or until it is released or the time is over (False)."""
        return run(self._client.core.wait_lost(self._held, checked_timeout(timeout)))

    def detach(self) -> str:
        """Stop keeping it and get a secret text with which ``client.attach(name, text)`` takes it
        over, in any process, before its lease ends."""
        return run(self._client.core.detach(self._held))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back, unless it was detached. The body's exception comes first; what went wrong
        with the release is attached to it."""
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
