"""One name's rows as the law of slots sees them: read before, written after, never in between.

A name has one row in ``lockfast_names``, with a *seat* for one hold, so that a lock that is alone
costs one row; and rows in ``lockfast_rows`` for all others who hold it or wait (it is a *crowd*
then). What a step read is kept here, the law decides over it, and `change` tells what to write.

**Why this is one atomic step**, although the store is asked twice and nothing is locked meanwhile:
whatever writes anything of a name, in whichever statement, makes the name's ``version`` grow in the
same statement or transaction. A step writes only if the version is still the one that it read, so
nothing happened between; else nothing of it is written, and it begins anew. A process that is
stopped in the middle of a step holds up nobody. ``now`` is read together with the rows: any answer
that somebody got before is older than it, so a lease that counts from ``now`` lasts as long as
whoever got that answer may believe.

Only the first of a long queue are read. If the law wants to see more it gets `ReadMore`, and the
step begins anew with more; but for who leaves, ``most`` are enough: the message of a time-out need
not count ten thousand, and those whom it does not serve then are served by the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from lockfast.core.law import Row
from lockfast.model import Granted

# What a row of lockfast_rows is.
HOLD, FAIR, UNFAIR = 0, 1, 2
_by_fence = attrgetter("fence")


class ReadMore(Exception):
    """The law wants to see more of the queue than was read."""


@dataclass(slots=True)
class Seen:
    """What the tables say of a name at one moment (``now``, on the server's clock).

    ``version`` 0: they know nothing of it. ``seat`` and ``rows`` may be dead. ``rows`` are
    (kind, place, row): all holds, the first of each queue, and those that were asked for by id.
    ``cut`` tells of each queue whether there are more.
    """

    now: float
    version: int
    last_fence: int
    inline_hold: Row | None
    rows: list[tuple[int, int, Row]]
    cut: dict[bool, int]


@dataclass(slots=True)
class Change:
    """What to write if the name's version is still this one. ``put`` are (kind, place, row)."""

    version: int
    new_version: int
    crowd: bool
    last_fence: int
    inline_hold: Row | None
    put: list[tuple[int, int, Row]]
    gone: list[str]
    wakeups: list[tuple[Row, Granted | None]]
    now: float


class RowBook:
    """The book of one step."""

    def __init__(self, seen: Seen, wake_address: str, most: float = float("inf")) -> None:
        self.now = self.wall = seen.now
        self.wake_address = wake_address
        self.woken: list[tuple[Row, Granted | None]] = []
        self._seen = seen
        self._most = most
        self._last_fence = seen.last_fence
        self._changed = False
        self._touched: set[str] = set()  # ids whose row must be written anew
        self._waiters: dict[str, tuple[int, int, Row]] = {}
        self.holds: dict[str, Row] = {}
        self._dead: list[str] = []  # ids in lockfast_rows whose time is over
        self._seated = ""
        if seen.inline_hold is not None:
            self._last_fence = max(self._last_fence, seen.inline_hold.fence)
            if seen.inline_hold.ends > self.now:
                self._seated = seen.inline_hold.id
                self.holds[seen.inline_hold.id] = seen.inline_hold
        for kind, waiter, row in seen.rows:
            self._last_fence = max(self._last_fence, row.fence)
            if row.ends <= self.now:
                self._dead.append(row.id)
            elif kind == HOLD:
                self.holds[row.id] = row
            else:
                self._waiters[row.id] = (kind, waiter, row)
        self._stored = {row.id for _, _, row in seen.rows}

    # ---- what the law sees -------------------------------------------------------------------

    @property
    def last_fence(self) -> int:
        return self._last_fence

    def next_fence(self) -> int:
        """Greater than every one before, and than the server's clock says: so it grows although
        the name was forgotten meanwhile, or the clock was set back."""
        self._changed = True
        self._last_fence = max(self._last_fence + 1, int(self.now * 1e6))
        return self._last_fence

    def waiting(self, *, fair: bool) -> Iterator[Row]:
        if not self._waiters and not self._seen.cut[fair]:
            return
        kind = FAIR if fair else UNFAIR
        cut = self._seen.cut[fair]  # rows behind it were asked for by id; what is between is unread
        queue = sorted(
            (entry for entry in self._waiters.values() if entry[0] == kind), key=lambda it: it[1]
        )
        for _, waiter, row in queue:
            if cut and waiter > cut:
                break
            yield row
        if cut and len(queue) < self._most:
            raise ReadMore

    def waiter(self, claim_id: str) -> Row | None:
        entry = self._waiters.get(claim_id)
        return entry[2] if entry is not None else None

    # ---- what it does ------------------------------------------------------------------------

    def add_hold(self, row: Row) -> None:
        self.holds[row.id] = row
        self._touch(row.id)

    def keep_hold(self, row: Row) -> None:
        self._touch(row.id)

    def end_hold(self, claim_id: str) -> bool:
        if self.holds.pop(claim_id, None) is None:
            return False
        self._changed = True
        return True

    def add_waiter(self, row: Row) -> None:
        # Its number is the version that it is written with: greater than those of all before it.
        self._waiters[row.id] = (FAIR if row.fair else UNFAIR, self._new_version(), row)
        self._touch(row.id)

    def keep_waiter(self, row: Row) -> None:
        self._touch(row.id)

    def remove_waiter(self, row: Row) -> None:
        del self._waiters[row.id]
        self._changed = True

    def wake(self, row: Row, grant: Granted | None) -> None:
        self._changed = True
        self.woken.append((row, grant))

    def _new_version(self) -> int:
        """A name that was forgotten begins at the clock: above all that it had before."""
        return (self._seen.version or int(self.now * 1e6)) + 1

    def _touch(self, claim_id: str) -> None:
        self._changed = True
        self._touched.add(claim_id)

    # ---- what to write -----------------------------------------------------------------------

    def bury(self) -> None:
        """Write, if only to take away the dead."""
        if any(self._seen.cut.values()):
            raise ReadMore
        self._changed = self._changed or bool(self._dead)

    def change(self) -> Change | None:
        """What is different now; None: nothing."""
        if not self._changed:
            return None
        inline_hold = self.holds.get(self._seated)
        if inline_hold is None and self.holds:  # the seat is not empty while anybody holds it
            inline_hold = min(self.holds.values(), key=_by_fence)
        in_seat = inline_hold.id if inline_hold is not None else ""
        put: list[tuple[int, int, Row]] = []
        kept: set[str] = set()
        for row in self.holds.values():
            if row.id != in_seat:
                kept.add(row.id)
                if row.id in self._touched:
                    put.append((HOLD, 0, row))
        for entry in self._waiters.values():
            claim_id = entry[2].id
            kept.add(claim_id)
            if claim_id in self._touched:
                put.append(entry)
        gone = [claim_id for claim_id in self._stored if claim_id not in kept]
        crowd = bool(kept) or any(self._seen.cut.values())
        return Change(
            self._seen.version,
            self._new_version(),
            crowd,
            self._last_fence,
            inline_hold,
            put,
            gone,
            self.woken,
            self.now,
        )
