"""Planted bugs in read-write locks, semaphores, multi-locks and elections: one wrong line each, in
the core or in the law; see `bugs`. Those of latches and barriers are in `latch_bugs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.latch_bugs import LATCH_BUGS
from lockfast.core import law, ledger, locks, multi
from lockfast.core.law import Book, Row
from lockfast.model import ALL_SLOTS, Busy, Claim, Differs, Gone, Granted

# ---- read-write locks ----------------------------------------------------------------------------


@contextmanager
def readers_are_let_in_beside_a_writer() -> Iterator[None]:
    """A writer leaves one slot to readers."""
    honest = law._taken
    with patch.object(law, "_taken", lambda book: min(honest(book), ALL_SLOTS - 1)):
        yield


@contextmanager
def a_writer_is_let_in_beside_readers() -> Iterator[None]:
    """Readers do not keep a writer out."""

    def taken(book: Book) -> int:
        rows = book.holds.values()
        return sum(row.take for row in rows if row.take == ALL_SLOTS or row.slots != ALL_SLOTS)

    with patch.object(law, "_taken", taken):
        yield


@contextmanager
def readers_overtake_a_writer_that_waits() -> Iterator[None]:
    """The writer starves as long as new readers come (Redisson)."""
    honest = law._first

    def first(book: Book) -> Row | None:
        row = honest(book)
        return None if row is not None and row.take == ALL_SLOTS else row

    with patch.object(law, "_first", first):
        yield


@contextmanager
def a_reader_may_write() -> Iterator[None]:
    """A reader's request to write counts as a re-entry, whatever it holds already."""
    honest = locks.Core._reenter
    with patch.object(locks.Core, "_reenter", lambda self, mine, take: honest(self, mine, 1)):
        yield


@contextmanager
def a_downgrade_frees_nothing() -> Iterator[None]:
    """The store reports a downgrade, and still keeps readers out."""

    def shrink(book: Book, claim: Claim) -> Granted | Gone:
        mine = book.holds.get(claim.id)
        return Gone() if mine is None else Granted(mine.fence, mine.ends - book.now)

    with patch.object(law, "shrink", shrink):
        yield


@contextmanager
def a_downgrade_loses_the_hold() -> Iterator[None]:
    """The writer's hold ends, and the reader's is never created."""

    def shrink(book: Book, claim: Claim) -> Granted | Gone:
        mine = book.holds.get(claim.id)
        if mine is None:
            return Gone()
        law.release(book, claim)
        return Granted(mine.fence, claim.lease)

    with patch.object(law, "shrink", shrink):
        yield


@contextmanager
def a_renewal_keeps_the_others_alive() -> Iterator[None]:
    """All holders share one lease: a crashed one lives as long as any other renews."""
    honest = law._extend

    def extend(book: Book, row: Row, lease: float) -> Granted:
        for other in book.holds.values():
            other.ends = max(other.ends, book.now + lease)
        return honest(book, row, lease)

    with patch.object(law, "_extend", extend):
        yield


# ---- semaphores ----------------------------------------------------------------------------------


@contextmanager
def a_resize_skips_the_waiters() -> Iterator[None]:
    """Waiters are served by the previous size."""
    honest = law.resize

    def resize(book: Book, expected: int, slots: int) -> int:
        waiters = [row for fair in (True, False) for row in book.waiting(fair=fair)]
        sizes = [row.slots for row in waiters]
        had = honest(book, expected, slots)
        for row, size in zip(waiters, sizes, strict=True):
            row.slots = size
        return had

    with patch.object(law, "resize", resize):
        yield


@contextmanager
def a_resize_is_ignored() -> Iterator[None]:
    """The store reports a resize, and changes nothing."""
    with patch.object(law, "resize", lambda book, expected, slots: law._slots(book, 0)):
        yield


@contextmanager
def new_claims_bring_their_own_size() -> Iterator[None]:
    """A client that does not know the smaller size is let in by the old one."""
    honest = law.claim

    def claim(book: Book, claim: Claim) -> Granted | Busy | Differs:
        with patch.object(law, "_slots", lambda book, otherwise: otherwise):
            return honest(book, claim)

    with patch.object(law, "claim", claim):
        yield


# ---- multi-locks ---------------------------------------------------------------------------------


@contextmanager
def multi_locks_are_not_sorted() -> Iterator[None]:
    """Each caller takes the names in its own order: two of them wait for each other for ever."""

    def unsorted(parts: Iterable[tuple[str, multi.Part]]) -> list[multi.Part]:
        return [part for _, part in parts]

    with patch.object(multi, "in_order", unsorted):
        yield


@contextmanager
def a_refused_multi_lock_keeps_its_holds() -> Iterator[None]:
    """The first names stay locked when the last one times out."""

    async def nothing(holds: Iterable[object]) -> list[object]:
        return []

    with patch.object(multi, "release_all", nothing):
        yield


@contextmanager
def a_cancelled_multi_lock_leaves_its_claims() -> Iterator[None]:
    """The claims of a cancelled request are not withdrawn."""

    async def nothing(core: locks.Core, claims: Sequence[Claim], limit: float) -> None:
        return None

    with patch.object(multi, "_leave_all", nothing):
        yield


@contextmanager
def a_multi_lock_is_granted_with_one_missing() -> Iterator[None]:
    """The last name is never asked for."""
    honest = multi.attempt_all

    async def attempt_all(parts: Sequence[multi.Part], timeout: float | None) -> Any:
        return await honest(parts[:-1] or parts, timeout)

    with patch.object(multi, "attempt_all", attempt_all):
        yield


# ---- elections -----------------------------------------------------------------------------------


@contextmanager
def a_returning_leader_keeps_its_old_term() -> Iterator[None]:
    """A client that led before leads again under the term it remembers."""
    honest = locks.Core.enter
    terms: dict[tuple[int, str], int] = {}

    def enter(self: locks.Core, *args: Any) -> ledger.Held:
        held = honest(self, *args)
        held.fence = terms.setdefault((id(self.ledger), held.claim.name), held.fence)
        return held

    with patch.object(locks.Core, "enter", enter):
        yield


PRIMITIVE_BUGS: dict[str, Bug] = {
    plant.__name__: Bug(plant, kind)
    for kind, plants in {
        "readwrite": (
            readers_are_let_in_beside_a_writer,
            a_writer_is_let_in_beside_readers,
            readers_overtake_a_writer_that_waits,
            a_reader_may_write,
            a_downgrade_frees_nothing,
            a_downgrade_loses_the_hold,
            a_renewal_keeps_the_others_alive,
        ),
        "semaphore": (
            a_resize_skips_the_waiters,
            a_resize_is_ignored,
            new_claims_bring_their_own_size,
        ),
        "multi": (
            multi_locks_are_not_sorted,
            a_refused_multi_lock_keeps_its_holds,
            a_cancelled_multi_lock_leaves_its_claims,
            a_multi_lock_is_granted_with_one_missing,
        ),
        "election": (a_returning_leader_keeps_its_old_term,),
    }.items()
    for plant in plants
} | LATCH_BUGS
