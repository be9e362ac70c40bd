"""Base class of holds: everything that neither blocks nor awaits."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from lockfast.core.ledger import HELD, LOST, Held, bare
from lockfast.errors import HoldLost, Unsupported

if TYPE_CHECKING:
    from lockfast.api.client import BaseClient

log = logging.getLogger("lockfast")
# The arguments of __exit__ and __aexit__.
ErrorType = type[BaseException] | None
Error = BaseException | None
Trace = TracebackType | None


class BaseHold:
    """A hold: the value that an acquire returned, with its fence, and the means to release it.

    It belongs to the process that acquired it and cannot be copied or pickled; `detach` returns a
    text with which another process takes it over.
    """

    __slots__ = ("__weakref__", "_client", "_held", "_on_lost", "_outer", "_take")

    def __init__(
        self, client: BaseClient, held: Held, on_lost: object = None, take: int = 1
    ) -> None:
        self._client = client
        self._held = held
        self._on_lost = on_lost
        self._take = take  # slots of this entry: a writer that also reads has two entries
        self._outer: Any = None
        if on_lost is not None and callable(on_lost) and held.count == 1:
            # Only the outermost entry calls on_lost, so that it is called once.
            client.core.ledger.on_end(held, self._notify_lost)

    def _notify_lost(self) -> None:
        if self._is_lost() and callable(self._on_lost):
            try:
                self._on_lost(self)
            except (Exception, SystemExit):  # user code must not end the keeper
                log.exception("lockfast: the on_lost callback of %r raised", self.name)

    @property
    def name(self) -> str:
        """Name of the lock."""
        return bare(self._held.claim.name)

    @property
    def fence(self) -> int:
        """Fence of this hold, higher than that of every earlier hold of the name. Never changes.

        Pass it with each write, and let the resource refuse a lower one. Raises `Unsupported` for a
        foreign layout without fences.
        """
        if self._held.claim.layout and not self._held.fence:
            raise Unsupported(
                f"{self.name!r} is a plain lock (layout {self._held.claim.layout!r}), which has no "
                "fence: no resource can recognize a stale writer"
            )
        return self._held.fence

    @property
    def lease(self) -> float:
        """Lease in seconds: the hold ends this long after the last renewal."""
        return self._held.claim.lease

    @property
    def is_held(self) -> bool:
        """True while the hold is valid. No I/O.

        Validity ends at the latest with the lease that was last granted, counted from before the
        request was sent, on a clock that also runs while the machine is suspended.
        """
        return self._client.core.is_held(self._held)

    @property
    def is_certain(self) -> bool:
        """False while the state of the hold is uncertain. No I/O.

        Uncertain: the store did not answer (a failed renewal, a disconnected ZooKeeper session, a
        release without reply), until its next answer or the end of the validity. Work that must not
        be done twice should pause or stop meanwhile.
        """
        return self._held.is_certain(self._client.core.runtime.now())

    @property
    def lost(self) -> bool:
        """True if the hold ended before it was released. No I/O."""
        self._client.core.settle(self._held)
        return self._is_lost()

    def _is_lost(self) -> bool:
        return self._held.state is LOST

    def remaining(self) -> float:
        """Return the seconds until the validity ends unless it is renewed; 0 when it has ended."""
        if self._held.state is not HELD:
            return 0.0
        return max(self._held.deadline - self._client.core.runtime.now(), 0.0)

    def check(self) -> None:
        """Raise `HoldLost` if the hold is lost, `NotHeld` if it was released. No round trip."""
        self._client.core.check(self._held)

    def __repr__(self) -> str:
        note = "" if self.is_certain else ", unconfirmed"
        return f"<Hold on {self.name!r}, fence {self._held.fence}, {self._held.state.value}{note}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a hold cannot be copied or pickled: pass it on with hold.detach() and client.attach()"
        )

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


def add_note(body: BaseException, ours: Exception) -> None:
    """Attach our error to the body's exception, which takes precedence; not the same loss twice."""
    if not (isinstance(body, HoldLost) and str(body) == str(ours)):
        body.add_note(f"and while releasing the lock: {ours}")
