"""Planted bugs, which prove that the witness detects them. Each is one wrong line that another
library has shipped.

A test plants every bug and requires that some seed finds it. If a bug is no longer found, the
witness or the scenario has become blind to it. The bugs in this file show with plain locks;
`primitive_bugs` and `latch_bugs` have those of the other kinds, `lua_bugs` those of Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.primitive_bugs import PRIMITIVE_BUGS
from lockfast.core import claim as claims
from lockfast.core import keeper, law, ledger, locks
from lockfast.core.law import Book, Row
from lockfast.core.ports import answer_of
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Gone, Granted, Snapshot
from lockfast.stores import memory


@contextmanager
def deadline_counted_from_the_reply() -> Iterator[None]:
    """A slow reply extends the validity of the hold beyond its lease."""
    honest = locks.Core.attempt

    async def late(self: locks.Core, *args: Any) -> Any:
        held = await honest(self, *args)
        if isinstance(held, ledger.Held) and held.count == 1 and held.claim.lease > 0:
            held.extend_validity(self.runtime.now(), held.claim.lease)
        return held

    with patch.object(locks.Core, "attempt", late):
        yield


@contextmanager
def renewal_counted_from_the_reply() -> Iterator[None]:
    """The keeper extends validity from when the reply arrived, not from when it asked."""
    honest = keeper.Keeper._renewed

    def late(
        self: keeper.Keeper, held: Any, claim: Claim, sent: float, now: float, answer: Any
    ) -> str:
        return honest(self, held, claim, now, now, answer)

    with patch.object(keeper.Keeper, "_renewed", late):
        yield


@contextmanager
def release_without_owner_check() -> Iterator[None]:
    """A release ends every hold of the name, whoever holds it (celery-once)."""

    def release(book: Book, claim: Claim) -> bool:
        for claim_id in list(book.holds):
            book.end_hold(claim_id)
        law._serve(book)
        return True

    with patch.object(law, "release", release):
        yield


@contextmanager
def renewal_brings_back_a_released_hold() -> Iterator[None]:
    """A renewal sets the key again instead of extending it (Redisson: a renewal that outlived
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
    """A plain counter repeats after the store lost its data (INCR after a failover)."""

    def next_fence(self: memory.Memory, wall: float) -> int:
        self.last_fence += 1
        return self.last_fence

    with patch.object(memory.Memory, "next_fence", next_fence):
        yield


@contextmanager
def fence_from_the_clock_only() -> Iterator[None]:
    """The fence goes back when the store's wall clock does."""

    def next_fence(self: memory.Memory, wall: float) -> int:
        self.last_fence = int(wall * 1e6)
        return self.last_fence

    with patch.object(memory.Memory, "next_fence", next_fence):
        yield


@contextmanager
def nobody_is_served() -> Iterator[None]:
    """Lost wake-ups: a waiter is never served, neither by a release nor when it asks again."""
    with patch.object(law, "_serve", lambda book, awake=None: None):
        yield


@contextmanager
def dead_waiters_are_never_removed() -> Iterator[None]:
    """A crashed waiter stays in the queue for ever (Redisson's fair lock: five minutes)."""
    with patch.object(law, "WAITER_LEASE", 1e9):
        yield


@contextmanager
def late_wakeups_are_accepted() -> Iterator[None]:
    """A wake-up for a grant that has ended arrives after a later request was answered "wait"."""

    def accepted(waiting: Any, sent: float | None, grant: Granted, now: float) -> Any:
        by_wakeup = sent is None
        return waiting.last[0] if sent is None else sent, now, grant, by_wakeup

    with patch.object(claims, "_accepted_grant", accepted):
        yield


@contextmanager
def a_wakeup_starts_the_lease() -> Iterator[None]:
    """Validity counts from when the wake-up arrived, not from the last request before the grant."""
    honest = ledger.Held.extend_validity_from_wakeup

    def extend_validity(self: ledger.Held, sent: float, now: float, first_lease: float) -> None:
        honest(self, now, now, first_lease)

    with patch.object(ledger.Held, "extend_validity_from_wakeup", extend_validity):
        yield


@contextmanager
def leaving_ignores_a_grant_that_crossed() -> Iterator[None]:
    """A waiter that withdraws just when it is served leaves a hold that no client knows. The hold
    lives for an hour here, so that its lease does not end it within the run."""

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
def cancelled_waiters_stay_in_the_queue() -> Iterator[None]:
    """Cancellation sends nothing: the waiter, or the hold, stays until its lease ends."""

    async def quiet(*args: object) -> None:
        return None

    patches = (
        patch.object(locks.Core, "withdraw", quiet),
        patch.object(keeper.Keeper, "keep_withdrawing", lambda *args: None),
    )
    with patches[0], patches[1]:
        yield


@contextmanager
def a_late_renewal_revives_a_lost_hold() -> Iterator[None]:
    """A renewal that succeeds after our own deadline makes the hold valid again."""

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
def the_deadline_is_never_checked() -> Iterator[None]:
    """Failed renewals are tolerated for ever: the hold stays valid beyond its lease."""
    honest = ledger.Held.extend_validity

    def extend_validity(self: ledger.Held, sent: float, lease: float) -> None:
        honest(self, sent, lease)
        self.deadline += 3600.0

    with patch.object(ledger.Held, "extend_validity", extend_validity):
        yield


@contextmanager
def more_holders_than_slots() -> Iterator[None]:
    """n + 1 holders of n slots."""
    honest = law._taken
    with patch.object(law, "_taken", lambda book: max(honest(book) - 1, 0)):
        yield


@contextmanager
def newcomers_overtake() -> Iterator[None]:
    """A free slot goes to a new claim, although others wait."""
    with patch.object(law, "_first", lambda book: None):
        yield


@contextmanager
def leases_never_end_at_the_store() -> Iterator[None]:
    """The hold of a crashed process never ends (sherlock's expire=None, the other way round)."""
    honest = law._grant

    def grant(book: Book, row: Row, lease: float) -> Granted:
        answer = honest(book, row, lease)
        row.ends = book.now + 1e9
        return answer

    with patch.object(law, "_grant", grant):
        yield


@contextmanager
def a_loss_is_reported_twice() -> Iterator[None]:
    """The callbacks of a lost hold are called twice, at every check of it."""

    def lose(self: ledger.Ledger, held: ledger.Held, cause: str) -> None:
        if held.state is ledger.State.HELD:
            self.end(held, ledger.State.LOST, self.runtime.now(), cause)
        for callback in held.callbacks or []:
            callback()
            callback()

    with patch.object(ledger.Ledger, "lose", lose):
        yield


@contextmanager
def the_keeper_stops_at_the_first_error() -> Iterator[None]:
    """The keeper is never started again (python-redis-lock, Redisson #2515)."""

    async def renew(self: keeper.Keeper, work: list[Any]) -> None:
        sent = self.runtime.now()
        try:
            claims = [entry.claim for entry in work]
            answers: Any = await answer_of(self.store.renew(claims, [0] * len(claims), 1.0))
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
        renewal_brings_back_a_released_hold,
        fence_without_a_floor,
        fence_from_the_clock_only,
        nobody_is_served,
        dead_waiters_are_never_removed,
        late_wakeups_are_accepted,
        a_wakeup_starts_the_lease,
        cancelled_waiters_stay_in_the_queue,
        leaving_ignores_a_grant_that_crossed,
        a_late_renewal_revives_a_lost_hold,
        the_deadline_is_never_checked,
        more_holders_than_slots,
        newcomers_overtake,
        leases_never_end_at_the_store,
        a_loss_is_reported_twice,
        the_keeper_stops_at_the_first_error,
    )
} | PRIMITIVE_BUGS
