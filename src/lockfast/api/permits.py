"""Base classes of semaphores and expirable permits."""

from __future__ import annotations

from typing import Generic, TypeVar

from lockfast.api.client import BaseClient
from lockfast.api.lock import Entered, Nested
from lockfast.core.ledger import bare, shown
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError
from lockfast.inputs import checked_number
from lockfast.model import MOST_PERMITS, Claim

H = TypeVar("H", bound=Nested)


def checked_permits(permits: object) -> int:
    return checked_number("permits", permits, MOST_PERMITS)


class BasePermits:
    """A name with a number of permits, and the options with which permits are acquired."""

    def __init__(self, client: BaseClient, terms: Terms, timeout: float | None) -> None:
        self._client = client
        self._terms = terms
        self._timeout = timeout

    @property
    def name(self) -> str:
        """Name of the semaphore."""
        return bare(self._terms.name)

    @property
    def permits(self) -> int:
        """Number of permits in total, free or not."""
        return self._terms.slots

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r} of {self.permits} on {self._client.store.url}>"

    def _taking(self, permits: int) -> Terms:
        """Return the terms of one acquire, each with an owner of its own: nothing is re-entered."""
        if permits != 1 or type(permits) is not int:  # True and 1.0 equal 1
            permits = checked_permits(permits)
            if permits > self._terms.slots:
                raise ConfigurationError(
                    f"{shown(self._terms.name)} has {self._terms.slots} permits: {permits} at once "
                    "can never be acquired"
                )
        return self._terms._replace(take=permits, owner=object())

    def _expiring(self, lease: float | None) -> Terms:
        terms = self._taking(1)
        return terms if lease is None else terms._replace(lease=lease)

    def _known(self, permit_id: object, lease: float | None = None) -> tuple[Claim, int]:
        """Parse a permit id into its claim and fence; refuse any other text."""
        terms, claim_id, fence = self._client._attach_terms(self._terms, permit_id)
        seconds = terms.lease if lease is None else lease
        return Claim(terms.name, claim_id, "", seconds, terms.slots, terms.take), fence


class BaseSemaphore(BasePermits, Entered[H], Generic[H]):
    """A semaphore: at most ``permits`` permits are held at once, over all processes.

    The object itself holds nothing, so any number of threads and tasks may share it. Not
    re-entrant: a second acquire takes a second permit.
    """

    def __init__(
        self, client: BaseClient, terms: Terms, timeout: float | None, on_lost: object
    ) -> None:
        BasePermits.__init__(self, client, terms, timeout)
        Entered.__init__(self)
        self._on_lost = on_lost

    def _owner(self) -> object:
        return self._client.core.runtime.owner()
