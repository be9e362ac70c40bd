"""Changes of a name between two inspections.

A store notifies waiters of a release, not observers, so watching means inspecting several times a
second. Changes between two inspections that cancel out are missed. A hold that is gone was released
or broken, or its holder died: these look the same, unless its lease had expired.

    acquired   a new hold, with no hold that ended since the last inspection
    passed     a hold ended and another began
    ended      a hold ended: released, broken, or in another way this store knows
    lapsed     a hold ended after its lease expired without a renewal: it was lost
    waits      a waiter joined the queue
    left       a waiter left the queue without the lock: it timed out, or died
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockfast import clock
from lockfast.cli import render
from lockfast.cli.admin import Address, Admin
from lockfast.model import Capabilities, Holder, Snapshot, Waiter, Who

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
            return _initial(snapshot)
        return list(changes(before, snapshot, None if failed else passed))

    def line(self, event: Event) -> str:
        """Format an event as a line of text."""
        at = datetime.fromtimestamp(event.seen.now).strftime("%H:%M:%S")
        return f"{at}  {event.what:<9} {self._text(event)}"

    def _text(self, event: Event) -> str:
        seen = event.seen
        if event.waiter is not None:
            waited = f" after {render.waiting_for(event.waiter, seen)}"
            return render.describe(event.waiter.who) + (waited if event.what == "left" else "")
        if event.holder is not None and event.before is None:
            return f"{render.describe(event.holder.who)}, fence {event.holder.fence}"
        if event.before is None:
            return "no holders, no waiters"
        gone = f"{render.describe(event.before.who)}, after {render.held_for(event.before, seen)}"
        how = self._how(event.how)
        if event.holder is None:
            return f"{gone} ({how})"
        to = f"{render.describe(event.holder.who)}, fence {event.holder.fence}"
        return f"from {gone} ({how}) to {to}"

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
        seen, address = event.seen, self.address
        return {
            "at": render.moment(seen.now),
            **render.address_document(address),
            "event": event.what,
            "holder": event.holder and render.holder_document(event.holder, seen),
            "previous": event.before and render.holder_document(event.before, seen),
            "waiter": event.waiter and render.waiter_document(event.waiter, seen),
            "how": event.how or None,
        }


def _initial(snapshot: Snapshot) -> list[Event]:
    holds = [Event("holds", snapshot, holder) for holder in snapshot.holders]
    waits = [Event("waits", snapshot, waiter=waiter) for waiter in snapshot.waiters]
    return [*holds, *waits] or [Event("free", snapshot)]


def changes(before: Snapshot, after: Snapshot, passed: float | None) -> Iterator[Event]:
    """Events between two inspections ``passed`` seconds apart; None if one in between failed."""
    olds, news = ({one.fence: one for one in each.holders} for each in (before, after))
    gone = [one for fence, one in olds.items() if fence not in news]
    added = [one for fence, one in news.items() if fence not in olds]
    for at in range(max(len(gone), len(added))):
        old = gone[at] if at < len(gone) else None
        new = added[at] if at < len(added) else None
        if old is None:
            yield Event("acquired", after, new)
            continue
        how = _ending(old, passed)
        what = "passed" if new is not None else (LAPSED if how == LAPSED else "ended")
        yield Event(what, after, new, old, how=how)
    yield from _queue_changes(before, after, added)


def _ending(old: Holder, passed: float | None) -> str:
    if passed is None:
        return UNSEEN
    return LAPSED if old.remaining <= passed + SLACK else ENDED


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
