"""Descriptions of a name's holders in one line, for messages."""

from __future__ import annotations

from lockfast.model import Snapshot


def taken_message(name: str, timeout: float, snapshot: Snapshot | None) -> str:
    """The message of `AcquireTimeout`."""
    waited = f"within {timeout:g} s" if timeout > 0 else "at once"
    return f"{name!r} was not acquired {waited}: {describe(snapshot)}"


def describe(snapshot: Snapshot | None) -> str:
    """The first holder, since when and for how long, and the number of waiters."""
    if snapshot is None:
        return "its holder is unknown (the store did not answer)"
    if not snapshot.holders:
        queue = f", {_waiting(snapshot)}" if snapshot.waiters else ""
        return f"it has just become free{queue}; try again or wait longer (timeout=)"
    first = snapshot.holders[0]
    more = len(snapshot.holders) - 1
    others = f" and {more} more" if more else ""
    queue = f"; {_waiting(snapshot)}" if snapshot.waiters else ""
    return (
        f"held by {first.who}{others}, for {ago(snapshot.now - first.since)}, "
        f"fence {first.fence}, lease ends in {max(first.remaining, 0.0):.1f} s unless renewed"
        f"{queue}"
    )


def _waiting(snapshot: Snapshot) -> str:
    count = len(snapshot.waiters)
    return "1 waiter" if count == 1 else f"{count} waiters"


def ago(seconds: float) -> str:
    """A duration for people to read."""
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
