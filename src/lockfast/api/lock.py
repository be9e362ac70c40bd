"""What both faces share of locks and of all that is entered by ``with``."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from lockfast.api.client import BaseClient
from lockfast.core.ledger import bare
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, NotHeld
from lockfast.inputs import Seconds, checked_lease
from lockfast.model import ALL_SLOTS, Capabilities


class Nested(Protocol):
    """Something held, which knows what was entered around it."""

    _outer: Any


H = TypeVar("H", bound=Nested)


class Entered(Generic[H]):
    """For ``with``: what each owner entered last; a hold knows the one around it."""

    def __init__(self) -> None:
        self._entered: dict[object, H] = {}

    def _push(self, owner: object, hold: H) -> None:
        hold._outer = self._entered.get(owner)
        self._entered[owner] = hold

    def _pop(self, owner: object) -> H:
        hold = self._entered.pop(owner, None)
        if hold is None:
            raise NotHeld(f"{self}: this thread or task did not enter the with block")
        if hold._outer is not None:
            self._entered[owner] = hold._outer
        return hold


class BaseLock(Entered[H]):
    """A lock: a name and the terms on which it is acquired. Holds nothing itself, so one object may
    serve any number of threads and tasks; each is an owner of its own."""

    def __init__(
        self,
        client: BaseClient,
        terms: Terms,
        timeout: float | None,
        on_lost: object,
    ) -> None:
        self._entered = {}
        self._client = client
        self._terms = terms
        self._timeout = timeout
        self._on_lost = on_lost

    @property
    def name(self) -> str:
        """What is locked."""
        return bare(self._terms.name)

    @property
    def capabilities(self) -> Capabilities:
        """What this lock can do: what its store can, unless another layout was asked for."""
        known = self._client.capabilities
        return known.layouts[self._terms.layout] if self._terms.layout else known

    @property
    def is_held(self) -> bool:
        """Does the current owner (this thread or task) hold it?"""
        core = self._client.core
        held = core.held_by(self._terms, self._owner())
        return held is not None and core.is_held(held)

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self._client.store.url}>"

    def _owner(self) -> object:
        owner = self._terms.owner
        return owner if owner is not None else self._client.core.runtime.owner()


class BaseReadWriteLock:
    """A read-write lock: many readers, or one writer. In the order of arrival, so that a writer
    that waits is not starved by readers that come later. Each reader has a lease of its own."""

    def __init__(
        self, client: BaseClient, terms: Terms, timeout: float | None, on_lost: object
    ) -> None:
        self._client = client
        self._terms = terms
        self._timeout = timeout
        self._on_lost = on_lost

    @property
    def name(self) -> str:
        """What is locked."""
        return bare(self._terms.name)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r} on {self._client.store.url}>"

    def _reading(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS)

    def _writing(self) -> Terms:
        return self._terms._replace(slots=ALL_SLOTS, take=ALL_SLOTS)


class Default:
    """Stands for "as the lock was told"."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


def lease_or_none(lease: Seconds | None) -> float | None:
    return None if lease is None else checked_lease(lease)


def checked_on_lost(on_lost: object, words: tuple[str, ...]) -> object:
    if on_lost is None or callable(on_lost) or on_lost in words:
        return on_lost
    said = "".join(f"{word!r}, " for word in words)
    raise ConfigurationError(f"on_lost={on_lost!r}: {said}or a function that takes the hold")
