"""Planted bugs in read-write locks, semaphores, multi-locks and elections: one wrong line each, in
the core or in the law; see `bugs`. Those of latches and barriers are in `gate_bugs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.latch_bugs import GATE_BUGS
from lockfast.core import law, ledger, locks, multi
from lockfast.core.law import Book, Row
from lockfast.model import ALL_SLOTS, Busy, Claim, Differs, Gone, Granted

# ---- read-write locks ----------------------------------------------------------------------------


@contextmanager
def readers_are_let_in_beside_a_writer() -> Iterator[None]:
    """A writer takes all slots but one."""
    honest = law._taken
    with patch.object(law, "_taken", lambda book: min(honest(book), ALL_SLOTS - 1)):
        yield


@contextmanager
def a_writer_is_let_in_beside_readers() -> Iterator[None]:
    """Only another writer keeps a writer out."""

    def taken(book: Book) -> int:
        rows = book.holds.values()
        return sum(row.take for row in rows if row.take == ALL_SLOTS or row.slots != ALL_SLOTS)

    with patch.object(law, "_taken", taken):
        yield


@contextmanager
def readers_overtake_a_writer_that_waits() -> Iterator[None]:
    """As long as readers come, it starves (Redisson)."""
    honest = law._first

    def first(book: Book) -> Row | None:
        row = honest(book)
        return None if row is not None and row.take == ALL_SLOTS else row

    with patch.object(law, "_first", first):
        yield


@contextmanager
def a_reader_may_write() -> Iterator[None]:
    """It is taken for a re-entry: nobody looks at what is held already."""
    honest = locks.Core._reenter
    with patch.object(locks.Core, "_reenter", lambda self, mine, take: honest(self, mine, 1)):
        yield


@contextmanager
def a_downgrade_frees_nothing() -> Iterator[None]:
    """The store says yes, and goes on keeping readers out."""

    def shrink(book: Book, claim: Claim) -> Granted | Gone:
        mine = book.holds.get(claim.id)
        return Gone() if mine is None else Granted(mine.fence, mine.ends - book.now)

    with patch.object(law, "shrink", shrink):
        yield


@contextmanager
def a_downgrade_drops_the_hold() -> Iterator[None]:
    """The writer's hold is ended, and the reader's never made."""

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
    """One lease for all who hold the name: the dead live as long as anybody."""
    honest = law._extend

    def extend(book: Book, row: Row, lease: float) -> Granted:
        for other in book.holds.values():
            other.ends = max(other.ends, book.now + lease)
        return honest(book, row, lease)

    with patch.object(law, "_extend", extend):
        yield


# ---- semaphores ----------------------------------------------------------------------------------


@contextmanager
def a_resize_forgets_those_who_wait() -> Iterator[None]:
    """They are served by the size that it had."""
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
def a_resize_is_not_done() -> Iterator[None]:
    """And nobody is told."""
    with patch.object(law, "resize", lambda book, expected, slots: law._slots(book, 0)):
        yield


@contextmanager
def newcomers_bring_their_own_size() -> Iterator[None]:
    """Who has not heard of a smaller size is let in by the old one."""
    honest = law.claim

    def claim(book: Book, claim: Claim) -> Granted | Busy | Differs:
        with patch.object(law, "_slots", lambda book, otherwise: otherwise):
            return honest(book, claim)

    with patch.object(law, "claim", claim):
        yield


# ---- multi-locks ---------------------------------------------------------------------------------


@contextmanager
def a_multi_lock_is_not_sorted() -> Iterator[None]:
    """Everybody takes the names in the order given: two wait for each other for ever."""

    def as_given(parts: Iterable[tuple[str, multi.Part]]) -> list[multi.Part]:
        return [part for _, part in parts]

    with patch.object(multi, "in_order", as_given):
        yield


@contextmanager
def a_refused_multi_lock_keeps_what_it_had() -> Iterator[None]:
    """The first names stay locked when the last is not got in time."""

    async def nothing(several: Iterable[object]) -> list[object]:
        return []

    with patch.object(multi, "release_all", nothing):
        yield


@contextmanager
def a_cancelled_multi_lock_leaves_its_claims() -> Iterator[None]:
    """What was asked for in the request that was cancelled is left to whoever finds it."""

    async def nothing(core: locks.Core, claims: Sequence[Claim]) -> None:
        return None

    with patch.object(multi, "_leave_all", nothing):
        yield


@contextmanager
def a_multi_lock_is_granted_with_one_missing() -> Iterator[None]:
    """The last one that was waited for is not looked at."""
    honest = multi.attempt_all

    async def attempt_all(parts: Sequence[multi.Part], timeout: float | None) -> Any:
        return await honest(parts[:-1] or parts, timeout)

    with patch.object(multi, "attempt_all", attempt_all):
        yield


# ---- elections -----------------------------------------------------------------------------------


@contextmanager
def a_leader_that_returns_has_its_old_term() -> Iterator[None]:
    """Whoever led before leads again under the number that it remembers."""
    honest = locks.Core.enter
    terms: dict[tuple[int, str], int] = {}

    def enter(self: locks.Core, *said: Any) -> ledger.Held:
        held = honest(self, *said)
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
            a_downgrade_drops_the_hold,
            a_renewal_keeps_the_others_alive,
        ),
        "semaphore": (
            a_resize_forgets_those_who_wait,
            a_resize_is_not_done,
            newcomers_bring_their_own_size,
        ),
        "multi": (
            a_multi_lock_is_not_sorted,
            a_refused_multi_lock_keeps_what_it_had,
            a_cancelled_multi_lock_leaves_its_claims,
            a_multi_lock_is_granted_with_one_missing,
        ),
        "election": (a_leader_that_returns_has_its_old_term,),
    }.items()
    for plant in plants
} | GATE_BUGS
