"""What both faces share of multi-locks and of what they give."""

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
    """Holds of several names, which end together. Lost as soon as one of them is."""

    __slots__ = ("__weakref__", "_entries", "_on_lost", "_outer", "_pairs", "_told")

    def __init__(self, entries: Sequence[Entry], on_lost: object = None) -> None:
        self._entries = entries
        self._pairs = pairs = [(core, held) for core, held, _ in entries]
        self._on_lost = on_lost
        self._outer: Any = None
        self._told = False
        if callable(on_lost):
            for core, held in pairs:
                core.ledger.on_end(held, self._tell_lost)

    def _tell_lost(self) -> None:
        with self._pairs[0][0].ledger.mutex:
            told, self._told = self._told, self._told or self._is_lost()
            first = self._told and not told
        if first and callable(self._on_lost):
            try:
                self._on_lost(self)
            except Exception:  # foreign code must not end the keeper
                log.exception("lockfast: on_lost of %r raised", self.names)

    def _tell_no_more(self) -> None:
        """We are released; what was entered around us may still be lost."""
        if callable(self._on_lost):
            for core, held in self._pairs:
                core.ledger.off_end(held, self._tell_lost)

    def _is_lost(self) -> bool:
        return any(held.state is LOST for _, held in self._pairs)

    @property
    def names(self) -> list[str]:
        """What is locked, in the order in which it was acquired."""
        return [bare(held.claim.name) for _, held in self._pairs]

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each name: let the resource behind it refuse a lower one. Of a name that is
        held on two stores, the last one's."""
        return {bare(held.claim.name): held.fence for _, held in self._pairs}

    @property
    def is_held(self) -> bool:
        """May we still believe in all of them? See `Hold.is_held`."""
        return all(core.is_held(held) for core, held in self._pairs)

    @property
    def is_certain(self) -> bool:
        """Is that more than belief, for all of them? See `Hold.is_certain`."""
        return all(held.is_certain(core.runtime.now()) for core, held in self._pairs)

    @property
    def lost(self) -> bool:
        """Did one of them end without us?"""
        for core, held in self._pairs:
            core.settle(held)
        return self._is_lost()

    def remaining(self) -> float:
        """Seconds until belief in the first of them ends unless it is renewed."""
        now = self._pairs[0][0].runtime.now()
        return max(min(held.deadline for _, held in self._pairs) - now, 0.0) if self.is_held else 0

    def check(self) -> None:
        """Raise `HoldLost` if one is lost, `NotHeld` if they were released. No round trip."""
        for core, held in self._pairs:
            core.check(held)

    def __repr__(self) -> str:
        return f"<MultiHold on {', '.join(map(repr, self.names))}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a hold cannot be copied or pickled")

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


class BaseMultiLock(Entered[M], Generic[M]):
    """Several names, acquired all or not at all. Everybody takes them in one order, whatever order
    they are given in, so that no two callers wait for each other."""

    def __init__(self, parts: list[Part], timeout: float | None, on_lost: object) -> None:
        super().__init__()
        self._parts = parts
        self._timeout = timeout
        self._on_lost = on_lost

    @property
    def names(self) -> list[str]:
        """What is locked, in the order in which it is acquired."""
        return [bare(part.terms.name) for part in self._parts]

    @property
    def is_held(self) -> bool:
        """Does the current owner (this thread or task) hold all of them?"""
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
    given: Sequence[object],
    terms_of: Callable[[str], Terms],
    kind: type[BaseLock[Any]],
) -> list[Part]:
    """Names of this client, and locks of any client of this colour, in the order of everybody."""
    parts = []
    core, url = client.core, client.store.url
    for one in given:
        if isinstance(one, str):
            parts.append((url, Part(core, terms_of(one))))
        elif isinstance(one, kind):
            parts.append((one._client.store.url, Part(one._client.core, one._terms)))
        else:
            raise ConfigurationError(
                f"multi_lock() takes names, and locks of {kind.__module__.rpartition('.')[0]}: not "
                f"{one!r}"
            )
    if not parts:
        raise ConfigurationError("multi_lock() needs at least one name")
    return in_order(parts)
