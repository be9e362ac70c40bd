"""A name as people read it and as scripts do.

The fields of the JSON are a promise: docs/operators.md lists them. Durations are seconds, moments
are ISO 8601 in UTC on the store's clock. A claim id is no part of what a store shows, so none can
get here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lockfast.cli.admin import Sight
from lockfast.cli.sanitize import shown
from lockfast.core.explain import ago
from lockfast.model import ALL_SLOTS, BARRIER, Holder, Snapshot, Waiter, Who, kind_of

SHORT = {"read-write lock": "rwlock"}


def kind_and_size(snapshot: Snapshot) -> tuple[str | None, int | None]:
    """``("semaphore", 5)``; a read-write lock has no size; what is free has neither."""
    if not snapshot.slots:
        return None, None
    kind, _, size = kind_of(snapshot.slots).removeprefix("a ").partition(" of ")
    return kind, int(size) if size else (1 if snapshot.slots == 1 else None)


def taken(snapshot: Snapshot) -> int:
    """Slots that are taken; of a read-write lock how many are in it, of a barrier how many came."""
    if snapshot.slots >= BARRIER:
        return len(snapshot.waiters)
    if snapshot.slots == ALL_SLOTS:
        return len(snapshot.holders)
    return sum(holder.take for holder in snapshot.holders)


def mode(take: int, slots: int) -> str | None:
    """Which half of a read-write lock."""
    if slots != ALL_SLOTS:
        return None
    return "write" if take == ALL_SLOTS else "read"


# ---- for people -----------------------------------------------------------------------------


def kind_cell(sight: Sight) -> str:
    """``lock``, ``semaphore 3/5``, ``rwlock 2 read``."""
    snapshot = sight.snapshot
    kind, size = kind_and_size(snapshot)
    if kind is None:
        return "free"
    if sight.address.once:
        return "once"
    if snapshot.slots == 1:
        return kind
    short = SHORT.get(kind, kind)
    if size is not None:
        return f"{short} {taken(snapshot)}/{size}"
    halves = [mode(holder.take, snapshot.slots) for holder in snapshot.holders]
    if "write" in halves:
        return f"{short} write"
    return f"{short} {len(halves)} read" if halves else short


def whose(who: Who) -> str:
    """As errors say it."""
    return shown(str(who))


def tersely(who: Who) -> str:
    """For a narrow column."""
    return shown(f"{who.host}:{who.pid} {who.label or who.thread}")


def held_for(holder: Holder, snapshot: Snapshot) -> str:
    return ago(snapshot.now - holder.since)


def lease_left(holder: Holder) -> str:
    return ago(holder.remaining)


def waits_for(waiter: Waiter, snapshot: Snapshot) -> str:
    return ago(snapshot.now - waiter.since)


# ---- for scripts ----------------------------------------------------------------------------


def document(sight: Sight) -> dict[str, Any]:
    """One name."""
    address, snapshot = sight
    kind, size = kind_and_size(snapshot)
    return {
        "namespace": address.namespace,
        "name": address.name,
        "once": address.once,
        "kind": kind,
        "size": size,
        "taken": taken(snapshot),
        "at": moment(snapshot.now),
        "holders": [holder_document(holder, snapshot) for holder in snapshot.holders],
        "waiters": [
            {"position": position, **waiter_document(waiter, snapshot)}
            for position, waiter in enumerate(snapshot.waiters, 1)
        ],
    }


def holder_document(holder: Holder, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **_who(holder.who),
        "fence": holder.fence,
        **_takes(holder.take, snapshot.slots),
        "since": moment(holder.since),
        "held_seconds": _seconds(snapshot.now - holder.since),
        "remaining_seconds": _seconds(holder.remaining),
    }


def waiter_document(waiter: Waiter, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **_who(waiter.who),
        **_takes(waiter.take, snapshot.slots),
        "fair": waiter.fair,
        "since": moment(waiter.since),
        "waiting_seconds": _seconds(snapshot.now - waiter.since),
    }


def _who(who: Who) -> dict[str, Any]:
    return {"host": who.host, "pid": who.pid, "thread": who.thread, "label": who.label}


def _takes(take: int, slots: int) -> dict[str, Any]:
    half = mode(take, slots)
    return {"takes": take if half is None else None, "mode": half}


def moment(seconds: float) -> str | None:
    """ISO 8601, in UTC; None for what no calendar has (foreign data)."""
    try:
        text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None
    return text.replace("+00:00", "Z")


def _seconds(seconds: float) -> float:
    return round(max(seconds, 0.0), 3)
