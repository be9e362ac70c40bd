"""Planted bugs in latches and barriers: one wrong line each, in the core or the law; see `bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lockfast.core import law, locks, primitives
from lockfast.core.law import Book, Row
from lockfast.core.terms import Terms
from lockfast.errors import BackendError
from lockfast.model import BARRIER, LATCH, Busy, Claim, Differs, Granted, Snapshot


@contextmanager
def a_repeated_count_down_counts_twice() -> Iterator[None]:
    """A count-down repeated with the same id, after a lost reply, counts again."""
    honest = law.claim

    def claim(book: Book, claim: Claim) -> Granted | Busy | Differs:
        mine = book.holds.get(claim.id)
        if mine is not None and LATCH <= claim.slots < BARRIER and mine.take:
            mine.take += 1
            law._serve(book)
        return honest(book, claim)

    with patch.object(law, "claim", claim):
        yield


@contextmanager
def a_count_down_asks_again_under_a_new_id() -> Iterator[None]:
    """A count-down repeated after a lost reply has a new id, so that it counts again."""
    honest = locks.Core.claim_until_known

    async def ask(
        self: locks.Core,
        claims: Sequence[Claim],
        until: float,
        since: float,
        waiting: bool = False,
    ) -> Any:
        if claims[0].slots < LATCH or claims[0].wait:
            return await honest(self, claims, until, since, waiting)
        try:
            return await honest(self, claims, since + (until - since) / 10, since)
        except BackendError:
            again = [claim._replace(id=claim.id + "'") for claim in claims]
            return await honest(self, again, until, self.runtime.now())

    with patch.object(locks.Core, "claim_until_known", ask):
        yield


@contextmanager
def a_latch_opens_one_too_early() -> Iterator[None]:
    """A latch of n opens after n − 1 count-downs."""
    with patch.object(law, "_is_open", lambda book, slots: law._taken(book) >= slots - LATCH - 1):
        yield


@contextmanager
def an_untouched_latch_is_open() -> Iterator[None]:
    """A latch without any count-down counts as open (Redisson)."""
    honest = law._is_open
    with patch.object(law, "_is_open", lambda book, n: not book.holds or honest(book, n)):
        yield


@contextmanager
def a_count_down_expires() -> Iterator[None]:
    """A count-down has the lease of a first grant, and nobody renews it."""
    honest = law._gather

    def gather(book: Book, claim: Claim) -> Granted | Busy:
        return honest(book, claim._replace(lease=min(claim.lease, law.FIRST_LEASE)))

    with patch.object(law, "_gather", gather):
        yield


@contextmanager
def an_open_latch_skips_its_waiters() -> Iterator[None]:
    """Waiters of the latch are not served, neither by the last count-down nor when they ask again;
    new callers pass."""
    honest = law._serve

    def serve(book: Book, awake: Row | None = None) -> Granted | None:
        first = law._first(book)
        if first is not None and LATCH <= first.slots < BARRIER and awake is None:
            return None
        return honest(book, awake)

    honest_renew, honest_claim = law.renew, law.claim

    def waits(book: Book, claim: Claim) -> bool:
        return LATCH <= claim.slots < BARRIER and book.waiter(claim.id) is not None

    def renew(book: Book, claim: Claim) -> Any:
        waiter = book.waiter(claim.id)
        if waiter is not None and waits(book, claim):
            law._refresh(book, waiter)
            return law._busy(book, waiter)
        return honest_renew(book, claim)

    def ask(book: Book, claim: Claim) -> Any:
        return renew(book, claim) if waits(book, claim) else honest_claim(book, claim)

    with (
        patch.object(law, "_serve", serve),
        patch.object(law, "renew", renew),
        patch.object(law, "claim", ask),
    ):
        yield


def _barrier_lets_go(when_missing: int, left_behind: int) -> Callable[[Book, int], int]:
    honest = law._free

    def free(book: Book, slots: int) -> int:
        if slots < BARRIER:
            return honest(book, slots)
        arrived = sum(1 for _ in book.waiting(fair=True))
        return max(arrived - left_behind, 0) if arrived >= slots - BARRIER - when_missing else 0

    return free


@contextmanager
def a_barrier_lets_go_with_one_missing() -> Iterator[None]:
    """The barrier does not wait for the last party."""
    with patch.object(law, "_free", _barrier_lets_go(1, 0)):
        yield


@contextmanager
def a_barrier_leaves_one_behind() -> Iterator[None]:
    """All parties came, and the last one is not let through."""
    with patch.object(law, "_free", _barrier_lets_go(0, 1)):
        yield


@contextmanager
def an_unanswered_count_down_is_taken_for_done() -> Iterator[None]:
    """The client does not repeat a count-down without a reply, which may never have arrived."""
    honest = primitives.count_down

    async def count_down(core: locks.Core, terms: Terms) -> bool:
        try:
            return await honest(core, terms)
        except BackendError:
            return True

    with patch.object(primitives, "count_down", count_down):
        yield


@contextmanager
def a_barrier_counts_parties_that_left() -> Iterator[None]:
    """A party that timed out stays in the queue and counts as arrived."""
    honest = law.leave

    def leave(book: Book, claim: Claim) -> Snapshot:
        return law.look(book, claim.name) if claim.slots >= BARRIER else honest(book, claim)

    with patch.object(law, "leave", leave):
        yield


@contextmanager
def a_timed_out_party_passes_the_barrier() -> Iterator[None]:
    """The result of the wait is ignored."""
    honest = primitives.pass_through

    async def pass_through(core: locks.Core, terms: Terms, timeout: float | None) -> bool:
        await honest(core, terms, timeout)
        return True

    with patch.object(primitives, "pass_through", pass_through):
        yield


LATCH_BUGS: dict[str, Bug] = {
    plant.__name__: Bug(plant, kind)
    for kind, plants in {
        "latch": (
            a_repeated_count_down_counts_twice,
            a_count_down_asks_again_under_a_new_id,
            an_unanswered_count_down_is_taken_for_done,
            a_latch_opens_one_too_early,
            an_untouched_latch_is_open,
            a_count_down_expires,
            an_open_latch_skips_its_waiters,
        ),
        "barrier": (
            a_barrier_lets_go_with_one_missing,
            a_barrier_leaves_one_behind,
            a_barrier_counts_parties_that_left,
            a_timed_out_party_passes_the_barrier,
        ),
    }.items()
    for plant in plants
}
