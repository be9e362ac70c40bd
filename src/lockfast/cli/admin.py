"""What an operator can see and do on any store, by full names: those of locks, and those of what
runs once per period, which lie in a namespace beside (``default+once``) so that they never meet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NamedTuple

from lockfast.inputs import checked_name
from lockfast.model import Snapshot
from lockfast.runtime.threads import run
from lockfast.sync import Client

ONCE = "+once"


class Address(NamedTuple):
    """A name, and where it lies. ``once``: of what runs once per period."""

    namespace: str
    name: str
    once: bool = False

    @property
    def full(self) -> str:
        return f"{self.namespace}{ONCE if self.once else ''}:{self.name}"

    @classmethod
    def of(cls, full: str) -> Address:
        position, _, name = full.partition(":")
        return cls(position.removesuffix(ONCE), name, position.endswith(ONCE))


class Sight(NamedTuple):
    """A name, and what was seen of it."""

    address: Address
    snapshot: Snapshot

    @property
    def is_free(self) -> bool:
        return not self.snapshot.holders and not self.snapshot.waiters


class Desk:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.store = client.store.url
        self.namespace = client.namespace

    def address(self, name: str, *, once: bool = False) -> Address:
        """`ConfigurationError` if it can be no name."""
        return Address(self.namespace, checked_name(name), once)

    def addresses(self, prefix: str, *, everywhere: bool) -> list[Address]:
        """What is held or waited for, by name. On Redis each call is a walk over all keys, so it is
        one if it can be."""
        if prefix:
            checked_name(prefix, what="a prefix")
        if everywhere or not prefix:
            found = self._named("" if everywhere else self.namespace)
        else:
            found = [
                *self._named(Address(self.namespace, prefix).full),
                *self._named(Address(self.namespace, prefix, True).full),
            ]
        return sorted(
            address
            for address in found
            if (everywhere or address.namespace == self.namespace)
            and address.name.startswith(prefix)
        )

    def _named(self, prefix: str) -> list[Address]:
        return [Address.of(full) for full in run(self._client.core.names(prefix))]

    def look(self, address: Address) -> Sight:
        return Sight(address, run(self._client.core.inspect(address.full)))

    def break_hold(self, address: Address, fence: int) -> bool:
        """False: nobody holds it under this fence."""
        with quiet():  # we say it ourselves
            return run(self._client.core.break_hold(address.full, fence))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the library would log, which has no other place than our stderr."""
    log = logging.getLogger("lockfast")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
