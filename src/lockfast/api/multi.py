"""Base classes of multi-locks and of their holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from lockfast.api.client import BaseClient
from lockfast.api.lock import BaseLock, Entered, Nested
from lockfast.core.ledger import LOST, Held, bare
from lockfast.core.multi import Entry, Part, in_order
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError

log = logging.getLogger("lockfast")
M = TypeVar("M", bound=Nested)


class BaseMultiHold:
    """Holds of several names, released together. Lost as soon as one of them is lost."""

    __slots__ = ("__weakref__", "_entries", "_notified", "_on_lost", "_outer", "_pairs")

    def __init__(self, entries: Sequence[Entry], on_lost: object = None) -> None:
        self._entries = entries
        self._pairs = pairs = [(core, held) for core, held, _ in entries]
        self._on_lost = on_lost
        self._outer: Any = None
        self._notified = False
        if callable(on_lost):
            for core, held in pairs:
                core.ledger.on_end(held, self._notify_lost)

    def _notify_lost(self) -> None:
        with self._pairs[0][0].ledger.mutex:
            before, self._notified = self._notified, self._notified or self._is_lost()
            first = self._notified and not before
        if first and callable(self._on_lost):
            try:
                self._on_lost(self)
            except (Exception, SystemExit):  # user code must not end the keeper
                log.exception("lockfast: the on_lost callback of %r raised", self.names)

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

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a hold cannot be copied or pickled: acquire in the process that needs it")

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


class BaseMultiLock(Entered[M], Generic[M]):
    """Several names as one lock, acquired all or not at all.

    Every client acquires the names in the same global order, whatever order they are passed in, so
    two callers never deadlock. The object itself holds nothing; threads and tasks may share it.
    """

    def __init__(self, parts: list[Part], timeout: float | None, on_lost: object) -> None:
        super().__init__()
        self._parts = parts
        self._timeout = timeout
        self._on_lost = on_lost

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
    kind: type[BaseLock[Any]],
) -> list[Part]:
    """Resolve names of this client and locks of any client of this API, in the global order."""
    parts = []
    core, url = client.core, client.store.url
    for lock in locks:
        if isinstance(lock, str):
            parts.append((url, Part(core, terms_of(lock))))
        elif isinstance(lock, kind):
            parts.append((lock._client.store.url, Part(lock._client.core, lock._terms)))
        else:
            raise ConfigurationError(
                f"multi_lock() takes names and locks of {kind.__module__.rpartition('.')[0]}, not "
                f"{lock!r}"
            )
    if not parts:
        raise ConfigurationError("multi_lock() needs at least one name")
    return in_order(parts)
