"""Base classes of holds: everything that neither blocks nor awaits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from lockfast.core.ledger import HELD, LOST, Held, bare
from lockfast.core.locks import Core
from lockfast.core.multi import Entry
from lockfast.errors import ConfigurationError, HoldLost, Unsupported

if TYPE_CHECKING:
    from lockfast.api.client import BaseClient

log = logging.getLogger("lockfast")
# The arguments of __exit__ and __aexit__.
ErrorType = type[BaseException] | None
Error = BaseException | None
Trace = TracebackType | None
OnLost = Callable[[Any], object] | str | None


class AnyHold:
    """A value that an acquire returned: entered and left by its owner, and never copied."""

    __slots__ = ("__weakref__", "_body", "_entered_by", "_guard", "_on_lost", "_outer")
    _entered_by: object  # the owner that entered a block with it

    def __init__(self, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._outer: Any = None  # the hold that the same owner entered around it
        self._body: Any = None  # the block under way that a loss cancels
        self._guard: object = None  # what releases the hold if its block is never ended

    def _end(self, error: Error) -> Any:
        """Release the hold at the end of its block."""
        raise TypeError("implemented by the holds of both APIs")

    def _call_on_lost(self, shown: object) -> None:
        if callable(self._on_lost):
            try:
                self._on_lost(self)
            except (Exception, SystemExit):  # user code must not end our thread
                log.exception("lockfast: the on_lost callback of %r raised", shown)

    def _notify(self, core: Core, shown: object) -> None:
        """Call ``on_lost``, which may block: on a thread of its own if the keeper found the loss,
        since other holds are to be renewed meanwhile."""
        core.keeper.runtime.background("lockfast-on-lost", lambda: self._call_on_lost(shown))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a hold cannot be copied or pickled: acquire in the process that needs it, or pass a "
            "hold on with hold.detach() and client.attach()"
        )

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


class BaseHold(AnyHold):
    """A hold: the value that an acquire returned, with its fence, and the means to release it.

    It belongs to the process that acquired it and cannot be copied or pickled; `detach` returns a
    text with which another process takes it over.
    """

    __slots__ = ("_client", "_depth", "_held", "_take")

    def __init__(
        self, client: BaseClient, held: Held, on_lost: OnLost = None, take: int = 1
    ) -> None:
        self._client = client
        self._held = held
        self._on_lost = on_lost
        self._take = take  # slots of this entry: a writer that also reads has two entries
        self._depth = held.count  # of this entry among those of its owner
        self._outer = self._body = self._guard = None
        if on_lost is not None and callable(on_lost) and held.count == 1:
            # Only the outermost entry calls on_lost, so that it is called once.
            client._core.ledger.on_end(held, self._notify_lost)

    @property
    def _pairs(self) -> Sequence[tuple[Core, Held]]:
        return ((self._client._core, self._held),)

    def _notify_lost(self) -> None:
        if self._is_lost():
            self._notify(self._client._core, self.name)

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
        return self._client._core.is_held(self._held)

    @property
    def is_certain(self) -> bool:
        """False while the state of the hold is uncertain. No I/O.

        Uncertain: the store did not answer (a failed renewal, a disconnected ZooKeeper session, a
        release without reply), until its next answer or the end of the validity. Work that must not
        be done twice should pause or stop meanwhile.
        """
        return self._held.is_certain(self._client._core.runtime.now())

    @property
    def lost(self) -> bool:
        """True if the hold ended before it was released. No I/O."""
        self._client._core.settle(self._held)
        return self._is_lost()

    def _is_lost(self) -> bool:
        return self._held.state is LOST

    def remaining(self) -> float:
        """Return the seconds until the validity ends unless it is renewed; 0 when it has ended."""
        if self._held.state is not HELD:
            return 0.0
        return max(self._held.deadline - self._client._core.runtime.now(), 0.0)

    def check(self) -> None:
        """Raise `HoldLost` if the hold is lost, `NotHeld` if it was released. No round trip."""
        self._client._core.check(self._held)

    def __repr__(self) -> str:
        note = "" if self.is_certain else ", unconfirmed"
        return f"<Hold on {self.name!r}, fence {self._held.fence}, {self._held.state.value}{note}>"


class BaseMultiHold(AnyHold):
    """Holds of several names, released together. Lost as soon as one of them is lost."""

    __slots__ = ("_entries", "_notified", "_pairs")

    def __init__(self, entries: Sequence[Entry], on_lost: OnLost = None) -> None:
        super().__init__(on_lost)
        self._entries = entries
        self._pairs = pairs = [(core, held) for core, held, _ in entries]
        self._notified = False
        if callable(on_lost):
            for core, held in pairs:
                core.ledger.on_end(held, self._notify_lost)

    def _notify_lost(self) -> None:
        with self._pairs[0][0].ledger.mutex:
            before, self._notified = self._notified, self._notified or self._is_lost()
            first = self._notified and not before
        if first:
            self._notify(self._pairs[0][0], self.names)

    def _stop_notifying(self) -> None:
        """Unregister on_lost after the release: an outer hold of the names may still be lost."""
        if callable(self._on_lost):
            for core, held in self._pairs:
                core.ledger.off_end(held, self._notify_lost)

    def _is_lost(self) -> bool:
        return any(held.state is LOST for _, held in self._pairs)

    @property
    def names(self) -> list[str]:
        """Names of the locks, in the order in which they were acquired."""
        return [bare(held.claim.name) for _, held in self._pairs]

    @property
    def fences(self) -> dict[str, int]:
        """Fence of each name, for its resource; of a name held on two stores, that of the last."""
        return {bare(held.claim.name): held.fence for _, held in self._pairs}

    @property
    def is_held(self) -> bool:
        """True while all of the holds are valid; see `Hold.is_held`. No I/O."""
        return all(core.is_held(held) for core, held in self._pairs)

    @property
    def is_certain(self) -> bool:
        """False while the state of any of the holds is uncertain; see `Hold.is_certain`. No I/O."""
        return all(held.is_certain(core.runtime.now()) for core, held in self._pairs)

    @property
    def lost(self) -> bool:
        """True if one of the holds ended before it was released. No I/O."""
        for core, held in self._pairs:
            core.settle(held)
        return self._is_lost()

    def remaining(self) -> float:
        """Return the seconds until the first validity ends unless it is renewed; 0 after that."""
        now = self._pairs[0][0].runtime.now()
        return max(min(held.deadline for _, held in self._pairs) - now, 0.0) if self.is_held else 0

    def check(self) -> None:
        """Raise `HoldLost` if one hold is lost, `NotHeld` if they were released. No round trip."""
        for core, held in self._pairs:
            core.check(held)

    def __repr__(self) -> str:
        return f"<MultiHold on {', '.join(map(repr, self.names))}>"


@dataclass(frozen=True, slots=True)
class TransactionHold:
    """A hold that your open transaction keeps until commit, rollback or the loss of its connection.

    A ``with`` block only marks the code that runs under the lock: leaving it releases nothing.
    """

    name: str
    fence: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Do nothing: commit or roll back yourself."""


def add_note(body: BaseException, ours: Exception) -> None:
    """Attach our error to the body's exception, which takes precedence; not the same loss twice."""
    if not (isinstance(body, HoldLost) and str(body) == str(ours)):
        body.add_note(f"and while releasing the lock: {ours}")


def checked_on_lost(on_lost: object, choices: tuple[str, ...]) -> Any:
    if on_lost is None or callable(on_lost) or on_lost in choices:
        return on_lost
    accepted = ", ".join(("None", *map(repr, choices)))
    raise ConfigurationError(
        f"on_lost={on_lost!r} must be {accepted} or a function that takes the hold"
    )
