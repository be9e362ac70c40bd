"""Those who want to know what happens: the one place through which events pass.

Where nobody listens there is no `Listeners` object, and all that an event costs is to see that. The
rules for who is told:

1. On the thread, and in the task, where it happened: so a listener knows the caller's context (its
   trace, say). What the keeper notices is told on the keeper's thread.
2. Under no lock of ours, and after the step that matters: when a hold is told of, its keeper knows
   it; when a release is told of, the store has been told first. A slow listener delays its caller,
   not the next holder.
3. What a listener raises is logged, once for each listener, and goes no further: to watch a lock
   must not break it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lockfast.core.ledger import DETACHED, Held, bare
from lockfast.events import (
    Acquired,
    Detached,
    Event,
    Failed,
    Lost,
    Refused,
    Released,
    RenewFailed,
    TimedOut,
    WaitBegan,
    WaitEnded,
)
from lockfast.model import Claim

Listener = Callable[[Event], object]
log = logging.getLogger("lockfast")


class Listeners:
    """The listeners of a client and of its twin; at least one."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._listeners: tuple[Listener, ...] = ()
        self._complained: set[int] = set()

    def add(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def tell(self, event: Event) -> None:
        for at, listener in enumerate(self._listeners):
            try:
                listener(event)
            except Exception:  # rule 3
                if at not in self._complained:
                    self._complained.add(at)
                    log.exception(
                        "lockfast: the listener %r raised on %r (told once; it is called again)",
                        listener,
                        event,
                    )

    # ---- the values ------------------------------------------------------------------------

    def acquired(self, claim: Claim, template: str, fence: int, waited: float) -> Acquired:
        return Acquired(self._store, bare(claim.name), template, fence, waited)

    def ended(self, held: Held, began: Acquired) -> None:
        """What has a cause is lost, also if that was noticed only when it was released."""
        said = (began.store, began.name, began.template, began.fence, held.lasted)
        if held.cause:
            self.tell(Lost(*said, held.cause))
        else:
            self.tell((Detached if held.state is DETACHED else Released)(*said))

    def wait_began(self, claim: Claim, template: str) -> WaitBegan:
        event = WaitBegan(self._store, bare(claim.name), template)
        self.tell(event)
        return event

    def wait_ended(self, began: WaitBegan, waited: float) -> None:
        self.tell(WaitEnded(began.store, began.name, began.template, waited))

    def not_acquired(self, claim: Claim, template: str, waited: float) -> None:
        """The time was over; or there was none."""
        kind = TimedOut if claim.wait else Refused
        self.tell(kind(self._store, bare(claim.name), template, waited))

    def failed(self, claim: Claim, template: str, waited: float, error: BaseException) -> None:
        kind = type(error).__name__
        self.tell(Failed(self._store, bare(claim.name), template, waited, kind))

    def renew_failed(self, count: int, error: Exception) -> None:
        self.tell(RenewFailed(self._store, count, str(error)))
