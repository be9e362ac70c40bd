"""Planted bugs, to prove that the witness can see: each is one wrong line that others have shipped.

A test runs every one of them and demands that some seed finds it. If one is no longer found, it is
the witness or the scenario that has gone blind, not the bug that has gone away. Those that are
written here are shown by plain locks; `primitive_bugs` and `gate_bugs` have those of everything
else, and `lua_bugs` those of Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.primitive_bugs import PRIMITIVE_BUGS
from lockfast.core import acquire, keeper, law, ledger, locks
from lockfast.core.law import Book, Row
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Gone, Granted, Snapshot
from lockfast.stores import memory


@contextmanager
def deadline_counted_from_the_reply() -> Iterator[None]:
    """A slow reply then lengthens belief beyond the lease."""
    honest = locks.Core.attempt

    async def late(self: locks.Core, *said: Any) -> Any:
        held = await honest(self, *said)
        if isinstance(held, ledger.Held) and held.count == 1 and held.claim.lease > 0:
            held.extend_validity(self.runtime.now(), held.claim.lease)
        return held

    with patch.object(locks.Core, "attempt", late):
        yield


@contextmanager
def renewal_counted_from_the_reply() -> Iterator[None]:
    """The same in the keeper."""
    honest = keeper.Keeper._renewed

    def late(
        self: keeper.Keeper, held: Any, claim: Claim, sent: float, now: float, answer: Any
    ) -> str:
        return honest(self, held, claim, now, now, answer)

    with patch.object(keeper.Keeper, "_renewed", late):
        yield


@contextmanager
def release_without_owner_check() -> Iterator[None]:
    """Whoever releases frees whatever is held (celery-once)."""

    def release(book: Book, claim: Claim) -> bool:
        for claim_id in list(book.holds):
            book.end_hold(claim_id)
        law._serve(book)
        return True

    with patch.object(law, "release", release):
        yield


@contextmanager
def renewal_brings_back_what_was_released() -> Iterator[None]:
    """A renewal that sets the key again instead of extending it (Redisson's that outlived
    unlock)."""
    honest = law.renew

    def renew(book: Book, claim: Claim) -> Granted | Busy | Gone:
        answer = honest(book, claim)
        if isinstance(answer, Gone):
            return law._grant(book, law._row(book, claim), claim.lease)
        return answer

    with patch.object(law, "renew", renew):
        yield


@contextmanager
def fence_without_a_floor() -> Iterator[None]:
    """A plain counter: it repeats after a store that forgot (INCR after a failover)."""

    def next_fence(self: memory.MemoryStore, wall: float) -> int:
        self.last_fence += 1
        return self.last_fence

    with patch.object(memory.MemoryStore, "next_fence", next_fence):
        yield


@contextmanager
def fence_from_the_clock_alone() -> Iterator[None]:
    """It goes back when the store's wall clock does."""

    def next_fence(self: memory.MemoryStore, wall: float) -> int:
        self.last_fence = int(wall * 1e6)
        return self.last_fence

    with patch.object(memory.MemoryStore, "next_fence", next_fence):
        yield


@contextmanager
def release_serves_nobody_and_places_are_not_served() -> Iterator[None]:
    """The lost wake-up: who waits is never told, neither by a bell nor by asking again."""
    with patch.object(law, "_serve", lambda book, awake=None: None):
        yield


@contextmanager
def dead_waiters_are_never_buried() -> Iterator[None]:
    """The place of a crashed waiter stands for ever (Redisson's fair lock: five minutes)."""
    with patch.object(law, "WAITER_LEASE", 1e9):
        yield


@contextmanager
def late_bells_are_believed() -> Iterator[None]:
    """A bell of a grant that is over, heard after we asked again and were told to wait."""

    def believed(waiting: Any, sent: float | None, grant: Granted, now: float) -> Any:
        by_wakeup = sent is None
        return waiting.last[0] if sent is None else sent, now, grant, by_wakeup

    with patch.object(acquire, "_accepted_grant", believed):
        yield


@contextmanager
def bells_start_the_lease() -> Iterator[None]:
    """Belief counted from when the bell was heard, not from the last request before the grant."""
    honest = ledger.Held.extend_validity_from_wakeup

    def extend_validity(self: ledger.Held, sent: float, now: float, first_lease: float) -> None:
        honest(self, now, now, first_lease)

    with patch.object(ledger.Held, "extend_validity_from_wakeup", extend_validity):
        yield


@contextmanager
def leaving_forgets_a_grant_that_crossed() -> Iterator[None]:
    """A waiter that gives up just when it is served leaves a hold that nobody knows of: until its
    lease ends, which a keeper of nobody never lets happen here."""

    def leave(book: Book, claim: Claim) -> Snapshot:
        mine = book.holds.get(claim.id)
        if mine is not None:
            mine.ends = book.now + 3600.0
        elif (waiter := book.waiter(claim.id)) is not None:
            book.remove_waiter(waiter)
        law._serve(book)
        return law.look(book, claim.name)

    with patch.object(law, "leave", leave):
        yield


@contextmanager
def cancelled_waiters_stay() -> Iterator[None]:
    """Nothing is sent on cancellation: the place, or the lock, stays until its time is over."""

    async def quiet(*said: object) -> None:
        return None

    with patch.object(acquire, "leave", quiet), patch.object(locks, "leave", quiet):
        yield


@contextmanager
def a_late_answer_revives_the_dead() -> Iterator[None]:
    """A renewal's "ok" after our own deadline is believed."""

    def renewed(
        self: keeper.Keeper, held: Any, claim: Claim, sent: float, now: float, answer: Any
    ) -> str:
        if isinstance(answer, Granted):
            held.state = ledger.State.HELD
            self._ledger.kept[held.claim.id] = held
            held.extend_validity(sent, claim.lease)
            return ""
        return "gone"

    with patch.object(keeper.Keeper, "_renewed", renewed):
        yield


@contextmanager
def the_deadline_is_never_looked_at() -> Iterator[None]:
    """Errors in renewal are tolerated for ever: belief without a lease."""
    honest = ledger.Held.extend_validity

    def extend_validity(self: ledger.Held, sent: float, lease: float) -> None:
        honest(self, sent, lease)
        self.deadline += 3600.0

    with patch.object(ledger.Held, "extend_validity", extend_validity):
        yield


@contextmanager
def one_more_than_there_are() -> Iterator[None]:
    """n + 1 of n."""
    honest = law._taken
    with patch.object(law, "_taken", lambda book: max(honest(book) - 1, 0)):
        yield


@contextmanager
def newcomers_overtake() -> Iterator[None]:
    """A free slot goes to whoever asks, although others wait."""
    with patch.object(law, "_first", lambda book: None):
        yield


@contextmanager
def leases_never_end_at_the_store() -> Iterator[None]:
    """A crashed holder holds for ever (sherlock's expire=None, the other way round)."""
    honest = law._grant

    def grant(book: Book, row: Row, lease: float) -> Granted:
        answer = honest(book, row, lease)
        row.ends = book.now + 1e9
        return answer

    with patch.object(law, "_grant", grant):
        yield


@contextmanager
def losses_are_told_again() -> Iterator[None]:
    """Each look at a lost hold tells of it once more."""

    def lose(self: ledger.Ledger, held: ledger.Held, cause: str) -> None:
        if held.state is ledger.State.HELD:
            self.end(held, ledger.State.LOST, self.runtime.now(), cause)
        for callback in held.callbacks or []:
            callback()
            callback()

    with patch.object(ledger.Ledger, "lose", lose):
        yield


@contextmanager
def the_keeper_dies_at_the_first_error() -> Iterator[None]:
    """And is never started again (python-redis-lock, Redisson #2515)."""

    async def renew(self: keeper.Keeper, work: list[Any]) -> None:
        sent = self.runtime.now()
        try:
            claims = [entry.claim for entry in work]
            answers: Any = await self.backend.renew(claims, [0] * len(claims), 1.0)
        except BackendError:
            self._stopped = True
            return
        for entry, answer in zip(work, answers, strict=True):
            if answer is None:
                continue
            if isinstance(entry, ledger.Held):
                self._renewed(entry, entry.claim, sent, sent, answer)
            else:
                self._refreshed(entry, sent, sent, answer)

    with patch.object(keeper.Keeper, "_renew", renew):
        yield


BUGS: dict[str, Bug] = {
    plant.__name__: Bug(plant)
    for plant in (
        deadline_counted_from_the_reply,
        renewal_counted_from_the_reply,
        release_without_owner_check,
        renewal_brings_back_what_was_released,
        fence_without_a_floor,
        fence_from_the_clock_alone,
        release_serves_nobody_and_places_are_not_served,
        dead_waiters_are_never_buried,
        late_bells_are_believed,
        bells_start_the_lease,
        cancelled_waiters_stay,
        leaving_forgets_a_grant_that_crossed,
        a_late_answer_revives_the_dead,
        the_deadline_is_never_looked_at,
        one_more_than_there_are,
        newcomers_overtake,
        leases_never_end_at_the_store,
        losses_are_told_again,
        the_keeper_dies_at_the_first_error,
    )
} | PRIMITIVE_BUGS
