"""What is known of a store's names, and what follows from two looks at one. No I/O, no clock.

What a look cannot tell is not made up:

- Between two looks at a name those holds that are new were granted. There may have been more, which
  came and went in between: hand-overs are **at least** so many.
- A hold that is gone was released, broken, or has lapsed: its lease ran out. That is said only if
  the lease was to end before the second look (`watching` has the rule), and the looks were close
  together: a live holder renews long before. What runs once per period, and the count-downs of a
  latch, are meant to lapse.
- Of a store with very many names only some are looked at in each round: those on the screen, those
  that somebody waits for, and the next few of all the others, in turn. Of what was seen at most
  ``MOST_KEPT`` are kept, the contended and the longest held.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from lockfast.cli.admin import Address, Sight
from lockfast.cli.changes import LAPSED, Event, changes
from lockfast.cli.render import kind_and_size
from lockfast.model import Snapshot

MOST_LOOKS = 200
MOST_KEPT = 5000
MEMORY = 10.0  # seconds over which a rate is averaged, more or less
CLOSE = 5.0  # looks that are further apart say nothing about why a hold ended


class Order(Enum):
    """What stands first."""

    WAIT = "wait"
    HOLD = "hold"
    RATE = "hand-overs"
    LAPSED = "lapsed"
    NAME = "name"

    def next(self) -> Order:
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True)
class Seen:
    """A name as it was seen last, at our time ``at``, and what was learned by looking again."""

    sight: Sight
    at: float
    rate: float = 0.0  # hand-overs per second, at least
    lapsed: int = 0

    @property
    def snapshot(self) -> Snapshot:
        return self.sight.snapshot

    @property
    def waited_since(self) -> float:
        return min((one.since for one in self.snapshot.waiters), default=math.inf)

    @property
    def held_since(self) -> float:
        return min((one.since for one in self.snapshot.holders), default=math.inf)


def followed(before: Seen | None, sight: Sight, at: float) -> Seen:
    """What is known of a name after one more look."""
    if before is None:
        return Seen(sight, at)
    apart = max(at - before.at, 1e-6)
    happened = _between(before, sight.snapshot)
    granted = sum(event.holder is not None for event in happened)
    fades = math.exp(-apart / MEMORY)
    rate = fades * before.rate + (1 - fades) * granted / apart
    return Seen(sight, at, rate, before.lapsed + _lapsed(before, happened))


def _between(before: Seen, after: Snapshot) -> list[Event]:
    passed = after.now - before.snapshot.now
    return list(changes(before.snapshot, after, passed if 0 < passed <= CLOSE else None))


def _lapsed(before: Seen, happened: Iterable[Event]) -> int:
    """How many holds are gone although nobody can have released them, as far as can be told."""
    kind, _ = kind_and_size(before.snapshot)
    if before.sight.address.once or kind == "latch":
        return 0
    return sum(event.how == LAPSED for event in happened)


@dataclass(frozen=True, slots=True)
class Totals:
    names: int  # in the store
    known: int  # of those, looked at and kept
    contended: int
    waiting: int
    rate: float
    lapsed: int


class Model:
    def __init__(self) -> None:
        self._names: list[Address] = []
        self._seen: dict[Address, Seen] = {}
        self._turn = -1
        self._lapsed = 0  # of names that are free by now

    def found(self, names: Iterable[Address], at: float) -> None:
        """All names that are held or waited for, at our time ``at``. Those that were known and are
        not among them have become free."""
        self._names = list(names)
        there = set(self._names)
        for address in [address for address in self._seen if address not in there]:
            seen = self._seen.pop(address)
            # Nothing tells the store's time of this: ours has passed as fast.
            free = Snapshot("", 0, (), (), seen.snapshot.now + (at - seen.at))
            self._lapsed += seen.lapsed + _lapsed(seen, _between(seen, free))

    def saw(self, sight: Sight, at: float) -> None:
        """One look at one name."""
        after = followed(self._seen.get(sight.address), sight, at)
        if sight.is_free:
            self._lapsed += after.lapsed
            self._seen.pop(sight.address, None)
            return
        self._seen[sight.address] = after
        if len(self._seen) > MOST_KEPT + MOST_LOOKS:  # some at a time: it is not worth it for one
            kept = heapq.nlargest(MOST_KEPT, self._seen.values(), key=_interest)
            self._seen = {seen.sight.address: seen for seen in kept}

    def to_look_at(self, shown: Sequence[Address]) -> list[Address]:
        """In this round: what is on the screen, what is waited for, then the others in turn."""
        contended = [address for address, seen in self._seen.items() if seen.snapshot.waiters]
        # A quarter is left for the others, or nobody would see what they have become.
        wanted = dict.fromkeys([*shown, *contended][: MOST_LOOKS * 3 // 4])
        names = self._names
        for _ in range(min(len(names), MOST_LOOKS - len(wanted))):
            self._turn = (self._turn + 1) % len(names)
            wanted[names[self._turn]] = None
        return list(wanted)

    def get(self, address: Address) -> Seen | None:
        return self._seen.get(address)

    def rows(self, order: Order, text: str) -> list[Seen]:
        """Those whose name, holder or label has ``text`` in it, in this order."""
        rows = [seen for seen in self._seen.values() if _matches(seen, text.casefold())]
        rows.sort(key=lambda seen: seen.sight.address)
        if order is not Order.NAME:
            rows.sort(key=_KEYS[order])  # names stay in order where it is equal
        return rows

    def totals(self) -> Totals:
        seen = self._seen.values()
        return Totals(
            len(self._names),
            len(self._seen),
            sum(bool(one.snapshot.waiters) for one in seen),
            sum(len(one.snapshot.waiters) for one in seen),
            sum(one.rate for one in seen),
            self._lapsed + sum(one.lapsed for one in seen),
        )


# By since when, not by how long: names are looked at one after the other, and lines would change
# places all the time.
_KEYS: dict[Order, Callable[[Seen], tuple[float, ...]]] = {
    Order.WAIT: lambda seen: (seen.waited_since, seen.held_since),
    Order.HOLD: lambda seen: (seen.held_since,),
    Order.RATE: lambda seen: (-seen.rate, seen.waited_since),
    Order.LAPSED: lambda seen: (-seen.lapsed, seen.waited_since),
}


def _interest(seen: Seen) -> tuple[bool, float]:
    return bool(seen.snapshot.waiters), -seen.held_since


def _matches(seen: Seen, text: str) -> bool:
    if not text or text in seen.sight.address.name.casefold():
        return True
    people = [one.who for one in seen.snapshot.holders]
    people += [one.who for one in seen.snapshot.waiters]
    return any(text in str(who).casefold() for who in people)
