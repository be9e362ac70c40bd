"""What both faces share of a hold: all that neither blocks nor awaits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from lockfast.core.ledger import HELD, LOST, Held, bare
from lockfast.errors import HoldLost, Unsupported

if TYPE_CHECKING:
    from lockfast.api.client import BaseClient

log = logging.getLogger("lockfast")


class BaseHold:
    """A hold: the value that you were given, and the only thing that may end it.

    It is bound to the process that acquired it. It cannot be copied or pickled; `detach` makes a
    text with which another process takes it over.
    """

    __slots__ = ("__weakref__", "_client", "_held", "_on_lost", "_outer", "_take")

    def __init__(
        self, client: BaseClient, held: Held, on_lost: object = None, take: int = 1
    ) -> None:
        self._client = client
        self._held = held
        self._on_lost = on_lost
        self._take = take  # what this entry asked for: of a writer that also reads, one of both
        self._outer: Any = None
        if on_lost is not None and callable(on_lost) and held.count == 1:
            # The outermost entry tells, once.
            client.core.ledger.on_end(held, self._tell_lost)

    def _tell_lost(self) -> None:
        if self._is_lost() and callable(self._on_lost):
            try:
                self._on_lost(self)
            except Exception:  # foreign code must not end the keeper
                log.exception("lockfast: on_lost of %r raised", self.name)

    @property
    def name(self) -> str:
        """What is locked."""
        return bare(self._held.claim.name)

    @property
    def fence(self) -> int:
        """The growing number of this hold: let the resource refuse a lower one. Never changes."""
        if self._held.claim.layout and not self._held.fence:
            raise Unsupported(
                f"{self.name!r} is a plain lock (layout {self._held.claim.layout!r}), which has no "
                "fence: nothing can refuse a stale writer"
            )
        return self._held.fence

    @property
    def lease(self) -> float:
        """How long it lasts unless renewed, in seconds."""
        return self._held.claim.lease

    @property
    def is_held(self) -> bool:
        """May we still believe in it? Needs no store: it ends, at the latest, with the lease that
        was last granted, counted from before it was asked for, on a clock that runs in suspend."""
        return self._client.core.is_held(self._held)

    @property
    def is_certain(self) -> bool:
        """Is `is_held` more than belief? False from when the store did not answer for it (a renewal
        failed, the connection to ZooKeeper is lost, a release was not answered) until it does, or
        until belief ends. Who has something to do that must not be done twice waits, or stops."""
        return self._held.is_certain(self._client.core.runtime.now())

    @property
    def lost(self) -> bool:
        """Did it end without us?"""
        self._client.core.settle(self._held)
        return self._is_lost()

    def _is_lost(self) -> bool:
        return self._held.state is LOST

    def remaining(self) -> float:
        """Seconds until belief ends unless it is renewed; 0 when it has ended."""
        if self._held.state is not HELD:
            return 0.0
        return max(self._held.deadline - self._client.core.runtime.now(), 0.0)

    def check(self) -> None:
        """Raise `HoldLost` if it is lost, `NotHeld` if it was released. Cheap: no round trip."""
        self._client.core.check(self._held)

    def __repr__(self) -> str:
        note = "" if self.is_certain else ", unconfirmed"
        return f"<Hold on {self.name!r}, fence {self._held.fence}, {self._held.state.value}{note}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a hold cannot be copied or pickled: hold.detach() and client.attach()")

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


def add_note(body: BaseException, ours: Exception) -> None:
    """The body's exception comes first; what went wrong while leaving is attached to it, unless the
    body has said the same."""
    if not (isinstance(body, HoldLost) and str(body) == str(ours)):
        body.add_note(f"and while leaving the lock: {ours}")
