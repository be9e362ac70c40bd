"""Base classes of locks, semaphores, latches, barriers and elections: a name and its options.

The objects hold nothing, so any number of threads and tasks may share them. Creating one does no
I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from lockfast.api.client import BaseClient
from lockfast.api.hold import AnyHold, OnLost
from lockfast.core.ledger import Held, bare, shown
from lockfast.core.multi import Entry, Part, in_order
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, HoldLost, NotHeld
from lockfast.inputs import (
    Seconds,
    checked_lease,
    checked_number,
    checked_timeout,
    refuse_foreign,
)
from lockfast.model import ALL_SLOTS, MOST_PERMITS, Capabilities, Claim, Leader, Snapshot

log = logging.getLogger("lockfast")

# Each count-down and each party is an entry that the store reads in every operation.
MOST_COUNT = 10_000
# Seconds that the store keeps a latch after the last count-down.
DEFAULT_KEEP = 86_400.0


class Default:
    """Type of `DEFAULT`: use the timeout that the lock was created with."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


H = TypeVar("H", bound=AnyHold)


class Acquirable(Generic[H]):
    """Whatever is acquired, with the defaults for that, and bookkeeping for ``with``: the hold that
    each owner entered last, linked to the outer ones."""

    def __init__(self, timeout: float | None, on_lost: OnLost) -> None:
        self._timeout = timeout
        self._on_lost = on_lost
        self._entered: dict[object, H] = {}

    def _wait_for(
        self, call: str, timeout: Seconds | Default | None, foreign: Mapping[str, Any], *known: str
    ) -> float | None:
        """Check the keywords of an acquire and return the seconds to wait."""
        if foreign:
            refuse_foreign(call, foreign, ("timeout", *known))
        return self._timeout if timeout is DEFAULT else checked_timeout(timeout)

    def _push(self, owner: object, hold: H) -> None:
        hold._outer = self._entered.get(owner)
        hold._entered_by = owner
        self._entered[owner] = hold

    def _pop(self, owner: object) -> H:
        """Remove the hold that this owner entered last, and return it."""
        hold = self._entered.get(owner)
        if hold is None:
            raise NotHeld(f"{self}: this thread or task did not enter this with block")
        self._unlink(hold)
        return hold

    def _unlink(self, hold: H) -> None:
        """Remove the hold from those that its owner has entered. One step, so that an interrupt
        leaves it undone or done."""
        owner = hold._entered_by
        last: Any = self._entered.get(owner)
        if last is not hold:
            while last is not None and last._outer is not hold:
                last = last._outer
            if last is not None:
                last._outer = hold._outer
        elif hold._outer is not None:
            self._entered[owner] = hold._outer
        else:
            del self._entered[owner]


class Named(Acquirable[H]):
    """A name of a client, and the options with which it is acquired."""

    def __init__(
        self, client: BaseClient, terms: Terms, timeout: float | None = None, on_lost: OnLost = None
    ) -> None:
        super().__init__(timeout, on_lost)
        self._client = client
        self._terms = terms

    @property
    def name(self) -> str:
        """Name, without the client's namespace."""
        return bare(self._terms.name)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r}{self._shown_size()} on {self._client._endpoint.url}>"

    def _shown_size(self) -> str:
        return ""

    def _owner(self) -> object:
        owner = self._terms.owner
        return owner if owner is not None else self._client._core.runtime.owner()


class BaseLock(Named[H]):
    """A lock: a name, and the options with which it is acquired.

    The object itself holds nothing, so any number of threads and tasks may share it; each of them
    is an owner of its own. Re-entrant: the same owner may acquire it again.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Features of this lock: those of its store, or of its ``layout`` if one was passed."""
        known = self._client.capabilities
        return known.layouts[self._terms.layout] if self._terms.layout else known

    @property
    def is_held(self) -> bool:
        """True if the current owner (this thread or task) holds the lock. No I/O."""
        core = self._client._core
        held = core.held_by(self._terms, self._owner())
        return held is not None and core.is_held(held)


class BaseReadWriteLock(Named[Any]):
    """A read-write lock: many readers, or one writer, served in arrival order, so later readers do
    not starve a waiting writer. Each reader has a lease of its own."""

    def _reading(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS)

    def _writing(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS, take=ALL_SLOTS)


class BaseMultiLock(Acquirable[H]):
    """Several names as one lock, acquired all or not at all.

    Every client acquires the names in the same global order, whatever order they are passed in, so
    two callers never deadlock. The object itself holds nothing; threads and tasks may share it.
    """

    def __init__(self, parts: list[Part], timeout: float | None, on_lost: OnLost) -> None:
        super().__init__(timeout, on_lost)
        self._parts = parts

    @property
    def names(self) -> list[str]:
        """Names of the locks, in the order in which they are acquired."""
        return [bare(part.terms.name) for part in self._parts]

    @property
    def is_held(self) -> bool:
        """True if the current owner (this thread or task) holds all of the names. No I/O."""
        for core, terms in self._parts:
            owner = terms.owner if terms.owner is not None else core.runtime.owner()
            held = core.held_by(terms, owner)
            if held is None or not core.is_held(held):
                return False
        return True

    def __repr__(self) -> str:
        return f"<MultiLock {', '.join(map(repr, self.names))}>"

    def _owner(self) -> object:
        return self._parts[0].core.runtime.owner()

    def _entries(self, held: Sequence[Held]) -> list[Entry]:
        pairs = zip(self._parts, held, strict=True)
        return [(part.core, one, part.terms.take) for part, one in pairs]


def parts_of(
    client: BaseClient,
    locks: Sequence[object],
    terms_of: Callable[[str], Terms],
    kind: type[Named[Any]],
) -> list[Part]:
    """Resolve names of this client and locks of any client of this API, in the global order."""
    parts = []
    for lock in locks:
        if isinstance(lock, str):
            parts.append((client._endpoint.url, Part(client._core, terms_of(lock))))
        elif isinstance(lock, kind):
            parts.append((lock._client._endpoint.url, Part(lock._client._core, lock._terms)))
        else:
            api = kind.__module__.rpartition(".")[0]
            raise ConfigurationError(f"multi_lock() takes names and locks of {api}, not {lock!r}")
    if not parts:
        raise ConfigurationError("multi_lock() needs at least one name")
    return in_order(parts)


class Taker:
    """The owner of one permit, taken by a thread or task."""

    __slots__ = ("taker",)

    def __init__(self, taker: object) -> None:
        self.taker = taker


class BasePermits(Named[H]):
    """A name with a number of permits, and the options with which permits are acquired."""

    @property
    def permits(self) -> int:
        """Number of permits in total, free or not."""
        return self._terms.slots

    def _shown_size(self) -> str:
        return f" of {self.permits}"

    def _taking(self, permits: int) -> Terms:
        """Return the terms of one acquire, each with an owner of its own: nothing is re-entered."""
        if permits != 1 or type(permits) is not int:  # True and 1.0 equal 1
            permits = checked_permits(permits)
            if permits > self._terms.slots:
                raise ConfigurationError(
                    f"{shown(self._terms.name)} has {self._terms.slots} permits: {permits} at once "
                    "can never be acquired"
                )
        return self._terms._replace(take=permits, owner=Taker(self._client._core.runtime.owner()))

    def _expiring(self, lease: float | None) -> Terms:
        terms = self._taking(1)
        return terms if lease is None else terms._replace(lease=lease)

    def _known(self, permit_id: object, lease: float | None = None) -> tuple[Claim, int]:
        """Parse a permit id into its claim and fence; refuse any other text."""
        terms, claim_id, fence = self._client._attach_terms(self._terms, permit_id)
        seconds = terms.lease if lease is None else lease
        return Claim(terms.name, claim_id, "", seconds, terms.slots, terms.take), fence


class BaseSemaphore(BasePermits[H]):
    """A semaphore: at most ``permits`` permits are held at once, over all processes.

    The object itself holds nothing, so any number of threads and tasks may share it. Not
    re-entrant: a second acquire takes a second permit.
    """


class BaseMeeting(Named[Any]):
    """A name where processes wait for each other: a latch or a barrier of ``size``."""

    def __init__(
        self, client: BaseClient, terms: Terms, size: int, keep: float = DEFAULT_KEEP
    ) -> None:
        super().__init__(client, terms)
        self._size = size
        self._keep = keep

    def _shown_size(self) -> str:
        return f" of {self._size}"

    def _waiting(self) -> Terms:
        return self._terms._replace(owner=object())

    def _counting(self) -> Terms:
        return self._terms._replace(take=1, lease=self._keep, owner=object())


class BaseElection(Named[Any]):
    """An election: the holder of the name leads, under a term (its fence) that nobody else gets."""

    def __init__(
        self,
        client: BaseClient,
        terms: Terms,
        on_gained: Callable[[Any], object] | None,
        on_lost: OnLost,
    ) -> None:
        if on_gained is not None and not callable(on_gained):
            raise ConfigurationError(
                f"on_gained={on_gained!r} must be None or a function that takes the hold"
            )
        super().__init__(client, terms, None, on_lost)
        self._on_gained = on_gained

    @property
    def metadata(self) -> str:
        """Text that `leader` shows to other processes while this one leads."""
        return self._terms.label

    def _leader(self, seen: Snapshot) -> Leader | None:
        for holder in seen.holders:
            return Leader(holder.who, holder.who.label, holder.fence, holder.since)
        return None

    def _is_ours(self, loss: HoldLost, fence: int | None) -> bool:
        """Return True if this is the loss of our lead, not of some other lock."""
        return (loss.name, loss.fence) == (self.name, fence)

    def _log_lost_lead(self, loss: HoldLost) -> None:
        text = "lockfast: lost the lead of %r, standing for election again: %s"
        log.warning(text, self.name, loss)


def checked_permits(permits: object) -> int:
    return checked_number("permits", permits, MOST_PERMITS)


def lease_or_none(lease: Seconds | None) -> float | None:
    return None if lease is None else checked_lease(lease)
