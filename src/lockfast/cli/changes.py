"""What happened to a name between two looks, told honestly.

A store tells nobody of a release but who waits, so watching is looking, several times a second, and
comparing. What comes and goes between two looks is not seen. A hold that is gone was released,
broken, or died: which of them nobody can see, unless its lease had run out by then.

    acquired   somebody holds it, and nobody was seen to give it up just before
    passed     one hold is gone, and another is there
    ended      a hold is gone: released, broken, or what else can end one on this store
    lapsed     a hold is gone, and its lease had run out without a renewal: a loss
    waits      somebody has come to the queue
    left       somebody is gone from it without having got it: it gave up, or died
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockfast import clock
from lockfast.cli.admin import Address, Desk
from lockfast.cli.render import (
    held_for,
    holder_document,
    moment,
    waiter_document,
    waits_for,
    whose,
)
from lockfast.model import Capabilities, Holder, Snapshot, Waiter, Who

LAPSED, ENDED, UNSEEN = "lapsed", "ended", "unseen"
SLACK = 0.05  # of our looking: so late we may learn of a renewal


@dataclass(frozen=True, slots=True)
class Event:
    """``before`` is the hold that is gone, as it was seen last, and ``how`` it may have ended."""

    what: str
    seen: Snapshot
    holder: Holder | None = None
    before: Holder | None = None
    waiter: Waiter | None = None
    how: str = ""


class Watch:
    """One name. `look` tells what happened since it was called last; at first: what there is."""

    def __init__(self, desk: Desk, address: Address, can: Capabilities) -> None:
        self.address = address
        self._desk = desk
        self._can = can
        self._last: Snapshot | None = None
        self._looked_at = 0.0
        self._blind = False

    def look(self) -> list[Event]:
        """`BackendError` if the store does not answer; it is not known then how holds ended that
        are gone when it does."""
        self._blind, blind = True, self._blind
        before, passed = self._last, clock.now() - self._looked_at
        snapshot = self._desk.look(self.address).snapshot
        self._blind = False
        self._last, self._looked_at = snapshot, clock.now()
        if before is None:
            return _at_first(snapshot)
        return list(changes(before, snapshot, None if blind else passed))

    def words(self, event: Event) -> str:
        """A line for people."""
        at = datetime.fromtimestamp(event.seen.now).strftime("%H:%M:%S")
        return f"{at}  {event.what:<9} {self._told(event)}"

    def _told(self, event: Event) -> str:
        seen = event.seen
        if event.waiter is not None:
            waited = f"for {waits_for(event.waiter, seen)}" if event.what == "left" else ""
            return f"{whose(event.waiter.who)} {waited}".rstrip()
        if event.holder is not None and event.before is None:
            return f"{whose(event.holder.who)}, fence {event.holder.fence}"
        if event.before is None:
            return "nobody holds it or waits"
        gone = f"{whose(event.before.who)}, after {held_for(event.before, seen)}"
        how = self._how(event.how)
        if event.holder is None:
            return f"{gone} ({how})"
        return f"from {gone} ({how}) to {whose(event.holder.who)}, fence {event.holder.fence}"

    def _how(self, how: str) -> str:
        if how == LAPSED:
            return "its lease ran out"
        if how == UNSEEN:
            return "unseen, while the store did not answer"
        if self._can.session:
            return "released, broken, or its session ended"
        if self._can.frees_dead_process:
            return "released, broken, or its process died"
        return "released or broken"

    def document(self, event: Event) -> dict[str, Any]:
        """A line for scripts; docs/operators.md lists the fields."""
        seen, address = event.seen, self.address
        return {
            "at": moment(seen.now),
            "namespace": address.namespace,
            "name": address.name,
            "once": address.once,
            "event": event.what,
            "holder": None if event.holder is None else holder_document(event.holder, seen),
            "previous": None if event.before is None else holder_document(event.before, seen),
            "waiter": None if event.waiter is None else waiter_document(event.waiter, seen),
            "how": event.how or None,
        }


def _at_first(snapshot: Snapshot) -> list[Event]:
    holds = [Event("holds", snapshot, holder) for holder in snapshot.holders]
    waits = [Event("waits", snapshot, waiter=waiter) for waiter in snapshot.waiters]
    return [*holds, *waits] or [Event("free", snapshot)]


def changes(before: Snapshot, after: Snapshot, passed: float | None) -> Iterator[Event]:
    """What happened in the ``passed`` seconds between two looks; None: nobody looked meanwhile."""
    held, holds = ({one.fence: one for one in each.holders} for each in (before, after))
    gone = [one for fence, one in held.items() if fence not in holds]
    come = [one for fence, one in holds.items() if fence not in held]
    for at in range(max(len(gone), len(come))):
        old = gone[at] if at < len(gone) else None
        new = come[at] if at < len(come) else None
        if old is None:
            yield Event("acquired", after, new)
            continue
        how = _ending(old, passed)
        what = "passed" if new is not None else (LAPSED if how == LAPSED else "ended")
        yield Event(what, after, new, old, how=how)
    yield from _queue(before, after, come)


def _ending(old: Holder, passed: float | None) -> str:
    if passed is None:
        return UNSEEN
    return LAPSED if old.remaining <= passed + SLACK else ENDED


def _queue(before: Snapshot, after: Snapshot, served: list[Holder]) -> Iterator[Event]:
    """Waiters have no number that we may see: they are told apart by who they are, and what they
    want. Not by since when: a quorum tells that a little differently each time."""
    there: dict[tuple[Who, int, bool], list[Waiter]] = {}
    for waiter in before.waiters:
        there.setdefault((waiter.who, waiter.take, waiter.fair), []).append(waiter)
    for waiter in after.waiters:
        same = there.get((waiter.who, waiter.take, waiter.fair))
        if same:
            same.pop()
        else:
            yield Event("waits", after, waiter=waiter)
    got = Counter((one.who, one.take) for one in served)
    for waiter in (waiter for gone in there.values() for waiter in gone):
        if got[waiter.who, waiter.take] > 0:
            got[waiter.who, waiter.take] -= 1
        else:
            yield Event("left", after, waiter=waiter)
