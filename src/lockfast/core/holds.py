"""Operations on a hold: release, renew, detach for another process."""

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
LARGEST_BATCH = 100  # claims in one request: more would block a store for others


class Holding(Validity):
    """Mixin of a client's operations on its holds."""

    backend: Backend
    keeper: Keeper
    _claim_now: Callable[[Claim, float], Any] | None
    _claim_soon: Callable[[Claim, float], Any] | None

    # ---- release, renew, hand over ---------------------------------------------------------

    async def release(self, held: Held, take: int = 1) -> None:
        """Leave one entry of the hold; the last one releases it at the store. `HoldLost` if the
        hold was lost, `NotHeld` if it was released too often. ``take`` is what the entry had asked
        for: when a writer that also reads leaves its last write entry, it becomes a reader."""
        now = self.runtime.now()
        if held.state is HELD and now >= held.deadline:
            self.settle(held)
        if held.state is LOST and held.count > 0:
            await self._unwind_lost(held)
        # A hold with an unknown outcome: the caller retries after the error that reported it.
        if held.unknown or self._step_out(held, now, take):
            await (self.give_back(held) if held.acquired_event is None else self._give_back(held))
        elif held.claim.take == ALL_SLOTS and not held.writes:
            await self._become_reader(held)

    async def _give_back(self, held: Held, answer: bool | BaseException | None = None) -> None:
        """Release at the store before emitting: the next holder must not wait for listeners."""
        try:
            await self.give_back(held, answer)
        finally:
            self.ledger.emit_end(held)

    def release_now(self, held: Held, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """Release without a coroutine in the common case; else return the coroutine to run."""
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
        if held.acquired_event is not None:
            self.ledger.emit_end(held)
        return None

    def release_soon(self, held: Held, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """Release with one coroutine in the common case; else return the coroutine to await."""
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
                answer = self.backend.release_result(await asked)  # type: ignore[attr-defined]
        except GeneratorExit:
            raise
        except BaseException as error:
            answer = error
        if answer is not True:
            await self._give_back(held, answer)
        elif held.acquired_event is not None:
            self.ledger.emit_end(held)

    async def release_batch(self, entries: Sequence[tuple[Held, int]]) -> list[LockfastError]:
        """Leave one entry of each hold, as `release` does, in as few requests as the store can, and
        return the errors. If cancelled or interrupted, all of them are released nevertheless."""
        errors: list[LockfastError] = []
        last: list[Held] = []
        reads_on: list[Held] = []
        late: list[Claim] = []
        now = self.runtime.now()
        for held, take in entries:
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
            for start in range(0, len(last), LARGEST_BATCH):
                errors += await self._give_back_batch(last[start : start + LARGEST_BATCH])
            await self._release_again_batch(late)
            for held in reads_on:
                try:
                    await self._become_reader(held)
                except LockfastError as error:
                    errors.append(error)
        except GeneratorExit:
            raise
        except BaseException:
            ending = [*(held.claim for held in last), *late]
            await self.runtime.shielded(self._release_again_batch(ending), MAX_BUDGET)
            raise
        finally:
            for held in last:
                self.ledger.emit_end(held)
        return errors

    async def _give_back_batch(self, holds: Sequence[Held]) -> list[LockfastError]:
        """Release a batch at the store. Holds without an answer are released one by one, until one
        more is not answered: then the store is unreachable, and the leases end the rest."""
        claims = [held.claim for held in holds]
        answers: Sequence[bool | None]
        errors: list[LockfastError] = []
        unreachable: BackendError | None = None
        try:
            answers = await self.backend.release_batch(claims, _budget_for(claims))
        except BackendError as error:
            answers = [None] * len(claims)
            unreachable = None if error.transient else error
            for held in holds:
                held.unknown = True
        for held, known in zip(holds, answers, strict=True):
            if known:
                held.unknown = False
                continue
            try:
                if unreachable is not None:
                    raise self._release_unknown(held, unreachable)
                await self.give_back(held, known)
            except BackendError as error:
                unreachable = error
                errors.append(error)
            except LockfastError as error:
                errors.append(error)
        return errors

    async def _release_again_batch(self, claims: Sequence[Claim]) -> None:
        """Release the claims once more, best effort: the leases end the rest."""
        for start in range(0, len(claims), LARGEST_BATCH):
            some = claims[start : start + LARGEST_BATCH]
            try:
                await self.backend.release_batch(some, _budget_for(some))
            except BackendError as error:
                log.warning("lockfast: release of %d claims unknown: %s", len(some), error)
                for claim in some:
                    self.keeper.withdraw_if_session_bound(claim)

    def _step_out(self, held: Held, now: float, take: int) -> bool:
        """Leave one entry; True if it was the last, so that the store must be asked to release."""
        writes = take == ALL_SLOTS
        with self.ledger.mutex:
            if held.state is not HELD or (held.writes if writes else held.count - held.writes) <= 0:
                raise _excess_release(held, writes)
            held.count -= 1
            if writes:
                held.writes -= 1
            if held.count > 0:
                return False
            self.ledger.end(held, RELEASED, now)
        if held.callbacks:
            self.ledger.run_callbacks(held)
        return True

    async def _become_reader(self, held: Held) -> None:
        """Turn a writer that also reads into a reader, under the same fence, so that others may
        read. Locally it is a reader from now on, whatever becomes of the request: a store that did
        not receive it keeps others out for longer, which is safe."""
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
        """The store's answer to a request, which is repeated while replies are lost."""
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
        """Leave one entry of a lost hold; True if it was the last and the store should release it.
        The hold may have expired by our clock alone: releasing it by our own claim id spares the
        next holder the rest of the lease."""
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
        """Release the hold at the store, and ask again if it did not answer: never guess.
        ``answer`` is the reply or the exception of a first attempt that was already made."""
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
                until = until or now + budget * (1 - 1 / ATTEMPTS)  # one attempt is spent
                if not error.transient or now + RETRY_PAUSE >= until:
                    raise self._release_unknown(held, error) from error
            except BaseException:
                # Cancelled under way: the request may or may not have reached the store.
                await self.runtime.shielded(
                    self._release_again(self.backend, held.claim, budget), budget
                )
                raise
        # "Not held" after a lost reply: our first request released it, unless the lease expired.
        unknown, held.unknown = held.unknown, False
        if not known and (not unknown or self.runtime.now() >= held.deadline):
            cause = "the store no longer knew it when it was released"
            raise self.ledger.lost_before_release(held, cause)

    async def _release_again(self, backend: Backend, claim: Claim, limit: float) -> None:
        """Withdraw a claim, holding or waiting, best effort: the lease ends it otherwise."""
        try:
            await backend.leave(claim, max(limit, 0.01))
        except BackendError as error:
            log.warning("lockfast: release of %s unknown: %s", shown(claim.name), error)
            self.keeper.withdraw_if_session_bound(claim)

    def _release_unknown(self, held: Held, error: BackendError) -> BackendError:
        rest = max(held.deadline - self.runtime.now(), 0.0)
        self.keeper.withdraw_if_session_bound(held.claim)
        return BackendError(
            f"whether {shown(held.claim.name)} was released is unknown, the store did not answer: "
            f"{error}. It is no longer renewed and frees itself in at most {rest:.1f} s",
            transient=error.transient,
        )

    async def renew(self, held: Held, lease: float | None) -> None:
        """Extend the hold now, by hand; `HoldLost` if that is impossible."""
        self.check(held)
        await self._begin_amending(held)
        try:
            await self._not_being_renewed(held)
            await self._renew(held, lease)
        finally:
            with self.ledger.mutex:
                held.amending -= 1
            self.keeper.schedule(held.due)
        self.check(held)

    async def _begin_amending(self, held: Held) -> None:
        """Have the keeper leave the hold alone, after another thread or task that changes its
        lease: requests for one hold are under way one at a time, so that no older reply counts."""
        ends = self.runtime.now() + budget_for(held.claim.lease)
        while True:
            with self.ledger.mutex:
                if not held.amending or self.runtime.now() >= ends:
                    held.amending += 1
                    return
            await self.runtime.sleep(RETRY_PAUSE / 4)

    async def _not_being_renewed(self, held: Held) -> None:
        """Wait for the keeper's renewal of this hold, if one is under way. It has a budget too."""
        ends = self.runtime.now() + budget_for(held.claim.lease)
        while held in self.keeper.sending and self.runtime.now() < ends:
            await self.runtime.sleep(RETRY_PAUSE / 4)

    async def _renew(self, held: Held, lease: float | None) -> None:
        claim = held.claim
        if lease is not None and lease != claim.lease:
            claim = claim._replace(lease=lease)
        sent = held.uncertain_since = self.runtime.now()  # uncertain until answered
        (answer,) = await self.backend.renew([claim], [held.fence], budget_for(claim.lease))
        if isinstance(answer, Granted) and answer.fence == held.fence:
            with self.ledger.mutex:
                if held.state is HELD and self.runtime.now() < held.deadline:
                    # Not the claim that was sent: a writer may have become a reader meanwhile.
                    held.claim = held.claim._replace(lease=claim.lease)
                    if not held.renews:
                        held.ends_by = self.runtime.now() + claim.lease
                    held.extend_validity(sent, min(answer.lease, claim.lease))
        else:
            self.ledger.lose(held, "the store no longer knows it")

    async def detach(self, held: Held, until: float | None = None) -> str:
        """Give up the hold without releasing it. Return a text with which another process can take
        it over until its lease ends, or until ``until``."""
        self.check(held)
        if held.count > 1:
            raise NotHeld(
                f"{shown(held.claim.name)} was entered {held.count} times: detach it in the "
                "outermost block"
            )
        try:
            with self.ledger.mutex:
                self.ledger.kept.pop(held.claim.id, None)  # a renewal would undo the transfer
            claim, answer = await self._let_go(held, until)
        except BaseException:
            with self.ledger.mutex:
                if held.state is HELD:
                    self.ledger.kept[held.claim.id] = held
            self.keeper.schedule(held.due)
            raise
        if not isinstance(answer, Granted):
            self.ledger.lose(held, "the store no longer knows it")
        self.check(held)
        with self.ledger.mutex:
            self.ledger.end(held, DETACHED, self.runtime.now())
        self.ledger.notify_end(held)
        return f"lf1:{claim.id}:{held.fence}:{claim.lease!r}:{claim.slots}:{claim.take}"

    async def _let_go(self, held: Held, until: float | None) -> tuple[Claim, Granted | Gone]:
        """Transfer the hold to nobody, and ask again if the reply is lost. A caller that did not
        know the outcome would rely on a hold that nobody renews, or miss a mark that was left."""
        await self._not_being_renewed(held)

        async def ask(budget: float) -> tuple[Claim, Granted | Gone]:
            claim = held.claim
            if until is not None:
                claim = claim._replace(lease=max(until - self.runtime.now(), 0.001))
            return claim, await self.backend.transfer(claim, False, budget)

        return await self._answered(held, ask)


def _is_common(held: Held, now: float) -> bool:
    """True for a valid hold that is not a writer's with more than one entry."""
    return held.state is HELD and now < held.deadline and not (held.writes and held.count > 1)


def _excess_release(held: Held, writes: bool) -> NotHeld:
    name = shown(held.claim.name)
    if held.state is not HELD:
        return NotHeld(f"the hold on {name} was {held.state.value} already: one release too many")
    half = "write" if writes else "read"
    return NotHeld(f"{name} was not entered to {half}: one release too many")


def _budget_for(claims: Sequence[Claim]) -> float:
    return first_budget(min(claim.lease for claim in claims))
