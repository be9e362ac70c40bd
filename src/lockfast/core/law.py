"""The one law of slots: who gets a name, in what order, and for how long.

A name has slots; a claim takes some. **A claim is granted when it fits beside the live holds and
nobody who waits stands before it** (fair), **or as soon as it fits** (unfair). Each function here
is one atomic step at the store: it sees one name through a `Book` at one moment and writes through
it. The memory and SQLite stores run these very lines; the other stores say the same in their own
language and are tested against it.

The rules:

1. A hold or a place whose time is over is dead. A book never shows the dead.
2. Claims stand in arrival order. A fair claim that does not fit stops every fair one behind it, so
   a big claim (a writer) is not starved by small ones. An unfair claim has no place: it stops
   nobody, and is only rung when slots are left over.
3. Whatever frees slots serves the next in the same step, and rings only their bells. They are
   granted a short first lease: one who died meanwhile costs no more than that.
4. Every step is idempotent by claim id. Nothing but `claim` makes a hold or a place, so a late
   renewal cannot bring back what was released.
5. A fence is greater than every fence the store gave before, also after it forgot (see the books).
6. The size of a name is that of its live rows. Nothing is left behind when the last of them ends.
7. A latch and a barrier are names too, of sizes of their own (see `model`). Who counts a latch down
   takes one of its slots for good; who waits for it takes none, and fits when all are taken. The
   parties of a barrier fit when as many as it needs are waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from lockfast.model import (
    BARRIER,
    LATCH,
    Busy,
    Claim,
    Differs,
    Gone,
    Granted,
    Holder,
    Snapshot,
    Waiter,
    Who,
)

# How long a place lives without being refreshed. The keeper refreshes four times as often.
WAITER_LEASE = 6.0
REFRESH = WAITER_LEASE / 4
# The lease of a grant that the waiter did not ask for just now. It must outlast a few refreshes,
# because the waiter's belief counts from its last one, and be short, because its process may have
# died since.
FIRST_LEASE = 5.0
# The home of a hold that is on its way from one process to another: only its lease can end it.
DETACHED = "-"


@dataclass(slots=True)
class Row:
    """A claim at the store: a place in the queue while ``fence`` is 0, a hold from then on.

    ``ends`` is on the store's clock of leases; ``since`` (of the place, then of the hold) on its
    wall clock. ``home`` tells the store whose bell to ring and whose death ends it.
    """

    id: str = field(repr=False)
    who: str
    take: int
    slots: int
    lease: float
    fair: bool
    fence: int
    since: float
    ends: float
    wake_address: str


class Book(Protocol):
    """One name's live rows, seen and changed inside one atomic step of a store."""

    now: float
    wall: float
    wake_address: str

    @property
    def holds(self) -> Mapping[str, Row]: ...

    @property
    def last_fence(self) -> int: ...

    def next_fence(self) -> int: ...

    def waiting(self, *, fair: bool) -> Iterable[Row]:
        """The places in arrival order; rows may be dropped while iterating."""

    def waiter(self, claim_id: str) -> Row | None: ...

    def add_hold(self, row: Row) -> None: ...

    def keep_hold(self, row: Row) -> None: ...

    def end_hold(self, claim_id: str) -> bool:
        """End it if it is there and alive."""

    def add_waiter(self, row: Row) -> None: ...

    def keep_waiter(self, row: Row) -> None: ...

    def remove_waiter(self, row: Row) -> None: ...

    def wake(self, row: Row, grant: Granted | None) -> None: ...


def claim(book: Book, claim: Claim) -> Granted | Busy | Differs:
    """Grant it, or stand in the queue (unless ``claim.wait`` is False)."""
    if (mine := book.holds.get(claim.id)) is not None:
        # Asked twice: the first answer was lost, or our bell. The lease starts again, as a
        # renewal's does, so that the asker's belief may count from this request.
        return _extend(book, mine, claim.lease)
    if (waiter := book.waiter(claim.id)) is not None:
        _refresh(book, waiter)
        return _serve(book, awake=waiter) or _busy(book, waiter)
    if (slots := _slots(book, claim.slots)) != claim.slots or claim.take > slots:
        return Differs(slots)
    if slots >= LATCH:
        return _gather(book, claim)
    _serve(book)  # a lease that ran out has freed slots for those who wait already
    waiter = _row(book, claim)
    if claim.take <= slots - _taken(book) and not (claim.fair and _first(book)):
        return _grant(book, waiter, claim.lease)
    if claim.wait:
        waiter.ends = book.now + WAITER_LEASE
        book.add_waiter(waiter)
    return _busy(book, waiter)


def renew(book: Book, claim: Claim) -> Granted | Busy | Gone:
    """Extend a hold, or refresh a place. What is not there is never made again."""
    if (mine := book.holds.get(claim.id)) is not None:
        return _extend(book, mine, claim.lease)
    if (waiter := book.waiter(claim.id)) is not None:
        _refresh(book, waiter)
        return _serve(book, awake=waiter) or _busy(book, waiter)
    return Gone()


def release(book: Book, claim: Claim) -> bool:
    """End the hold and serve the next. False: it was not there any more."""
    if not book.end_hold(claim.id):
        return False
    _serve(book)
    return True


def leave(book: Book, claim: Claim) -> Snapshot:
    """Give up the place, and a grant that crossed on the way; who is there, for the message."""
    crossed = book.end_hold(claim.id)
    if not crossed and (waiter := book.waiter(claim.id)) is not None:
        book.remove_waiter(waiter)
    _serve(book)
    return replace(look(book, claim.name), crossed=crossed)


def transfer(book: Book, claim: Claim, attached: bool) -> Granted | Gone:
    """Write down that a hold now belongs to another process, or for a while to none."""
    mine = book.holds.get(claim.id)
    if mine is None or (attached and mine.wake_address != DETACHED):
        return Gone()  # never there, over, or somebody was faster to take it
    mine.who, mine.wake_address = claim.who, book.wake_address if attached else DETACHED
    return _extend(book, mine, claim.lease)


def shrink(book: Book, claim: Claim) -> Granted | Gone:
    """The hold goes on with fewer slots, under its fence, as long as it had; what became free
    serves the next. A writer becomes a reader so."""
    mine = book.holds.get(claim.id)
    if mine is None:
        return Gone()
    mine.take = min(mine.take, claim.take)
    book.keep_hold(mine)
    _serve(book)
    return Granted(mine.fence, mine.ends - book.now)


def resize(book: Book, expected: int, slots: int) -> int:
    """Give a semaphore another size; the one it had, 0 if nobody holds it or waits for it. Those
    who hold more than there is now go on. What is of another size than expected stays as it is: it
    may be a lock, whose holder others would join."""
    had = _slots(book, 0)
    if had != expected:
        return had
    for row in list(book.holds.values()):
        row.slots = slots
        book.keep_hold(row)
    for fair in (True, False):
        for waiter in list(book.waiting(fair=fair)):
            if waiter.take > slots:
                # It could never be served, and nobody behind it. It asks again, and is told.
                book.remove_waiter(waiter)
                book.wake(waiter, None)
            else:
                waiter.slots = slots
                book.keep_waiter(waiter)
    _serve(book)
    return had


def break_hold(book: Book, fence: int) -> bool:
    """End the hold that has this fence, whoever owns it. The next fence is greater than any."""
    for row in book.holds.values():
        if row.fence == fence:
            book.end_hold(row.id)
            book.next_fence()
            _serve(book)
            return True
    return False


def look(book: Book, name: str) -> Snapshot:
    """Who holds the name and who waits, as operators see it. Changes nothing."""
    holders = tuple(
        Holder(Who.decoded(row.who), row.fence, row.take, row.since, row.ends - book.now)
        for row in sorted(book.holds.values(), key=lambda row: row.fence)
    )
    waiters = tuple(
        Waiter(Who.decoded(row.who), row.take, row.since, bool(row.fair))
        for fair in (True, False)
        for row in book.waiting(fair=fair)
    )
    return Snapshot(name, _slots(book, 0), holders, waiters, book.wall)


def _serve(book: Book, awake: Row | None = None) -> Granted | None:
    """Grant what is free to those at the head, in order; what ``awake`` got, who is asking now.

    Work is bounded by what is granted, not by how many wait.
    """
    free: int | None = None
    got: Granted | None = None
    for waiter in book.waiting(fair=True):
        if free is None:
            free = _free(book, waiter.slots)
        if waiter.take > free:
            break  # nobody overtakes it, or a writer would starve
        book.remove_waiter(waiter)
        free -= waiter.take
        if awake is not None and waiter.id == awake.id:
            got = _grant(book, waiter, waiter.lease)
        else:
            # At a barrier nobody waits for a hold to end, and who is late must find that it passed.
            first = waiter.lease if waiter.slots >= BARRIER else min(waiter.lease, FIRST_LEASE)
            book.wake(waiter, _grant(book, waiter, first))
    if free is None and awake is not None:
        free = awake.slots - _taken(book)
    if awake is not None and not awake.fair and free is not None and awake.take <= free:
        book.remove_waiter(awake)  # whoever asks first gets it, though others were rung before
        free -= awake.take
        got = _grant(book, awake, awake.lease)
    if free is not None and free <= 0:
        return got
    for waiter in book.waiting(fair=False):
        if free is None:
            free = waiter.slots - _taken(book)
        if waiter.take <= free:
            free -= waiter.take
            book.wake(waiter, None)
        if free <= 0:
            break
    return got


def _free(book: Book, slots: int) -> int:
    """How many slots those who wait in order may take now."""
    if slots < LATCH:
        return slots - _taken(book)
    if slots < BARRIER:
        return 0 if _is_open(book, slots) else -1  # they take none
    parties = slots - BARRIER
    arrived = sum(1 for _ in islice(book.waiting(fair=True), parties))
    return parties if arrived == parties else 0


def _is_open(book: Book, slots: int) -> bool:
    return _taken(book) >= slots - LATCH


def _gather(book: Book, claim: Claim) -> Granted | Busy:
    """A latch or a barrier: count it down, or wait for the others."""
    row = _row(book, claim)
    if claim.slots < BARRIER and claim.take:
        if _is_open(book, claim.slots):
            return Busy(REFRESH, book.last_fence)  # nothing is left to count
        row.wake_address = DETACHED  # it stays although its process may end
        counted = _grant(book, row, claim.lease)
        for other in list(book.holds.values()):
            if other.take:  # all of it is forgotten together, so long after the last
                _extend(book, other, claim.lease)
        _serve(book)
        return counted
    row.fair = True  # all are let through together
    row.ends = book.now + WAITER_LEASE
    book.add_waiter(row)
    answer = _serve(book, awake=row)
    if answer is None and not claim.wait:
        book.remove_waiter(row)
    return answer or _busy(book, row)


def _grant(book: Book, row: Row, lease: float) -> Granted:
    row.fence = book.next_fence()
    row.since = book.wall
    row.ends = book.now + lease
    book.add_hold(row)
    return Granted(row.fence, lease)


def _extend(book: Book, row: Row, lease: float) -> Granted:
    row.ends = book.now + lease
    book.keep_hold(row)
    return Granted(row.fence, lease)


def _refresh(book: Book, waiter: Row) -> None:
    waiter.ends = book.now + WAITER_LEASE
    waiter.wake_address = book.wake_address
    book.keep_waiter(waiter)


def _busy(book: Book, waiter: Row) -> Busy:
    """Ask again when a hold ends by itself, if we are the first to profit; else only to refresh."""
    retry_after = REFRESH
    first = _first(book) if waiter.fair else None
    if book.holds and (first is None or first.id == waiter.id):
        soonest = min(row.ends for row in book.holds.values()) - book.now
        retry_after = min(retry_after, max(soonest, 0.0))
    return Busy(retry_after, book.last_fence)


def _first(book: Book) -> Row | None:
    return next(iter(book.waiting(fair=True)), None)


def _slots(book: Book, otherwise: int) -> int:
    for row in book.holds.values():
        return row.slots
    for fair in (True, False):
        for row in book.waiting(fair=fair):
            return row.slots
    return otherwise


def _taken(book: Book) -> int:
    return sum(row.take for row in book.holds.values())


def _row(book: Book, claim: Claim) -> Row:
    return Row(
        claim.id,
        claim.who,
        claim.take,
        claim.slots,
        claim.lease,
        claim.fair,
        0,
        book.wall,
        0.0,
        book.wake_address,
    )
