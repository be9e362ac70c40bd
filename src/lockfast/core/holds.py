"""What can be done with a hold: release it, renew it, let go of it for another."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from lockfast.core.acquire import ATTEMPTS, RETRY_PAUSE, first_budget
from lockfast.core.keeper import MAX_BUDGET, Keeper, budget_for
from lockfast.core.ledger import DETACHED, HELD, LOST, RELEASED, Held, shown
from lockfast.core.ports import Backend
from lockfast.core.validity import Validity
from lockfast.errors import BackendError, LockfastError, NotHeld
from lockfast.model import ALL_SLOTS, Claim, Gone, Granted

T = TypeVar("T")
log = logging.getLogger("lockfast")
MANY = 100  # in one request: more would keep a store from others for too long


class Holding(Validity):
    """The half of a client that begins when something is held."""

    backend: Backend
    keeper: Keeper
    _claim_now: Callable[[Claim, float], Any] | None
    _claim_soon: Callable[[Claim, float], Any] | None

    # ---- release, renew, hand over ---------------------------------------------------------

    async def release(self, held: Held, take: int = 1) -> None:
        """One step out; the last one gives it back. Lost is `HoldLost`, too many is `NotHeld`.
        ``take`` is what the entry had asked for: a writer's last one, if the same owner also reads,
        leaves it a reader."""
        now = self.runtime.now()
        if held.state is HELD and now >= held.deadline:
            self.settle(held)
        if held.state is LOST and held.count > 0:
            await self._unwind_lost(held)
        # If it is unknown, this is a retry, after an error that said so.
        if held.unknown or self._step_out(held, now, take):
            await (self.give_back(held) if held.told is None else self._give_back(held))
        elif held.claim.take == ALL_SLOTS and not held.writes:
            await self._become_reader(held)

    async def _give_back(self, held: Held, answer: bool | BaseException | None = None) -> None:
        """The same, and those who listen are told, after the store: the next one waits for that."""
        try:
            await self.give_back(held, answer)
        finally:
            self.ledger.emit_end(held)

    def release_now(self, held: Held, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """The common case without a coroutine, as `attempt_now`; else what to run instead."""
        now = self.runtime.now()
        if self._claim_now is None or not _is_common(held, now):
            return self.release(held, take)
        if not self._step_out(held, now, take):
            return None
        try:
            claim = held.claim
            known: bool | None = self.backend.release_now(claim, first_budget(claim[3]))  # type: ignore[attr-defined]
        except BaseException as error:
            return self._give_back(held, error)
        if not known:
            return self._give_back(held, known)
        if held.told is not None:
            self.ledger.emit_end(held)
        return None

    def release_soon(self, held: Held, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """The common case with one coroutine instead of three; else what to await instead."""
        now = self.runtime.now()
        if self._claim_soon is None or not _is_common(held, now):
            return self.release(held, take)
        return self._give_back_soon(held) if self._step_out(held, now, take) else None

    async def _give_back_soon(self, held: Held) -> None:
        answer: bool | BaseException | None = None
        try:
            claim = held.claim
            asked = self.backend.release_soon(claim, first_budget(claim[3]))  # type: ignore[attr-defined]
            if asked is not None:
                answer = self.backend.release_said(await asked)  # type: ignore[attr-defined]
        except GeneratorExit:
            raise
        except BaseException as error:
            answer = error
        if answer is not True:
            await self._give_back(held, answer)
        elif held.told is not None:
            self.ledger.emit_end(held)

    async def release_batch(self, several: Sequence[tuple[Held, int]]) -> list[LockfastError]:
        """One step out of each, as `release` does, in as few requests as the store can; what went
        wrong with any. Cancelled or interrupted, all of them are given back nevertheless."""
        errors: list[LockfastError] = []
        last: list[Held] = []
        reads_on: list[Held] = []
        late: list[Claim] = []
        now = self.runtime.now()
        for held, take in several:
            try:
                if now >= held.deadline:
                    self.settle(held)
                if held.state is LOST and held.count > 0:
                    errors.append(held.loss())
                    if self._step_out_of_loss(held):
                        late.append(held.claim)
                elif held.unknown or self._step_out(held, now, take):
                    last.append(held)
                elif held.claim.take == ALL_SLOTS and not held.writes:
                    reads_on.append(held)
            except LockfastError as error:
                errors.append(error)
        try:
            for start in range(0, len(last), MANY):
                errors += await self._give_back_many(last[start : start + MANY])
            await self._release_again_many(late)
            for held in reads_on:
                try:
                    await self._become_reader(held)
                except LockfastError as error:
                    errors.append(error)
        except GeneratorExit:
            raise
        except BaseException:
            ending = [*(held.claim for held in last), *late]
            await self.runtime.shielded(self._release_again_many(ending), MAX_BUDGET)
            raise
        finally:
            for held in last:
                self.ledger.emit_end(held)
        return errors

    async def _give_back_many(self, several: Sequence[Held]) -> list[LockfastError]:
        """Tell the store. Those it did not answer for are asked for one by one, until one more is
        not answered: then it is away, and the leases do the rest."""
        claims = [held.claim for held in several]
        answers: Sequence[bool | None]
        errors: list[LockfastError] = []
        away: BackendError | None = None
        try:
            answers = await self.backend.release_batch(claims, _budget_for(claims))
        except BackendError as error:
            answers = [None] * len(claims)
            away = None if error.transient else error
            for held in several:
                held.unknown = True
        for held, known in zip(several, answers, strict=True):
            if known:
                held.unknown = False
                continue
            try:
                if away is not None:
                    raise self._release_unknown(held, away)
                await self.give_back(held, known)
            except BackendError as error:
                away = error
                errors.append(error)
            except LockfastError as error:
                errors.append(error)
        return errors

    async def _release_again_many(self, claims: Sequence[Claim]) -> None:
        """Out of them, as well as we can: the leases do the rest."""
        for start in range(0, len(claims), MANY):
            some = claims[start : start + MANY]
            try:
                await self.backend.release_batch(some, _budget_for(some))
            except BackendError as error:
                log.warning("lockfast: release of %d unknown: %s", len(some), error)
                for claim in some:
                    self.keeper.see_off(claim)

    def _step_out(self, held: Held, now: float, take: int) -> bool:
        """One step out; whether it was the last, so that the store is to be told."""
        writes = take == ALL_SLOTS
        with self.ledger.mutex:
            if held.state is not HELD or (held.writes if writes else held.count - held.writes) <= 0:
                raise _one_too_many(held, writes)
            held.count -= 1
            if writes:
                held.writes -= 1
            if held.count > 0:
                return False
            self.ledger.end(held, RELEASED, now)
        if held.callbacks:
            self.ledger.call_back(held)
        return True

    async def _become_reader(self, held: Held) -> None:
        """A writer that also reads goes on as a reader, under its fence, and lets others read. From
        now on we ask no more of it, whatever becomes of the request: a store that did not hear of
        it keeps others out for longer, which is safe."""
        with self.ledger.mutex:
            held.claim = held.claim._replace(take=1)
        try:
            ask = partial(self.backend.shrink, held.claim)
            answer = await self._answered(held, ask)
        except BackendError as error:
            raise BackendError(
                f"whether others may read {shown(held.claim.name)} now is unknown: {error}."
                " It is still held, as a reader",
                transient=error.transient,
            ) from error
        if not isinstance(answer, Granted):
            self.ledger.lose(held, "the store no longer knows it")
            self.check(held)

    async def _answered(self, held: Held, ask: Callable[[float], Awaitable[T]]) -> T:
        """What the store says to it, asked again while the answer gets lost."""
        budget = budget_for(held.claim.lease)
        until = self.runtime.now() + budget
        while True:
            try:
                return await ask(budget / ATTEMPTS)
            except BackendError as error:
                if not error.transient or self.runtime.now() + RETRY_PAUSE >= until:
                    raise
            await self.runtime.sleep(RETRY_PAUSE)

    def _step_out_of_loss(self, held: Held) -> bool:
        """One step out of what is lost; whether it was the last. It may be lost to our clock alone:
        then the store is told, by our own claim id, so that the next need not wait for the rest of
        the lease."""
        with self.ledger.mutex:
            held.count -= 1
            last = held.count == 0
            if last:
                self.ledger.forget(held)
        return last and not held.foreign

    async def _unwind_lost(self, held: Held) -> NoReturn:
        if self._step_out_of_loss(held):
            limit = first_budget(held.claim.lease)
            await self._release_again(self.backend, held.claim, limit)
        raise held.loss()

    async def give_back(self, held: Held, answer: bool | BaseException | None = None) -> None:
        """Tell the store, and ask again if it did not answer: never guess. ``answer`` is what it
        said or raised when it was told already."""
        budget = budget_for(held.claim.lease)
        until: float | None = None
        while True:
            try:
                if isinstance(answer, BaseException):
                    failed, answer = answer, None
                    raise failed
                if until is not None:
                    await self.runtime.sleep(RETRY_PAUSE)
                known = answer
                if known is None:
                    known = await self.backend.release(held.claim, budget / ATTEMPTS)
                break
            except GeneratorExit:
                raise
            except BackendError as error:
                held.unknown = True
                now = self.runtime.now()
                until = until or now + budget * (1 - 1 / ATTEMPTS)  # one of them is spent
                if not error.transient or now + RETRY_PAUSE >= until:
                    raise self._release_unknown(held, error) from error
            except BaseException:
                # Cancelled in the middle: it may or may not have reached the store.
                await self.runtime.shielded(
                    self._release_again(self.backend, held.claim, budget), budget
                )
                raise
        # "Not ours any more" after an answer that got lost: our own first request did it, unless
        # the lease could have ended meanwhile.
        unknown, held.unknown = held.unknown, False
        if not known and (not unknown or self.runtime.now() >= held.deadline):
            cause = "the store no longer knew it when it was released"
            raise self.ledger.lost_unnoticed(held, cause)

    async def _release_again(self, backend: Backend, claim: Claim, limit: float) -> None:
        """Out of it, held or waiting, as well as we can: the lease does the rest."""
        try:
            await backend.leave(claim, max(limit, 0.01))
        except BackendError as error:
            log.warning("lockfast: release of %s unknown: %s", shown(claim.name), error)
            self.keeper.see_off(claim)

    def _release_unknown(self, held: Held, error: BackendError) -> BackendError:
        rest = max(held.deadline - self.runtime.now(), 0.0)
        self.keeper.see_off(held.claim)
        return BackendError(
            f"whether {shown(held.claim.name)} was released is unknown, the store did not answer: "
            f"{error}. It is renewed no more and frees itself in at most {rest:.1f} s",
            transient=error.transient,
        )

    async def renew(self, held: Held, lease: float | None) -> None:
        """Extend it now, by hand; `HoldLost` if it cannot be."""
        self.check(held)
        claim = held.claim
        if lease is not None and lease != claim.lease:
            claim = claim._replace(lease=lease)
        sent = held.uncertain_since = self.runtime.now()  # until it is answered
        (answer,) = await self.backend.renew([claim], [held.fence], budget_for(claim.lease))
        if isinstance(answer, Granted) and answer.fence == held.fence:
            with self.ledger.mutex:
                if held.state is HELD and self.runtime.now() < held.deadline:
                    # Not the claim that we sent: a writer may have become a reader meanwhile.
                    held.claim = held.claim._replace(lease=claim.lease)
                    if not held.renews:
                        held.ends_by = self.runtime.now() + claim.lease
                    held.extend_validity(sent, min(answer.lease, claim.lease))
            self.keeper.mind(held.due)
        else:
            self.ledger.lose(held, "the store no longer knows it")
        self.check(held)

    async def detach(self, held: Held, until: float | None = None) -> str:
        """Let go of it without releasing; the text lets another process take it over, as long as
        its lease lasts, or until then."""
        self.check(held)
        if held.count > 1:
            raise NotHeld(
                f"{shown(held.claim.name)} was entered {held.count} times: detach it where it was "
                "acquired, not inside"
            )
        try:
            with self.ledger.mutex:
                self.ledger.kept.pop(held.claim.id, None)  # a renewal would undo what we write
            claim, answer = await self._let_go(held, until)
        except BaseException:
            with self.ledger.mutex:
                if held.state is HELD:
                    self.ledger.kept[held.claim.id] = held
            self.keeper.mind(held.due)
            raise
        if not isinstance(answer, Granted):
            self.ledger.lose(held, "the store no longer knows it")
        self.check(held)
        with self.ledger.mutex:
            self.ledger.end(held, DETACHED, self.runtime.now())
        self.ledger.tell(held)
        return f"lf1:{claim.id}:{held.fence}:{claim.lease!r}:{claim.slots}:{claim.take}"

    async def _let_go(self, held: Held, until: float | None) -> tuple[Claim, Granted | Gone]:
        """Asked again if the answer is lost: who believes that it holds what nobody will renew, or
        that nothing was left behind where a mark was, would act on it."""
        ends = self.runtime.now() + budget_for(held.claim.lease)
        while held in self.keeper.sending and self.runtime.now() < ends:
            await self.runtime.sleep(RETRY_PAUSE / 4)

        async def ask(budget: float) -> tuple[Claim, Granted | Gone]:
            claim = held.claim
            if until is not None:
                claim = claim._replace(lease=max(until - self.runtime.now(), 0.001))
            return claim, await self.backend.transfer(claim, False, budget)

        return await self._answered(held, ask)


def _is_common(held: Held, now: float) -> bool:
    """Is it held, and no writer's that also reads?"""
    return held.state is HELD and now < held.deadline and not (held.writes and held.count > 1)


def _one_too_many(held: Held, writes: bool) -> NotHeld:
    name = shown(held.claim.name)
    if held.state is not HELD:
        return NotHeld(f"the hold on {name} was {held.state.value} already: one release too many")
    half = "write" if writes else "read"
    return NotHeld(f"{name} was not entered to {half}: one release too many")


def _budget_for(claims: Sequence[Claim]) -> float:
    return first_budget(min(claim.lease for claim in claims))
