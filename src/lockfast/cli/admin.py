"""Inspect and break holds by full name, on any store, and render them: the operator's view.

Locks live in a namespace (``default``); the periods of ``once_every`` live in a namespace beside it
(``default+once``), so that a lock and a periodic job of the same name never collide.

The JSON fields are a stable interface, listed in docs/operators.md. Durations are in seconds; times
are ISO 8601 in UTC, on the store's clock. A snapshot contains no claim ids, so none can be shown.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lockfast.cli.screen import escaped
from lockfast.core.explain import ago
from lockfast.inputs import checked_name
from lockfast.model import ALL_SLOTS, BARRIER, Holder, Snapshot, Waiter, Who, kind_of
from lockfast.runtime.threads import run
from lockfast.sync import Client, connect

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

    @property
    def kind_and_size(self) -> tuple[str | None, int | None]:
        """``("semaphore", 5)``. A read-write lock has no size, a free name has neither."""
        if not self.snapshot.slots:
            return None, None
        kind, _, size = kind_of(self.snapshot.slots).removeprefix("a ").partition(" of ")
        return kind, int(size) if size else (1 if self.snapshot.slots == 1 else None)

    @property
    def taken(self) -> int:
        """Number of slots taken; holders of a read-write lock; parties at a barrier."""
        if self.snapshot.slots >= BARRIER:
            return len(self.snapshot.waiters)
        if self.snapshot.slots == ALL_SLOTS:
            return len(self.snapshot.holders)
        return sum(holder.take for holder in self.snapshot.holders)

    def mode(self, one: Holder | Waiter) -> str | None:
        """Side of a read-write lock, "read" or "write"; None for other kinds."""
        if self.snapshot.slots != ALL_SLOTS:
            return None
        return "write" if one.take == ALL_SLOTS else "read"

    def takes(self, one: Holder | Waiter) -> str:
        """Slots of a semaphore, or side of a read-write lock; empty for a lock."""
        return self.mode(one) or ("" if self.snapshot.slots == 1 else str(one.take))

    def age(self, one: Holder | Waiter) -> str:
        """Format how long it has held, or waited."""
        return ago(self.snapshot.now - one.since)

    @property
    def kind_cell(self) -> str:
        """Format the kind: ``lock``, ``semaphore 3/5``, ``rwlock 2 read``."""
        kind, size = self.kind_and_size
        if kind is None:
            return "free"
        if self.address.once:
            return "once"
        if self.snapshot.slots == 1:
            return kind
        if size is not None:
            return f"{kind} {self.taken}/{size}"
        modes = [self.mode(holder) for holder in self.snapshot.holders]
        if "write" in modes:
            return "rwlock write"
        return f"rwlock {len(modes)} read" if modes else "rwlock"

    @property
    def holder_cell(self) -> str:
        """Describe the first holder for a narrow column, and count the others."""
        if not self.snapshot.holders:
            return "-"
        who, more = self.snapshot.holders[0].who, len(self.snapshot.holders) - 1
        first = escaped(f"{who.host}:{who.pid} {who.label or who.thread}")
        return f"{first} +{more}" if more else first

    def document(self) -> dict[str, Any]:
        kind, size = self.kind_and_size
        return {
            **self.address._asdict(),
            "kind": kind,
            "size": size,
            "taken": self.taken,
            "at": moment(self.snapshot.now),
            "holders": [self.claim_document(one) for one in self.snapshot.holders],
            "waiters": [
                {"position": position, **self.claim_document(one)}
                for position, one in enumerate(self.snapshot.waiters, 1)
            ],
        }

    def claim_document(self, one: Holder | Waiter) -> dict[str, Any]:
        """Document of a holder or a waiter."""
        mode, since = self.mode(one), moment(one.since)
        takes = {"takes": one.take if mode is None else None, "mode": mode}
        seconds = _seconds(self.snapshot.now - one.since)
        who = asdict(one.who)
        if isinstance(one, Waiter):
            wait = {"fair": one.fair, "since": since, "waiting_seconds": seconds}
            return {**who, **takes, **wait}
        hold = {"since": since, "held_seconds": seconds}
        left = _seconds(one.remaining)
        return {**who, "fence": one.fence, **takes, **hold, "remaining_seconds": left}


class Admin:
    """The operations of an operator on one store."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.store = client.store.url
        self.capabilities = client.capabilities
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
            prefixes = ["" if everywhere else self.namespace]
        else:
            prefixes = [Address(self.namespace, prefix, once).full for once in (False, True)]
        found = [
            Address.of(full) for each in prefixes for full in run(self._client.core.names(each))
        ]
        return sorted(
            address
            for address in found
            if (everywhere or address.namespace == self.namespace)
            and address.name.startswith(prefix)
        )

    def inspect(self, address: Address) -> Inspection:
        return Inspection(address, run(self._client.core.inspect(address.full)))

    def break_hold(self, address: Address, fence: int) -> bool:
        """Break the hold with this fence; return False if no hold on the name has it."""
        with log_silenced():  # the command reports the break itself
            return run(self._client.core.break_hold(address.full, fence))


@contextlib.contextmanager
def administer(args: argparse.Namespace) -> Iterator[Admin]:
    """Open the store that --url and --namespace select. Nothing is sent to it yet."""
    with connect(args.url, namespace=args.namespace) as client:
        yield Admin(client)


@contextlib.contextmanager
def log_silenced() -> Iterator[None]:
    """Silence the library's log: without a handler its records would end up on our stderr."""
    log = logging.getLogger("lockfast")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def describe(who: Who) -> str:
    """Describe a holder or waiter in full, as error messages do."""
    return escaped(str(who))


def lease_left(holder: Holder) -> str:
    return ago(holder.remaining)


def moment(seconds: float) -> str | None:
    """ISO 8601 in UTC; None if the value is out of range, as foreign data can be."""
    try:
        text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None
    return text.replace("+00:00", "Z")


def _seconds(seconds: float) -> float:
    return round(max(seconds, 0.0), 3)
