"""One name's rows as the law of slots sees them: read before a step, written after it.

A name has one row in ``lockfast_names``, which can store one hold *inline*, so that an uncontended
lock costs one row. All other holds, and all waiters, have rows in ``lockfast_rows``; the name is
*contended* while there are any. A `RowBook` keeps the rows that a step read, the law decides over
them, and `RowBook.change` computes the write.

**Why a step is atomic**, although it takes two round trips and locks nothing in between: every
statement that writes anything of a name increments the name's ``version`` in the same statement or
transaction. A step writes only if the version is still the one that it read, so nothing happened in
between; otherwise nothing is written, and the step starts over. A process that is stopped in the
middle of a step blocks nobody. ``now`` is read together with the rows: every reply that a client
got earlier is older than ``now``, so a lease that counts from ``now`` lasts at least as long as
that client considers it valid.

Only the head of a long queue is read. If the law needs more, the book raises `ReadMore`, and the
step starts over with a larger limit. A waiter that leaves reads at most ``most`` rows: the message
of a time-out need not count ten thousand waiters, and waiters that this step does not serve are
served by the next one.

**Replies** are lists of `Result`, one per statement of the request; the reply to a list of requests
is a list of replies. Values in rows are the bytes that the server sent as text, or None; times are
whole microseconds. So no setting of a session decides how precisely they are shown.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

from lockfast.core.law import REFRESH, Row
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Granted

P = ParamSpec("P")
T = TypeVar("T")
# Kinds of rows in lockfast_rows: a hold, a fair waiter, an unfair waiter.
HOLD, FAIR, UNFAIR = 0, 1, 2
_by_fence = attrgetter("fence")
Cells = Sequence[Any]  # bytes or None
# A hold to renew: the hash of its name, its claim, its fence.
Renewal = tuple[bytes, Claim, int]


@functools.lru_cache(maxsize=4096)
def hash_of(name: str) -> bytes:
    """Return a name's key: a hash, so case, collation, trailing spaces and length do not matter."""
    return hashlib.sha256(name.encode()).digest()


class Retry(Exception):
    """The server rolled it back (deadlock, serialization failure): retry within the budget."""


class NoTables(Exception):
    """The tables do not exist yet."""


class ReadOnly(BackendError):
    """The server takes no writes: a replica, or a primary that is about to become one."""


class Result(NamedTuple):
    """Result of one statement."""

    affected: int
    insert_id: int = 0
    rows: Sequence[Cells] = ()


Reply = Sequence[Result]


class ReadMore(Exception):
    """The law needs more of the queue than was read."""


@dataclass(slots=True)
class NameState:
    """Rows of one name, as read at one moment (``now``, on the server's clock).

    ``version`` is 0 if the name has no row. ``inline_hold`` and ``rows`` may have expired. ``rows``
    are (kind, queue position, row): all holds, the head of each queue, and the rows requested by
    id. ``cut`` is, for each queue (by fairness), the last position read if there may be more rows
    behind it, else 0.
    """

    now: float
    version: int
    last_fence: int
    inline_hold: Row | None
    rows: list[tuple[int, int, Row]]
    cut: dict[bool, int]


@dataclass(slots=True)
class Change:
    """Write of one step, applied only if the name's version is still ``version``.

    ``upserts`` are (kind, queue position, row); ``deletes`` are claim ids.
    """

    version: int
    new_version: int
    contended: bool
    last_fence: int
    inline_hold: Row | None
    upserts: list[tuple[int, int, Row]]
    deletes: list[str]
    wakeups: list[tuple[Row, Granted | None]]
    now: float


class RowBook:
    """The law's `Book` over one `NameState`, for one step."""

    def __init__(self, state: NameState, wake_address: str, most: float = float("inf")) -> None:
        self.now = self.wall = state.now
        self.wake_address = wake_address
        self.woken: list[tuple[Row, Granted | None]] = []
        self._state = state
        self._most = most
        self._last_fence = state.last_fence
        self._changed = False
        self._touched: set[str] = set()  # ids whose row must be written
        self._waiters: dict[str, tuple[int, int, Row]] = {}
        self.holds: dict[str, Row] = {}
        self._dead: list[str] = []  # ids in lockfast_rows that have expired
        self._inline_id = ""
        if state.inline_hold is not None:
            self._last_fence = max(self._last_fence, state.inline_hold.fence)
            if state.inline_hold.ends > self.now:
                self._inline_id = state.inline_hold.id
                self.holds[state.inline_hold.id] = state.inline_hold
        for kind, position, row in state.rows:
            self._last_fence = max(self._last_fence, row.fence)
            if row.ends <= self.now:
                self._dead.append(row.id)
            elif kind == HOLD:
                self.holds[row.id] = row
            else:
                self._waiters[row.id] = (kind, position, row)
        self._stored = {row.id for _, _, row in state.rows}

    # ---- read by the law ---------------------------------------------------------------------

    @property
    def last_fence(self) -> int:
        return self._last_fence

    def next_fence(self) -> int:
        """Return a fence above every earlier one and not below the server's clock: so fences grow
        even if the name's row was swept meanwhile or the clock was set back."""
        self._changed = True
        self._last_fence = max(self._last_fence + 1, int(self.now * 1e6))
        return self._last_fence

    def waiting(self, *, fair: bool) -> Iterator[Row]:
        if not self._waiters and not self._state.cut[fair]:
            return
        kind = FAIR if fair else UNFAIR
        # Rows behind the cut were requested by id; the rows in between were not read.
        cut = self._state.cut[fair]
        queue = sorted(
            (entry for entry in self._waiters.values() if entry[0] == kind),
            key=lambda entry: entry[1],
        )
        for _, position, row in queue:
            if cut and position > cut:
                break
            yield row
        if cut and len(queue) < self._most:
            raise ReadMore

    def waiter(self, claim_id: str) -> Row | None:
        entry = self._waiters.get(claim_id)
        return entry[2] if entry is not None else None

    # ---- changed by the law ------------------------------------------------------------------

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
        # Its position is the version it is written with, which is above all earlier positions.
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
        """Return the next version. A new row starts at the clock: above the versions of a swept
        row."""
        return (self._state.version or int(self.now * 1e6)) + 1

    def _touch(self, claim_id: str) -> None:
        self._changed = True
        self._touched.add(claim_id)

    # ---- the write ---------------------------------------------------------------------------

    def remove_dead(self) -> None:
        """Request a write if only to delete expired rows."""
        if any(self._state.cut.values()):
            raise ReadMore
        self._changed = self._changed or bool(self._dead)

    def change(self) -> Change | None:
        """Return the write of this step; None: nothing changed."""
        if not self._changed:
            return None
        inline_hold = self.holds.get(self._inline_id)
        if inline_hold is None and self.holds:  # some hold is always inline
            inline_hold = min(self.holds.values(), key=_by_fence)
        inline_id = inline_hold.id if inline_hold is not None else ""
        upserts: list[tuple[int, int, Row]] = []
        kept: set[str] = set()
        for row in self.holds.values():
            if row.id != inline_id:
                kept.add(row.id)
                if row.id in self._touched:
                    upserts.append((HOLD, 0, row))
        for entry in self._waiters.values():
            claim_id = entry[2].id
            kept.add(claim_id)
            if claim_id in self._touched:
                upserts.append(entry)
        deletes = [claim_id for claim_id in self._stored if claim_id not in kept]
        contended = bool(kept) or any(self._state.cut.values())
        return Change(
            self._state.version,
            self._new_version(),
            contended,
            self._last_fence,
            inline_hold,
            upserts,
            deletes,
            self.woken,
            self.now,
        )


# ---- requests and replies, as far as both databases share them -----------------------------------


def _decoder(decode: Callable[P, T]) -> Callable[P, T]:
    """Report rows that this statement cannot return, whatever is wrong with them."""

    @functools.wraps(decode)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return decode(*arguments, **keywords)
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            raise BackendError(f"the server's reply is malformed: {error}") from error

    return checked


class Dialect:
    """Encoder of requests, which are opaque to the store, and decoder of their replies. The rest of
    it is each database's own; ``decode_x`` belongs to the request ``x``."""

    def decode_release(self, reply: Reply) -> bool:
        return bool(reply[0].affected)

    @_decoder
    def decode_names(self, reply: Reply) -> list[str]:
        return [name.decode() for (name,) in reply[0].rows]

    @_decoder
    def decode_grants(self, reply: Reply) -> list[tuple[str, Granted]]:
        return [
            (claim_id.decode(), Granted(int(fence), int(lease) / 1e6))
            for result in reply
            for claim_id, fence, lease in result.rows
        ]


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 0)


def columns_of(row: Row) -> tuple[Any, ...]:
    """Return the columns of a row as both dialects write them, from ``id`` to ``wake_address``."""
    return (
        row.id,
        row.who,
        row.take,
        row.slots,
        row.lease,
        row.fair,
        row.fence,
        micros(row.since),
        micros(row.ends),
        row.wake_address,
    )


@_decoder
def busy_of(rows: Sequence[Cells]) -> Busy | None:
    """Decode the row of a join: time until the hold ends, last fence, whether others wait."""
    if not rows:
        return None
    rest, fence, others = rows[0]
    return Busy(REFRESH if int(others) else min(REFRESH, max(int(rest) / 1e6, 0.0)), int(fence))


@_decoder
def name_state(now: bytes, rows: Sequence[Cells], limit: int) -> NameState:
    """Decode the rows of a read: kind, queue position, ten columns, last fence. Kind -1 is the name
    itself, 10 and more a waiter that was asked for by id."""
    version, last_fence, inline_hold = 0, 0, None
    found: list[tuple[int, int, Row]] = []
    known = set()
    counts = {FAIR: [0, 0], UNFAIR: [0, 0]}
    for cells in rows:
        kind, position, claim_id = int(cells[0]), int(cells[1]), cells[2]
        if kind == -1:
            version, last_fence = position, int(cells[12])
            inline_hold = _row(cells) if claim_id else None
        elif claim_id not in known:
            known.add(claim_id)
            found.append((kind % 10, position, _row(cells)))
            if kind in counts:
                counts[kind][0] += 1
                counts[kind][1] = max(counts[kind][1], position)
    cut = {
        fair: counts[kind][1] if counts[kind][0] >= limit else 0
        for fair, kind in ((True, FAIR), (False, UNFAIR))
    }
    return NameState(int(now) / 1e6, version, last_fence, inline_hold, found, cut)


def _row(cells: Cells) -> Row:
    claim_id, who, take, slots, lease, fair, fence, since, ends, wake_address = cells[2:12]
    return Row(
        claim_id.decode(),
        who.decode(),
        int(take),
        int(slots),
        int(lease) / 1e6,
        fair == b"1",
        int(fence),
        int(since) / 1e6,
        int(ends) / 1e6,
        wake_address.decode(),
    )
