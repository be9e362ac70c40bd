"""Inspect and break holds by full name, on any store: the operator's view.

Locks live in a namespace (``default``); the periods of ``once_every`` live in a namespace beside it
(``default+once``), so that a lock and a periodic job of the same name never collide.
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
    """A name and its namespace. ``once``: a ``once_every`` period instead of a lock."""

    namespace: str
    name: str
    once: bool = False

    @property
    def full(self) -> str:
        return f"{self.namespace}{ONCE if self.once else ''}:{self.name}"

    @classmethod
    def of(cls, full: str) -> Address:
        namespace, _, name = full.partition(":")
        return cls(namespace.removesuffix(ONCE), name, namespace.endswith(ONCE))


class Inspection(NamedTuple):
    """A name, and its holders and waiters at one moment."""

    address: Address
    snapshot: Snapshot

    @property
    def is_free(self) -> bool:
        return not self.snapshot.holders and not self.snapshot.waiters


class Admin:
    """The operations of an operator on one store."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.store = client.store.url
        self.namespace = client.namespace

    def address(self, name: str, *, once: bool = False) -> Address:
        """Validate ``name``; raise `ConfigurationError` if it is not a valid name."""
        return Address(self.namespace, checked_name(name), once)

    def addresses(self, prefix: str, *, everywhere: bool) -> list[Address]:
        """List the names that are held or waited for, sorted.

        On Redis each listing scans all keys, so one listing is used wherever one suffices.
        """
        if prefix:
            checked_name(prefix, what="a prefix")
        if everywhere or not prefix:
            found = self._list("" if everywhere else self.namespace)
        else:
            found = [
                *self._list(Address(self.namespace, prefix).full),
                *self._list(Address(self.namespace, prefix, True).full),
            ]
        return sorted(
            address
            for address in found
            if (everywhere or address.namespace == self.namespace)
            and address.name.startswith(prefix)
        )

    def _list(self, prefix: str) -> list[Address]:
        return [Address.of(full) for full in run(self._client.core.names(prefix))]

    def inspect(self, address: Address) -> Inspection:
        return Inspection(address, run(self._client.core.inspect(address.full)))

    def break_hold(self, address: Address, fence: int) -> bool:
        """Break the hold with this fence; return False if no hold on the name has it."""
        with log_silenced():  # the command reports the break itself
            return run(self._client.core.break_hold(address.full, fence))


@contextlib.contextmanager
def log_silenced() -> Iterator[None]:
    """Silence the library's log: without a handler its records would end up on our stderr."""
    log = logging.getLogger("lockfast")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
