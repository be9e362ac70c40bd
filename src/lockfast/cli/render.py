"""Render the state of a name: as text, and as JSON for scripts.

The JSON fields are a stable interface, listed in docs/operators.md. Durations are in seconds; times
are ISO 8601 in UTC, on the store's clock. A snapshot contains no claim ids, so none can be shown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lockfast.cli.admin import Address, Inspection
from lockfast.cli.sanitize import escaped
from lockfast.core.explain import ago
from lockfast.model import ALL_SLOTS, BARRIER, Holder, Snapshot, Waiter, Who, kind_of

SHORT = {"read-write lock": "rwlock"}


def kind_and_size(snapshot: Snapshot) -> tuple[str | None, int | None]:
    """Kind and size: ``("semaphore", 5)``. A read-write lock has no size, a free name neither."""
    if not snapshot.slots:
        return None, None
    kind, _, size = kind_of(snapshot.slots).removeprefix("a ").partition(" of ")
    return kind, int(size) if size else (1 if snapshot.slots == 1 else None)


def taken(snapshot: Snapshot) -> int:
    """Number of slots taken; holders of a read-write lock; parties that have reached a barrier."""
    if snapshot.slots >= BARRIER:
        return len(snapshot.waiters)
    if snapshot.slots == ALL_SLOTS:
        return len(snapshot.holders)
    return sum(holder.take for holder in snapshot.holders)


def mode(take: int, slots: int) -> str | None:
    """Side of a read-write lock, "read" or "write"; None for other kinds."""
    if slots != ALL_SLOTS:
        return None
    return "write" if take == ALL_SLOTS else "read"


def kind_cell(inspection: Inspection) -> str:
    """Format the kind: ``lock``, ``semaphore 3/5``, ``rwlock 2 read``."""
    snapshot = inspection.snapshot
    kind, size = kind_and_size(snapshot)
    if kind is None:
        return "free"
    if inspection.address.once:
        return "once"
    if snapshot.slots == 1:
        return kind
    short = SHORT.get(kind, kind)
    if size is not None:
        return f"{short} {taken(snapshot)}/{size}"
    modes = [mode(holder.take, snapshot.slots) for holder in snapshot.holders]
    if "write" in modes:
        return f"{short} write"
    return f"{short} {len(modes)} read" if modes else short


def describe(who: Who) -> str:
    """Describe a holder or waiter in full, as error messages do."""
    return escaped(str(who))


def describe_short(who: Who) -> str:
    """Describe a holder or waiter for a narrow column."""
    return escaped(f"{who.host}:{who.pid} {who.label or who.thread}")


def held_for(holder: Holder, snapshot: Snapshot) -> str:
    return ago(snapshot.now - holder.since)


def lease_left(holder: Holder) -> str:
    return ago(holder.remaining)


def waiting_for(waiter: Waiter, snapshot: Snapshot) -> str:
    return ago(snapshot.now - waiter.since)


def document(inspection: Inspection) -> dict[str, Any]:
    """State of one name."""
    address, snapshot = inspection
    kind, size = kind_and_size(snapshot)
    return {
        **address_document(address),
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


def address_document(address: Address) -> dict[str, Any]:
    return {"namespace": address.namespace, "name": address.name, "once": address.once}


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
    side = mode(take, slots)
    return {"takes": take if side is None else None, "mode": side}


def moment(seconds: float) -> str | None:
    """ISO 8601 in UTC; None if the value is out of range, as foreign data can be."""
    try:
        text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None
    return text.replace("+00:00", "Z")


def _seconds(seconds: float) -> float:
    return round(max(seconds, 0.0), 3)
