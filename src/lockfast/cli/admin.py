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
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from lockfast import clock
from lockfast.cli import escaped
from lockfast.core.explain import ago
from lockfast.inputs import checked_name
from lockfast.model import ALL_SLOTS, BARRIER, Capabilities, Holder, Snapshot, Waiter, Who, kind_of
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
        first, more = in_short(self.snapshot.holders[0].who), len(self.snapshot.holders) - 1
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
        self.store = client._endpoint.url
        self.capabilities = client.capabilities
        self.namespace = client._namespace

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
            Address.of(full) for each in prefixes for full in run(self._client._core.names(each))
        ]
        return sorted(
            address
            for address in found
            if (everywhere or address.namespace == self.namespace)
            and address.name.startswith(prefix)
        )

    def inspect(self, address: Address) -> Inspection:
        return Inspection(address, run(self._client._core.inspect(address.full)))

    def break_hold(self, address: Address, fence: int) -> bool:
        """Break the hold with this fence; return False if no hold on the name has it."""
        with log_silenced():  # the command reports the break itself
            return run(self._client._core.break_hold(address.full, fence))


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


def about_break(inspection: Inspection, holder: Holder) -> str:
    """Describe a hold that is about to be broken, and what breaking it does."""
    return (
        f"{describe(holder.who)}\nhas held it for {inspection.age(holder)}; "
        f"its lease ends in {lease_left(holder)} unless it is renewed.\n"
        f"Breaking makes fence {holder.fence} stale, and grants the lock to the next waiter at "
        "once.\nThe holder, if alive, continues until its next renewal reports the loss."
    )


def in_short(who: Who) -> str:
    """Describe a holder or waiter for a narrow column."""
    return escaped(f"{who.host}:{who.pid} {who.label or who.thread}")


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


# ---- what happens to a name ------------------------------------------------------------------

LAPSED, ENDED, UNSEEN = "lapsed", "ended", "unseen"
SLACK = 0.05  # delay with which an inspection may learn of a renewal


@dataclass(frozen=True, slots=True)
class Event:
    """One change. ``before`` is the hold that ended, as last seen; ``how`` is the way it ended."""

    what: str
    seen: Snapshot
    holder: Holder | None = None
    before: Holder | None = None
    waiter: Waiter | None = None
    how: str = ""


class Watch:
    """Watches one name. The first `poll` returns its state, each later one the changes since."""

    def __init__(self, admin: Admin, address: Address, can: Capabilities) -> None:
        self.address = address
        self._admin = admin
        self._can = can
        self._last: Snapshot | None = None
        self._inspected_at = 0.0
        self._failed = False

    def poll(self) -> list[Event]:
        """Inspect the name and return the events. Raises `BackendError` if the store does not
        answer: how holds ended that are gone at the next success is then unknown."""
        self._failed, failed = True, self._failed
        before, passed = self._last, clock.now() - self._inspected_at
        snapshot = self._admin.inspect(self.address).snapshot
        self._failed = False
        self._last, self._inspected_at = snapshot, clock.now()
        if before is None:
            holds = [Event("holds", snapshot, holder) for holder in snapshot.holders]
            waits = [Event("waits", snapshot, waiter=waiter) for waiter in snapshot.waiters]
            return [*holds, *waits] or [Event("free", snapshot)]
        return list(changes(before, snapshot, None if failed else passed))

    def line(self, event: Event) -> str:
        """Format an event as a line of text."""
        at = datetime.fromtimestamp(event.seen.now).strftime("%H:%M:%S")
        return f"{at}  {event.what:<9} {self._text(event)}"

    def _text(self, event: Event) -> str:
        age = Inspection(self.address, event.seen).age
        if event.waiter is not None:
            waited = f" after {age(event.waiter)}" if event.what == "left" else ""
            return f"{describe(event.waiter.who)}{waited}"
        holder, gone = event.holder, event.before
        new = f"{describe(holder.who)}, fence {holder.fence}" if holder else ""
        if gone is None:
            return new or "no holders, no waiters"
        old = f"{describe(gone.who)}, after {age(gone)} ({self._how(event.how)})"
        return f"from {old} to {new}" if new else old

    def _how(self, how: str) -> str:
        if how == LAPSED:
            return "its lease expired"
        if how == UNSEEN:
            return "unknown: the store did not answer"
        if self._can.session:
            return "released, broken, or its session ended"
        if self._can.frees_dead_process:
            return "released, broken, or its process died"
        return "released or broken"

    def document(self, event: Event) -> dict[str, Any]:
        """Format an event as JSON; docs/operators.md lists the fields."""
        seen = Inspection(self.address, event.seen)
        return {
            "at": moment(event.seen.now),
            **self.address._asdict(),
            "event": event.what,
            "holder": event.holder and seen.claim_document(event.holder),
            "previous": event.before and seen.claim_document(event.before),
            "waiter": event.waiter and seen.claim_document(event.waiter),
            "how": event.how or None,
        }


def changes(before: Snapshot, after: Snapshot, passed: float | None) -> Iterator[Event]:
    """Events between two inspections ``passed`` seconds apart; None if one in between failed."""
    olds, news = ({one.fence: one for one in each.holders} for each in (before, after))
    gone = [one for fence, one in olds.items() if fence not in news]
    added = [one for fence, one in news.items() if fence not in olds]
    for old, new in zip_longest(gone, added):
        if old is None:
            yield Event("acquired", after, new)
            continue
        lapsed = passed is not None and old.remaining <= passed + SLACK
        how = LAPSED if lapsed else (UNSEEN if passed is None else ENDED)
        what = "passed" if new is not None else (LAPSED if lapsed else ENDED)
        yield Event(what, after, new, old, how=how)
    yield from _queue_changes(before, after, added)


def _queue_changes(before: Snapshot, after: Snapshot, served: list[Holder]) -> Iterator[Event]:
    """Compare the queues. A snapshot gives waiters no id, so they are matched by owner and request;
    not by start time, which a quorum reports slightly differently each time."""
    unmatched: dict[tuple[Who, int, bool], list[Waiter]] = {}
    for waiter in before.waiters:
        unmatched.setdefault((waiter.who, waiter.take, waiter.fair), []).append(waiter)
    for waiter in after.waiters:
        same = unmatched.get((waiter.who, waiter.take, waiter.fair))
        if same:
            same.pop()
        else:
            yield Event("waits", after, waiter=waiter)
    granted = Counter((one.who, one.take) for one in served)
    for waiter in (waiter for gone in unmatched.values() for waiter in gone):
        if granted[waiter.who, waiter.take] > 0:
            granted[waiter.who, waiter.take] -= 1
        else:
            yield Event("left", after, waiter=waiter)
