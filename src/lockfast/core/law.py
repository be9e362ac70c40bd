"""The law of slots: which claim gets a name, in what order, and for how long.

A name has slots; a claim takes some. **A claim is granted when it fits beside the live holds and no
waiter is before it** (fair), **or as soon as it fits** (unfair). Each function here is one atomic
step at the store: it reads and writes one name through a `Book`, at one moment. The memory, SQLite
and SQL stores run this code; Lua and ZooKeeper implement the same rules and are tested against it.

The rules:

1. A hold or a waiter whose lease has expired is dead. A book never shows dead rows.
2. Waiters are queued in arrival order. A fair waiter that does not fit blocks every fair waiter
   behind it, so that small claims do not starve a large one (a writer). An unfair waiter has no
   position: it blocks nobody, and is only woken, not granted, when slots are left over.
3. A step that frees slots grants them to the next waiters in the same step, and wakes only those.
   Their first lease is short: a waiter that has died meanwhile delays the others no longer.
4. Every step is idempotent by claim id. Only `claim` creates a hold or a waiter, so that a late
   renewal cannot bring back a released hold.
5. A fence is greater than every fence that the store issued before, even if the store has lost its
   data meanwhile (see the books).
6. The size of a name is that of its live rows. Nothing is left behind when the last row ends.
7. Latches and barriers are names of sizes of their own (see `model`). A count-down takes one slot
   of a latch for good; a waiter takes none, and fits when all slots are taken. The parties of a
   barrier fit when as many are waiting as the barrier needs.
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

# How long a waiter stays queued without a refresh. The keeper refreshes four times as often.
WAITER_LEASE = 6.0
REFRESH = WAITER_LEASE / 4
# The lease of a grant to a waiter that is not asking at this moment. It must outlast a few
# refreshes, because the waiter's validity counts from its last one, and be short, because the
# waiter's process may have died since.
FIRST_LEASE = 5.0
# The wake address of a hold in transit between two processes: only its lease can end it.
DETACHED = "-"


@dataclass(slots=True)
class Row:
    """A claim at the store: a waiter in the queue while ``fence`` is 0, a hold from then on.

    ``ends`` is on the store's clock of leases; ``since`` (when it began to wait, then to hold) is
    on its wall clock. The store sends wake-ups to ``wake_address``; where a store frees the holds
    of a dead process at once, the address identifies the process.
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
        """The waiters in arrival order; rows may be removed while iterating."""

    def waiter(self, claim_id: str) -> Row | None: ...

    def add_hold(self, row: Row) -> None: ...

    def keep_hold(self, row: Row) -> None: ...

    def end_hold(self, claim_id: str) -> bool:
        """End the hold; False if there was none, or a dead one."""

    def add_waiter(self, row: Row) -> None: ...

    def keep_waiter(self, row: Row) -> None: ...

    def remove_waiter(self, row: Row) -> None: ...

    def wake(self, row: Row, grant: Granted | None) -> None: ...


def claim(book: Book, claim: Claim) -> Granted | Busy | Differs:
    """Grant the claim, or add it to the queue (unless ``claim.wait`` is False)."""
    if (mine := book.holds.get(claim.id)) is not None:
        # Asked twice: the first reply, or the wake-up, was lost. The lease starts again, as with a
        # renewal, so that the caller's validity may count from this request.
        return _extend(book, mine, claim.lease)
    if (waiter := book.waiter(claim.id)) is not None:
        _refresh(book, waiter)
        return _serve(book, awake=waiter) or _busy(book, waiter)
    if (slots := _slots(book, claim.slots)) != claim.slots or claim.take > slots:
        return Differs(slots)
    if slots >= LATCH:
        return _gather(book, claim)
    _serve(book)  # an expired lease may have freed slots, which go to the queue first
    waiter = _row(book, claim)
    if claim.take <= slots - _taken(book) and not (claim.fair and _first(book)):
        return _grant(book, waiter, claim.lease)
    if claim.wait:
        waiter.ends = book.now + WAITER_LEASE
        book.add_waiter(waiter)
    return _busy(book, waiter)


def renew(book: Book, claim: Claim) -> Granted | Busy | Gone:
    """Extend a hold, or refresh a waiter. A row that is gone is not created again."""
    if (mine := book.holds.get(claim.id)) is not None:
        return _extend(book, mine, claim.lease)
    if (waiter := book.waiter(claim.id)) is not None:
        _refresh(book, waiter)
        return _serve(book, awake=waiter) or _busy(book, waiter)
    return Gone()


def release(book: Book, claim: Claim) -> bool:
    """End the hold and serve the next waiters. False: the hold had already ended."""
    if not book.end_hold(claim.id):
        return False
    _serve(book)
    return True


def leave(book: Book, claim: Claim) -> Snapshot:
    """Remove the waiter, or a grant that crossed this request; return a snapshot."""
    crossed = book.end_hold(claim.id)
    if not crossed and (waiter := book.waiter(claim.id)) is not None:
        book.remove_waiter(waiter)
    _serve(book)
    return replace(look(book, claim.name), crossed=crossed)


def transfer(book: Book, claim: Claim, attached: bool) -> Granted | Gone:
    """Record that a hold now belongs to another process or, while detached, to none."""
    mine = book.holds.get(claim.id)
    if mine is None:
        return Gone()  # never existed, or expired
    if attached and mine.wake_address != DETACHED and mine.who != claim.who:
        return Gone()  # another process attached first; the same one asks after a lost reply
    mine.who, mine.wake_address = claim.who, book.wake_address if attached else DETACHED
    return _extend(book, mine, claim.lease)


def shrink(book: Book, claim: Claim) -> Granted | Gone:
    """Reduce a hold to fewer slots, under the same fence and lease end, and serve the next waiters
    with the freed ones. This is how a writer becomes a reader."""
    mine = book.holds.get(claim.id)
    if mine is None:
        return Gone()
    mine.take = min(mine.take, claim.take)
    book.keep_hold(mine)
    _serve(book)
    return Granted(mine.fence, mine.ends - book.now)


def resize(book: Book, expected: int, slots: int) -> int:
    """Change the size of a semaphore and return the former one: 0 if it has no holder and no
    waiter. Holders of more slots than there are now keep them. A name of another size than
    ``expected`` is left unchanged: it may be a lock, which others would then share with its
    holder."""
    had = _slots(book, 0)
    if had != expected:
        return had
    for row in list(book.holds.values()):
        row.slots = slots
        book.keep_hold(row)
    for fair in (True, False):
        for waiter in list(book.waiting(fair=fair)):
            if waiter.take > slots:
                # It could never be served. Woken, it claims again and gets `Differs`.
                book.remove_waiter(waiter)
                book.wake(waiter, None)
            else:
                waiter.slots = slots
                book.keep_waiter(waiter)
    _serve(book)
    return had


def break_hold(book: Book, fence: int) -> bool:
    """End the hold that has this fence, whoever owns it. One more fence is consumed, so that
    the next one is greater than any fence in use."""
    for row in book.holds.values():
        if row.fence == fence:
            book.end_hold(row.id)
            book.next_fence()
            _serve(book)
            return True
    return False


def look(book: Book, name: str) -> Snapshot:
    """A snapshot of the name's holders and waiters for operators. Changes nothing."""
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
    """Grant the free slots to the waiters at the head, in order. Return the grant of ``awake``, the
    waiter that is asking in this very step, if it got one.

    The work is bounded by the number of grants, not by the number of waiters.
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
            # Nobody waits for a party's hold to end, and a party that is late to ask must still
            # find that the barrier let it pass: so it gets its whole lease.
            first = waiter.lease if waiter.slots >= BARRIER else min(waiter.lease, FIRST_LEASE)
            book.wake(waiter, _grant(book, waiter, first))
    if free is None and awake is not None:
        free = awake.slots - _taken(book)
    if awake is not None and not awake.fair and free is not None and awake.take <= free:
        book.remove_waiter(awake)  # first to ask, first served, even if others were woken earlier
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
    """The number of slots that fair waiters may take now."""
    if slots < LATCH:
        return slots - _taken(book)
    if slots < BARRIER:
        return 0 if _is_open(book, slots) else -1  # waiters at a latch take no slot
    parties = slots - BARRIER
    arrived = sum(1 for _ in islice(book.waiting(fair=True), parties))
    return parties if arrived == parties else 0


def _is_open(book: Book, slots: int) -> bool:
    return _taken(book) >= slots - LATCH


def _gather(book: Book, claim: Claim) -> Granted | Busy:
    """Count a latch down, or wait at a latch or a barrier."""
    row = _row(book, claim)
    if claim.slots < BARRIER and claim.take:
        if _is_open(book, claim.slots):
            return Busy(REFRESH, book.last_fence)  # open: nothing is left to count
        row.wake_address = DETACHED  # the count outlives the process that made it
        counted = _grant(book, row, claim.lease)
        for other in list(book.holds.values()):
            if other.take:  # all counts expire together, one lease after the last of them
                _extend(book, other, claim.lease)
        _serve(book)
        return counted
    row.fair = True  # all waiters pass together, so there is nothing to overtake
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
    """Tell the waiter to ask again when the next lease expires, if it is first in line for those
    slots; else at its next refresh."""
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
