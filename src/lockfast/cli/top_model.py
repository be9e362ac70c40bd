"""The data of `lockfast top`: a model of a store's names, and the thread that polls the store.

Nothing is shown that an inspection cannot know:

- A hold that is new since the last inspection was granted in between. Further holds may have come
  and gone unseen, so the number of hand-overs is a **lower bound**.
- A hold that is gone was released or broken, or has lapsed (its lease expired). It counts as lapsed
  only if its lease was due to end before the second inspection (`watch.changes` has the rule) and
  the two were close together: a live holder renews long before. Periods of ``once_every`` and the
  count-downs of a latch are meant to lapse, and are not counted.
- With very many names, each round inspects only some: those on the screen, those with waiters, and
  the next few of the others in rotation. At most ``MOST_KEPT`` names are kept: contended names
  first, then those held longest.

The store is polled on a thread of its own, so that keys never wait for a store that is slow or
down. A round begins every ``interval`` and inspects names one by one for at most half of it, so
that the store is idle at least half of the time. Listing all names, the most expensive step where
there are many, is repeated only after ten times as long as it took. An error is shown, and the next
round starts as usual.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lockfast import clock
from lockfast.cli.admin import Address, Admin, Inspection
from lockfast.cli.screen import escaped
from lockfast.cli.watch import LAPSED, Event, changes
from lockfast.core.explain import ago
from lockfast.errors import LockfastError
from lockfast.model import Snapshot

MOST_INSPECTIONS = 200
MOST_KEPT = 5000
MEMORY = 10.0  # time constant of the averaged rate, in seconds
LISTING_PAUSE = 10  # pause between two listings, as a multiple of the time one takes
JOIN_LIMIT = 0.2
CLOSE = 5.0  # inspections further apart do not show why a hold ended


class Order(Enum):
    """Sort order of the list."""

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
    """A name as last inspected, at local time ``at``, and the figures derived so far."""

    inspection: Inspection
    at: float
    rate: float = 0.0  # hand-overs per second, a lower bound
    lapsed: int = 0

    @property
    def address(self) -> Address:
        return self.inspection.address

    @property
    def snapshot(self) -> Snapshot:
        return self.inspection.snapshot

    @property
    def waited_since(self) -> float:
        return min((one.since for one in self.snapshot.waiters), default=math.inf)

    @property
    def held_since(self) -> float:
        return min((one.since for one in self.snapshot.holders), default=math.inf)


def updated(before: Seen | None, inspection: Inspection, at: float) -> Seen:
    """Combine the previous state of a name with a new inspection."""
    if before is None:
        return Seen(inspection, at)
    apart = max(at - before.at, 1e-6)
    events = _events(before, inspection.snapshot)
    granted = sum(event.holder is not None for event in events)
    decay = math.exp(-apart / MEMORY)
    rate = decay * before.rate + (1 - decay) * granted / apart
    return Seen(inspection, at, rate, before.lapsed + _lapsed(before, events))


def _events(before: Seen, after: Snapshot) -> list[Event]:
    passed = after.now - before.snapshot.now
    return list(changes(before.snapshot, after, passed if 0 < passed <= CLOSE else None))


def _lapsed(before: Seen, events: Iterable[Event]) -> int:
    """Number of holds that ended because their lease expired, as far as it is known."""
    inspection = before.inspection
    if inspection.address.once or inspection.kind_and_size[0] == "latch":
        return 0
    return sum(event.how == LAPSED for event in events)


@dataclass(frozen=True, slots=True)
class Totals:
    names: int  # in the store
    known: int  # of those, inspected and kept
    contended: int
    waiting: int
    rate: float
    lapsed: int


class Model:
    def __init__(self) -> None:
        self._names: list[Address] = []
        self._seen: dict[Address, Seen] = {}
        self._last = -1  # last name inspected in rotation
        self._lapsed = 0  # of names that are free by now

    def listed(self, names: Iterable[Address], at: float) -> None:
        """Replace the list of names that are held or waited for, as of local time ``at``. Known
        names that are not on it have become free."""
        self._names = list(names)
        present = set(self._names)
        for address in [address for address in self._seen if address not in present]:
            seen = self._seen.pop(address)
            # The store's time of this is unknown; local time has advanced equally.
            free = Snapshot("", 0, (), (), seen.snapshot.now + (at - seen.at))
            self._lapsed += seen.lapsed + _lapsed(seen, _events(seen, free))

    def inspected(self, inspection: Inspection, at: float) -> None:
        """Record an inspection of one name."""
        after = updated(self._seen.get(inspection.address), inspection, at)
        if inspection.is_free:
            self._lapsed += after.lapsed
            self._seen.pop(inspection.address, None)
            return
        self._seen[inspection.address] = after
        if len(self._seen) > MOST_KEPT + MOST_INSPECTIONS:  # a sort per name would be too slow
            kept = heapq.nlargest(
                MOST_KEPT,
                self._seen.values(),
                key=lambda seen: (bool(seen.snapshot.waiters), -seen.held_since),
            )
            self._seen = {seen.address: seen for seen in kept}

    def to_inspect(self, visible: Sequence[Address]) -> list[Address]:
        """Names to inspect in this round: visible ones, contended ones, then others in rotation."""
        contended = [address for address, seen in self._seen.items() if seen.snapshot.waiters]
        # A quarter is reserved for the other names, or their state would never be updated.
        wanted = dict.fromkeys([*visible, *contended][: MOST_INSPECTIONS * 3 // 4])
        names = self._names
        for _ in range(min(len(names), MOST_INSPECTIONS - len(wanted))):
            self._last = (self._last + 1) % len(names)
            wanted[names[self._last]] = None
        return list(wanted)

    def get(self, address: Address) -> Seen | None:
        return self._seen.get(address)

    def rows(self, order: Order, text: str) -> list[Seen]:
        """Names with ``text`` in the name or in a holder or waiter, in this order."""
        rows = [seen for seen in self._seen.values() if _matches(seen, text.casefold())]
        rows.sort(key=lambda seen: seen.address)
        if order is not Order.NAME:
            rows.sort(key=_KEYS[order])  # stable: equal keys stay sorted by name
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


# Sort by start time, not by duration: names are inspected one after the other, so durations are of
# different moments and lines would swap all the time.
_KEYS: dict[Order, Callable[[Seen], tuple[float, ...]]] = {
    Order.WAIT: lambda seen: (seen.waited_since, seen.held_since),
    Order.HOLD: lambda seen: (seen.held_since,),
    Order.RATE: lambda seen: (-seen.rate, seen.waited_since),
    Order.LAPSED: lambda seen: (-seen.lapsed, seen.waited_since),
}


def _matches(seen: Seen, text: str) -> bool:
    if not text or text in seen.address.name.casefold():
        return True
    owners = [one.who for one in seen.snapshot.holders]
    owners += [one.who for one in seen.snapshot.waiters]
    return any(text in str(who).casefold() for who in owners)


class Break(NamedTuple):
    """Request to break this hold, if it still has this fence."""

    address: Address
    fence: int


class Poller:
    def __init__(
        self,
        admin: Admin,
        prefix: str,
        *,
        everywhere: bool,
        interval: float,
        on_update: Callable[[], None],
    ) -> None:
        self.model = Model()
        self.mutex = threading.Lock()  # guards the model
        self.visible: Sequence[Address] = ()  # names on the screen
        self.messages: deque[str] = deque()  # results of breaks
        self._admin, self._prefix, self._everywhere = admin, prefix, everywhere
        self._interval, self._on_update = interval, on_update
        self._breaks: deque[Break] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._next_listing = 0.0
        self._failing_since: float | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. It may be waiting for a store that does not answer: join briefly."""
        self._stopped = True
        self._wake.set()
        self._thread.join(JOIN_LIMIT)

    def request_break(self, request: Break) -> None:
        """Queue a break, to be carried out at the start of the next round, which begins now."""
        self._breaks.append(request)
        self._wake.set()

    def look(
        self, order: Order, text: str, name: Address | None
    ) -> tuple[list[Seen], Seen | None, Totals]:
        """Return the rows of the list, the state of one name, and the totals."""
        with self.mutex:
            seen = self.model.get(name) if name else None
            return self.model.rows(order, text), seen, self.model.totals()

    def problem(self) -> str:
        """Error of the store and age of the displayed data; empty if all is well."""
        since = self._failing_since
        if since is None:
            return ""
        return f"no data for {ago(clock.now() - since)}: {self._error}"

    def _run(self) -> None:
        while not self._stopped:
            began = clock.now()
            try:
                self._round(began)
                self._failing_since = None
            except LockfastError as error:
                self._error = str(error)
                self._failing_since = self._failing_since or began
            self._on_update()
            self._wake.wait(max(began + self._interval - clock.now(), self._interval / 2))
            self._wake.clear()

    def _round(self, began: float) -> None:
        self._carry_out_breaks()
        if began >= self._next_listing:
            names = self._admin.addresses(self._prefix, everywhere=self._everywhere)
            now = clock.now()
            self._next_listing = now + max(LISTING_PAUSE * (now - began), self._interval / 2)
            with self.mutex:
                self.model.listed(names, now)
        with self.mutex:
            wanted = self.model.to_inspect(self.visible)
        until = clock.now() + self._interval / 2
        for address in wanted:
            if self._stopped or self._breaks or clock.now() > until:
                break
            inspection = self._admin.inspect(address)
            with self.mutex:
                self.model.inspected(inspection, clock.now())

    def _carry_out_breaks(self) -> None:
        while self._breaks:
            request = self._breaks.popleft()
            name, fence = escaped(request.address.name), request.fence
            try:
                if self._admin.break_hold(request.address, fence):
                    message = f"{name}: broken, fence {fence}"
                else:
                    message = f"{name}: no hold has fence {fence} any more, nothing was broken"
            except LockfastError as error:
                message = f"{name}: whether it was broken is unknown: {error}"
            self.messages.append(message)
            self._on_update()
