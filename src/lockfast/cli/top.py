"""`lockfast top [PREFIX]`: the verb, the model of names that are held or waited for, the poller.

`top_app` is the screen, on Textual, which is imported only when it is shown. Nothing is shown that
an inspection cannot know:

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

import argparse
import heapq
import importlib.util
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lockfast import clock
from lockfast.cli import can_encode, duration, escaped
from lockfast.cli.admin import LAPSED, Address, Admin, Event, Inspection, administer, changes
from lockfast.cli.main import USAGE, exits, fail, names, option, store, verb
from lockfast.core.explain import ago
from lockfast.errors import ConfigurationError, LockfastError
from lockfast.model import Snapshot

INTERVAL, LEAST_INTERVAL = 1.0, 0.2
KEYS = """\
  arrows, j k, g G   select a name; the selection follows it
  Enter   go to its holders, waiters and latest hand-overs; Esc goes back
  b       break a hold, after a question that shows its holder and fence
  /       filter by text in names, holders, labels; Enter keeps it, Esc clears
  s, r    sort by the next column (or click on its title); reverse the order
  ?       explain the keys and columns
  q       quit; Ctrl-Z suspends"""
EPILOG = f"""\
keys:
{KEYS}

Needs a UTF-8 terminal; works at 80×24 and over ssh. Figures come from inspecting the store, which
keeps no statistics: hand-overs are a lower bound. For scripts, use lockfast ls --json.

examples:
  lockfast top
  lockfast top orders: --url redis://localhost:6379/0
  lockfast top --all-namespaces --interval 5

{exits("quit with q")}"""
WHEN = f"time between two rounds (default: {INTERVAL:g}s)"
EVERY = option("--interval", type=duration, metavar="TIME", default=INTERVAL, help=WHEN)
INSTALL = "top needs Textual: pip install 'lockfast[top]'"


@verb(
    "Watch the names that are held or waited for, live.",
    EPILOG,
    [*names("show"), EVERY, *store()],
)
def top(args: argparse.Namespace) -> int:
    if not LEAST_INTERVAL <= args.interval <= 3600:
        problem = f"--interval {args.interval:g}: must be between {LEAST_INTERVAL} and 3600"
        raise ConfigurationError(problem)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM") == "dumb":
        return fail("top needs a terminal; for scripts use lockfast ls --json", USAGE)
    if importlib.util.find_spec("textual") is None:
        return fail(INSTALL, USAGE)
    if not can_encode(sys.stderr, "▁█▼…"):
        return fail("top needs a UTF-8 terminal: set LANG, as in LANG=C.UTF-8", USAGE)
    from lockfast.cli.top_app import TopApp

    with administer(args) as admin:
        poller = Poller(admin, args.prefix, everywhere=args.all_namespaces, interval=args.interval)
        where = f"{admin.store} ({'all' if args.all_namespaces else admin.namespace})"
        poller.start()
        try:
            app = TopApp(poller, where)
            app.run()
            return app.return_code or 0
        finally:
            poller.stop()


MOST_INSPECTIONS = 200
MOST_KEPT = 5000
MEMORY = 10.0  # time constant of the averaged rate, in seconds
LISTING_PAUSE = 10  # pause between two listings, as a multiple of the time one takes
JOIN_LIMIT = 0.2
CLOSE = 5.0  # inspections further apart do not show why a hold ended
HISTORY, RECENT = 60, 10  # samples of a sparkline, and hand-overs, that are kept


@dataclass(frozen=True, slots=True)
class Seen:
    """A name as last inspected, at local time ``at``, and the figures derived so far."""

    inspection: Inspection
    at: float
    rate: float = 0.0  # hand-overs per second, a lower bound
    lapsed: int = 0
    granted: int = 0  # hand-overs observed in the last inspection
    recent: tuple[Event, ...] = ()  # holds that began or ended, the latest last
    rates: tuple[float, ...] = ()  # hand-overs per second, by inspection
    waits: tuple[float, ...] = ()  # the longest wait, by inspection

    @property
    def address(self) -> Address:
        return self.inspection.address

    @property
    def snapshot(self) -> Snapshot:
        return self.inspection.snapshot

    @property
    def waited_since(self) -> float:
        return min([one.since for one in self.snapshot.waiters], default=math.inf)

    @property
    def held_since(self) -> float:
        return min([one.since for one in self.snapshot.holders], default=math.inf)

    @property
    def held(self) -> float:
        """How long it has been held; minus infinity if it is not."""
        return self.snapshot.now - self.held_since

    @property
    def waited(self) -> float:
        """How long the first waiter has waited; minus infinity if there is none."""
        return self.snapshot.now - self.waited_since

    def cells(self) -> list[str]:
        """Cells of a line of the list."""
        return [
            escaped(self.address.name),
            self.inspection.kind_cell,
            self.inspection.holder_cell,
            brief(self.held),
            str(len(self.snapshot.waiters)),
            brief(self.waited),
            f"{self.rate:.1f}",
            str(self.lapsed),
        ]

    def matches(self, text: str) -> bool:
        """True if the text, in lower case, is in the name or in a holder or waiter."""
        if not text or text in self.address.name.casefold():
            return True
        owners = [one.who for one in self.snapshot.holders]
        owners += [one.who for one in self.snapshot.waiters]
        return any(text in str(who).casefold() for who in owners)


# Sort key of each column. Start times, not durations: names are inspected one after
# the other, so durations are of different moments, and lines would swap all the time.
SORT_KEYS: tuple[Callable[[Seen], Any], ...] = (
    lambda seen: seen.address.name,
    lambda seen: seen.inspection.kind_cell,
    lambda seen: seen.inspection.holder_cell,
    lambda seen: seen.held_since,
    lambda seen: (-len(seen.snapshot.waiters), seen.waited_since),
    lambda seen: (seen.waited_since, seen.held_since),
    lambda seen: (-seen.rate, seen.waited_since),
    lambda seen: (-seen.lapsed, seen.waited_since),
)


def updated(before: Seen | None, inspection: Inspection, at: float) -> Seen:
    """Combine the previous state of a name with a new inspection."""
    seen = Seen(inspection, at)
    waits = (*(before.waits if before else ()), max(seen.waited, 0.0))[-HISTORY:]
    if before is None:
        return replace(seen, waits=waits)
    apart = max(at - before.at, 1e-6)
    events = _events(before, inspection.snapshot)
    granted = sum(event.holder is not None for event in events)
    decay = math.exp(-apart / MEMORY)
    holds = [event for event in events if event.waiter is None]
    return Seen(
        inspection,
        at,
        rate=decay * before.rate + (1 - decay) * granted / apart,
        lapsed=before.lapsed + _lapsed(before, events),
        granted=granted,
        recent=(*before.recent, *holds)[-RECENT:],
        rates=(*before.rates, granted / apart)[-HISTORY:],
        waits=waits,
    )


def _events(before: Seen, after: Snapshot) -> list[Event]:
    passed = after.now - before.snapshot.now
    return list(changes(before.snapshot, after, passed if 0 < passed <= CLOSE else None))


def _lapsed(before: Seen, events: Iterable[Event]) -> int:
    """Number of holds that ended because their lease expired, as far as it is known."""
    inspection = before.inspection
    if inspection.address.once or inspection.kind_and_size[0] == "latch":
        return 0
    return sum(event.how == LAPSED for event in events)


class Totals(NamedTuple):
    names: int  # in the store
    known: int  # of those, inspected and kept
    contended: int
    waiting: int
    longest_wait: float
    rate: float
    lapsed: int


def brief(seconds: float) -> str:
    """Format a duration for a narrow column; a dash if there is none."""
    return "".join(ago(seconds).replace("min", "m").split()) if math.isfinite(seconds) else "-"


class Model:
    def __init__(self) -> None:
        self._names: list[Address] = []
        self._seen: dict[Address, Seen] = {}
        self._last = -1  # last name inspected in rotation
        self._lapsed = 0  # of names that are free by now
        self._granted, self._sampled_at = 0, 0.0
        self.rates: deque[float] = deque(maxlen=HISTORY)  # hand-overs per second, by round
        self.waits: deque[float] = deque(maxlen=HISTORY)  # the longest wait, by round

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
        self._granted += after.granted
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

    def sample(self, at: float) -> None:
        """Add a point to the sparklines of all names: the round that ends now."""
        if self._sampled_at:
            self.rates.append(self._granted / max(at - self._sampled_at, 1e-6))
        contended = [seen.waited for seen in self._seen.values() if seen.snapshot.waiters]
        self.waits.append(max(contended, default=0.0))
        self._granted, self._sampled_at = 0, at

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

    def matching(self, text: str) -> list[Seen]:
        """Names with ``text`` in the name or in a holder or waiter, by name."""
        text = text.casefold()
        found = [seen for seen in self._seen.values() if seen.matches(text)]
        return sorted(found, key=lambda seen: seen.address)

    def totals(self) -> Totals:
        seen = self._seen.values()
        contended = [one for one in seen if one.snapshot.waiters]
        return Totals(
            len(self._names),
            len(self._seen),
            len(contended),
            sum(len(one.snapshot.waiters) for one in contended),
            max((one.waited for one in contended), default=0.0),
            sum(one.rate for one in seen),
            self._lapsed + sum(one.lapsed for one in seen),
        )


class Poller:
    """Polls the store. The screen reads `model` under `mutex`, and compares `rounds`."""

    def __init__(self, admin: Admin, prefix: str, *, everywhere: bool, interval: float) -> None:
        self.model = Model()
        self.mutex = threading.Lock()  # guards the model
        self.visible: Sequence[Address] = ()  # names on the screen
        self.messages: deque[str] = deque()  # results of breaks
        self.rounds = 0
        self._admin, self._prefix, self._everywhere = admin, prefix, everywhere
        self._interval = interval
        self._breaks: deque[tuple[Address, int]] = deque()
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

    def request_break(self, address: Address, fence: int) -> None:
        """Queue a break, to be carried out at the start of the next round, which begins now."""
        self._breaks.append((address, fence))
        self._wake.set()

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
            self.rounds += 1
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
        with self.mutex:
            self.model.sample(clock.now())

    def _carry_out_breaks(self) -> None:
        while self._breaks:
            address, fence = self._breaks.popleft()
            name = escaped(address.name)
            try:
                if self._admin.break_hold(address, fence):
                    message = f"{name}: broken, fence {fence}"
                else:
                    message = f"{name}: no hold has fence {fence} any more, nothing was broken"
            except LockfastError as error:
                message = f"{name}: whether it was broken is unknown: {error}"
            self.messages.append(message)
