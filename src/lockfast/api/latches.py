"""Shared base class of latches and barriers."""

from __future__ import annotations

from lockfast.api.client import BaseClient
from lockfast.core.ledger import bare
from lockfast.core.terms import Terms

# Each count-down and each party is an entry that the store reads in every operation.
MOST_COUNT = 10_000
# Seconds that the store keeps a latch after the last count-down.
DEFAULT_KEEP = 86_400.0


class BaseLatchOrBarrier:
    """A name where processes wait for each other. Creating the object does no I/O."""

    def __init__(self, client: BaseClient, terms: Terms, keep: float, size: int) -> None:
        self._client = client
        self._terms = terms
        self._keep = keep
        self._size = size

    @property
    def name(self) -> str:
        """Name of the latch or barrier."""
        return bare(self._terms.name)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.name!r} of {self._size} on {self._client.store.url}>"

    def _waiting(self) -> Terms:
        return self._terms._replace(owner=object())

    def _counting(self) -> Terms:
        return self._terms._replace(take=1, lease=self._keep, owner=object())
