"""Base class of elections: one leader at a time, visible to every process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lockfast.api.client import BaseClient
from lockfast.api.hold import BaseHold
from lockfast.core.ledger import bare
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, HoldLost
from lockfast.model import Leader, Snapshot

H = TypeVar("H", bound=BaseHold)
log = logging.getLogger("lockfast")


class BaseElection(Generic[H]):
    """An election: the holder of the name leads, under a term (its fence) that nobody else gets."""

    def __init__(
        self,
        client: BaseClient,
        terms: Terms,
        on_gained: Callable[[Any], object] | None,
        on_lost: object,
    ) -> None:
        if on_gained is not None and not callable(on_gained):
            raise ConfigurationError(
                f"on_gained={on_gained!r} must be None or a function that takes the hold"
            )
        self._client = client
        self._terms = terms
        self._on_gained = on_gained
        self._on_lost = on_lost

    @property
    def name(self) -> str:
        """Name of the election."""
        return bare(self._terms.name)

    @property
    def metadata(self) -> str:
        """Text that `leader` shows to other processes while this one leads."""
        return self._terms.label

    def __repr__(self) -> str:
        return f"<Election {self.name!r} on {self._client.store.url}>"

    def _leader(self, seen: Snapshot) -> Leader | None:
        for holder in seen.holders:
            return Leader(holder.who, holder.who.label, holder.fence, holder.since)
        return None

    def _is_ours(self, loss: HoldLost, hold: H | None) -> bool:
        """Return True if this is the loss of our lead, not of some other lock."""
        return hold is not None and (loss.name, loss.fence) == (self.name, hold.fence)

    def _log_lost_lead(self, loss: HoldLost) -> None:
        text = "lockfast: lost the lead of %r, standing for election again: %s"
        log.warning(text, self.name, loss)
