"""`lockfast watch NAME`: print hand-overs and losses as they happen, one line each.

A store notifies waiters of a release, not observers, so watching means inspecting several times a
second. Changes between two inspections that cancel out are missed. A hold that is gone was released
or broken, or its holder died: these look the same, unless its lease had expired. The help lists the
events.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any, Never

from lockfast import clock
from lockfast.cli.admin import Address, Admin, Inspection, administer, describe, moment
from lockfast.cli.main import NAME, ONCE, TERMINATED, exits, print_stderr, store, switch, verb
from lockfast.errors import BackendError
from lockfast.model import Capabilities, Holder, Snapshot, Waiter, Who

LAPSED, ENDED, UNSEEN = "lapsed", "ended", "unseen"
SLACK = 0.05  # delay with which an inspection may learn of a renewal

# Seconds between two inspections: short after an event, growing while nothing happens.
SHORTEST, LONGEST, GROWTH = 0.05, 0.25, 1.3
RETRY = 1.0  # while the store does not answer
EPILOG = f"""\
The name is inspected 4 to 20 times a second; changes in between may be missed. The first lines show
its state (holds, waits, free), the following ones what happens:

  acquired  a new holder
  passed    from one holder to the next, and how the first hold ended
  ended     released or broken (or its process or session ended): the store does not say which
  lapsed    the lease expired without a renewal: the holder is dead, paused or disconnected
  waits     a waiter joined the queue
  left      a waiter left the queue without the lock: timed out, or died

While the store does not answer, watch keeps trying; stderr reports the outage and its end. Stop
with Ctrl-C.

examples:
  lockfast watch nightly-report
  lockfast watch nightly-report --json | jq -r 'select(.event == "lapsed") | .previous.host'

{exits("never: watch ends by a signal or a closed pipe")}"""


@verb(
    "Print what happens to a name, line by line, until Ctrl-C.",
    EPILOG,
    [NAME, ONCE, switch("--json", help="print a JSON document per line, for scripts"), *store()],
)
def watch(args: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(TERMINATED))
    try:
        with administer(args) as admin:
            address = admin.address(args.name, once=args.once)
            _follow(Watch(admin, address, admin.capabilities), args.json)
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(watch: Watch, as_json: bool) -> Never:
    _print(watch, watch.poll(), as_json)  # an unreachable store is an error at first
    unreachable = False
    pause = SHORTEST
    while True:
        _sleep(pause)
        try:
            events = watch.poll()
        except BackendError as error:
            if not error.transient:
                raise
            if not unreachable:
                print_stderr(f"{error}; still trying")
            unreachable, pause = True, RETRY
            continue
        if unreachable:
            print_stderr("the store answers again")
        pause = SHORTEST if events or unreachable else min(pause * GROWTH, LONGEST)
        unreachable = False
        _print(watch, events, as_json)


def _print(watch: Watch, events: list[Event], as_json: bool) -> None:
    for event in events:
        print(json.dumps(watch.document(event)) if as_json else watch.line(event))
    sys.stdout.flush()


def _sleep(seconds: float) -> None:
    """Sleep; raise `BrokenPipeError` as soon as the reader of stdout is gone, so that
    ``watch … | head -1`` ends then and not at the next hand-over."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    for _, events in poll.poll(seconds * 1000):
        if events & select.POLLERR:
            raise BrokenPipeError
        time.sleep(seconds)  # the terminal hung up: SIGHUP follows


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
