"""Base classes of locks, and of everything that is entered by ``with``."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from lockfast.api.client import BaseClient
from lockfast.core.ledger import bare
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, NotHeld
from lockfast.inputs import Seconds, checked_lease
from lockfast.model import ALL_SLOTS, Capabilities


class Nested(Protocol):
    """A hold that knows which hold the same owner entered around it."""

    _outer: Any


H = TypeVar("H", bound=Nested)


class Entered(Generic[H]):
    """Bookkeeping for ``with``: the hold that each owner entered last, linked to the outer ones."""

    def __init__(self) -> None:
        self._entered: dict[object, H] = {}

    def _push(self, owner: object, hold: H) -> None:
        hold._outer = self._entered.get(owner)
        self._entered[owner] = hold

    def _pop(self, owner: object) -> H:
        hold = self._entered.pop(owner, None)
        if hold is None:
            raise NotHeld(f"{self}: this thread or task did not enter this with block")
        if hold._outer is not None:
            self._entered[owner] = hold._outer
        return hold


class BaseLock(Entered[H]):
    """A lock: a name, and the options with which it is acquired.

    The object itself holds nothing, so any number of threads and tasks may share it; each of them
    is an owner of its own. Re-entrant: the same owner may acquire it again.
    """

    def __init__(
        self, client: BaseClient, terms: Terms, timeout: float | None, on_lost: object
    ) -> None:
        self._entered = {}
        self._client = client
        self._terms = terms
        self._timeout = timeout
        self._on_lost = on_lost

    @property
    def name(self) -> str:
        """Name of the lock."""
        return bare(self._terms.name)

    @property
    def capabilities(self) -> Capabilities:
        """Features of this lock: those of its store, or of its ``layout`` if one was passed."""
        known = self._client.capabilities
        return known.layouts[self._terms.layout] if self._terms.layout else known

    @property
    def is_held(self) -> bool:
        """True if the current owner (this thread or task) holds the lock. No I/O."""
        core = self._client.core
        held = core.held_by(self._terms, self._owner())
        return held is not None and core.is_held(held)

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self._client.store.url}>"

    def _owner(self) -> object:
        owner = self._terms.owner
        return owner if owner is not None else self._client.core.runtime.owner()


class BaseReadWriteLock:
    """A read-write lock: many readers, or one writer, served in arrival order, so later readers do
    not starve a waiting writer. Each reader has a lease of its own."""

    def __init__(
        self, client: BaseClient, terms: Terms, timeout: float | None, on_lost: object
    ) -> None:
        self._client = client
        self._terms = terms
        self._timeout = timeout
        self._on_lost = on_lost

    @property
    def name(self) -> str:
        """Name of the lock."""
        return bare(self._terms.name)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r} on {self._client.store.url}>"

    def _reading(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS)

    def _writing(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS, take=ALL_SLOTS)


class Default:
    """Type of `DEFAULT`: use the timeout that the lock was created with."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


def lease_or_none(lease: Seconds | None) -> float | None:
    return None if lease is None else checked_lease(lease)


def checked_on_lost(on_lost: object, choices: tuple[str, ...]) -> object:
    if on_lost is None or callable(on_lost) or on_lost in choices:
        return on_lost
    accepted = ", ".join(("None", *map(repr, choices)))
    raise ConfigurationError(
        f"on_lost={on_lost!r} must be {accepted} or a function that takes the hold"
    )
