"""Event listeners: every event of a client passes through `Listeners`.

A client without listeners has no `Listeners` object; an event then costs one comparison. The rules:

1. Events are emitted on the thread and in the task where they happen, so that a listener sees the
   caller's context (its trace, say). The keeper emits what it notices on its own thread.
2. Events are emitted outside all of our locks, and after the step that matters: `Acquired` when the
   keeper knows the hold, `Released` when the store has been asked to release it. A slow listener
   delays its caller, not the next holder.
3. An exception from a listener is logged, once per listener, and goes no further: observing a lock
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
    """The listeners, one or more, of a client and of its counterpart in the other API."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._listeners: tuple[Listener, ...] = ()
        self._complained: set[int] = set()

    def add(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def emit(self, event: Event) -> None:
        """Call every listener with the event."""
        for at, listener in enumerate(self._listeners):
            try:
                listener(event)
            except (Exception, SystemExit):  # rule 3
                if at not in self._complained:
                    self._complained.add(at)
                    log.exception(
                        "lockfast: the listener %r raised on %r (logged once; it stays registered)",
                        listener,
                        event,
                    )

    # ---- the events ------------------------------------------------------------------------

    def acquired(self, claim: Claim, template: str, fence: int, waited: float) -> Acquired:
        return Acquired(self._store, bare(claim.name), template, fence, waited)

    def ended(self, held: Held, began: Acquired) -> None:
        """Emit the end of a hold. One with a cause is lost, even if noticed only on release."""
        fields = (began.store, began.name, began.template, began.fence, held.lasted)
        if held.cause:
            self.emit(Lost(*fields, held.cause))
        else:
            self.emit((Detached if held.state is DETACHED else Released)(*fields))

    def wait_began(self, claim: Claim, template: str) -> WaitBegan:
        event = WaitBegan(self._store, bare(claim.name), template)
        self.emit(event)
        return event

    def wait_ended(self, began: WaitBegan, waited: float) -> None:
        self.emit(WaitEnded(began.store, began.name, began.template, waited))

    def not_acquired(self, claim: Claim, template: str, waited: float) -> None:
        """Emit a time-out or, for a claim that does not wait, a refusal."""
        kind = TimedOut if claim.wait else Refused
        self.emit(kind(self._store, bare(claim.name), template, waited))

    def failed(self, claim: Claim, template: str, waited: float, error: BaseException) -> None:
        kind = type(error).__name__
        self.emit(Failed(self._store, bare(claim.name), template, waited, kind))

    def renew_failed(self, count: int, error: Exception) -> None:
        self.emit(RenewFailed(self._store, count, str(error)))
