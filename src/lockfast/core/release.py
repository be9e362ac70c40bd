"""Releasing holds, one or several, and what is left to do where the store does not answer.

Rules: a hold ends locally before its release is sent, so that nothing renews it any more. A lost
reply is asked for again, never guessed. A release that is cancelled or interrupted is sent
nevertheless. What the store has not confirmed in the end, the lease ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from lockfast.core.acquire import Acquiring
from lockfast.core.claim import ATTEMPTS, RETRY_PAUSE, first_budget
from lockfast.core.keeper import MAX_BUDGET, budget_for
from lockfast.core.ledger import HELD, LOST, RELEASED, Held, shown
from lockfast.core.ports import Reply, answer_of
from lockfast.errors import BackendError, LockfastError, NotHeld
from lockfast.model import ALL_SLOTS, Claim, Granted

T = TypeVar("T")
log = logging.getLogger("lockfast")
LARGEST_BATCH = 100  # claims in one request: more would block a store for others


class Releasing(Acquiring):
    """Mixin of a client: release holds."""

    def release(self, held: Held, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """Leave one entry of the hold; the last one releases it at the store. Done if this returns
        None; otherwise the coroutine goes on. `HoldLost` if the hold was lost, `NotHeld` if it was
        released too often. ``take`` is what the entry had asked for: when a writer that also reads
        leaves its last write entry, it becomes a reader."""
        now = self.runtime.now()
        if held.state is not HELD or now >= held.deadline or (held.writes and held.count > 1):
            return self._release(held, now, take)
        reply: Reply[Sequence[bool]] | BaseException
        try:
            if not self.step_out(held, now, take):
                return None
            claim = held.claim
            reply = self.store.release((claim,), first_budget(claim[3]))
            if type(reply) is list and reply[0]:
                if held.acquired_event is not None:
                    self.ledger.emit_end(held)
                return None
        except BaseException as error:
            if held.state is HELD:
                raise  # nothing has ended: the caller may repeat it
            reply = error
        return self.give_back(held, reply)

    def undo(self, held: Held, depth: int, take: int = 1) -> Coroutine[Any, Any, None] | None:
        """Leave the entry that was the ``depth``-th, unless that is done: an exception, of a signal
        handler say, came while its block was entered or left."""
        if held.state is HELD and held.count >= depth:
            return self.release(held, take)
        return None

    async def wait_released(self, held: Held, take: int = 1) -> None:
        """Release, and wait until that is done."""
        rest = self.release(held, take)
        if rest is not None:
            await rest

    async def _release(self, held: Held, now: float, take: int) -> None:
        """Release a hold that is lost, of unknown outcome, or a writer's with several entries."""
        if held.state is HELD and now >= held.deadline:
            self.settle(held)
        if held.state is LOST and held.count > 0:
            if self._step_out_of_loss(held):
                await self._release_again([held.claim], first_budget(held.claim.lease))
            raise held.loss()
        # A hold with an unknown outcome: the caller retries after the error that reported it.
        if held.unknown or self.step_out(held, now, take):
            await self.give_back(held)
        elif held.claim.take == ALL_SLOTS and not held.writes:
            await self._become_reader(held)

    async def give_back(
        self, held: Held, reply: Reply[Sequence[bool]] | BaseException | None = None
    ) -> None:
        """Release the hold at the store, and ask again if it did not answer: never guess.
        ``reply`` is that of a first request, or its failure. The event is emitted afterwards: the
        next holder must not wait for listeners."""
        answers: Sequence[bool] | BaseException | None
        try:
            if reply is None or type(reply) is list or isinstance(reply, BaseException):
                answers = reply
            else:
                try:
                    answers = known = await reply  # type: ignore[misc]
                    if known[0] and not held.unknown:
                        return  # most releases end here
                except GeneratorExit:
                    raise
                except BaseException as error:
                    answers = error
            await self._ask_to_release(held, answers)
        finally:
            if held.acquired_event is not None:
                self.ledger.emit_end(held)

    async def _ask_to_release(
        self, held: Held, reply: Sequence[bool] | BaseException | None
    ) -> None:
        budget = budget_for(held.claim.lease)
        until: float | None = None
        while True:
            try:
                if isinstance(reply, BaseException):
                    failed, reply = reply, None
                    raise failed
                if until is not None:
                    await self.runtime.sleep(RETRY_PAUSE)
                if reply is None:
                    reply = await answer_of(self.store.release((held.claim,), budget / ATTEMPTS))
                known = reply[0]
                break
            except GeneratorExit:
                raise
            except BackendError as error:
                held.unknown, reply = True, None
                now = self.runtime.now()
                until = until or now + budget * (1 - 1 / ATTEMPTS)  # one attempt is spent
                if not error.transient or now + RETRY_PAUSE >= until:
                    raise self._release_unknown(held, error) from error
            except BaseException:
                # Cancelled under way: the request may or may not have reached the store.
                await self.runtime.shielded(self._release_again([held.claim], budget), budget)
                raise
        # "Not held" after a lost reply: our first request released it, unless the lease expired.
        unknown, held.unknown = held.unknown, False
        if not known and (not unknown or self.runtime.now() >= held.deadline):
            cause = "the store no longer knew it when it was released"
            raise self.ledger.lost_before_release(held, cause)

    async def release_batch(self, entries: Sequence[tuple[Held, int]]) -> list[LockfastError]:
        """Leave one entry of each hold, as `release` does, in as few requests as the store can, and
        return the errors. If cancelled or interrupted, all of them are released nevertheless."""
        errors: list[LockfastError] = []
        last: list[Held] = []
        reads_on: list[Held] = []
        late: list[Claim] = []
        now = self.runtime.now()
        try:
            for held, take in entries:
                try:
                    self._sort(held, now, take, last, reads_on, late)
                except LockfastError as error:
                    errors.append(error)
            for start in range(0, len(last), LARGEST_BATCH):
                errors += await self._give_back_batch(last[start : start + LARGEST_BATCH])
            await self._release_again(late)
            for held in reads_on:
                try:
                    await self._become_reader(held)
                except LockfastError as error:
                    errors.append(error)
        except GeneratorExit:
            raise
        except BaseException:
            ending = [*(held.claim for held in last), *late]
            await self.runtime.shielded(self._release_again(ending), MAX_BUDGET)
            raise
        finally:
            for held in last:
                self.ledger.emit_end(held)
        return errors

    def _sort(
        self,
        held: Held,
        now: float,
        take: int,
        last: list[Held],
        reads_on: list[Held],
        late: list[Claim],
    ) -> None:
        """Leave one entry, and add the hold to the list of what its release has to do."""
        if now >= held.deadline:
            self.settle(held)
        if held.state is LOST and held.count > 0:
            if self._step_out_of_loss(held):
                late.append(held.claim)
            raise held.loss()
        if held.unknown or self.step_out(held, now, take):
            last.append(held)
        elif held.claim.take == ALL_SLOTS and not held.writes:
            reads_on.append(held)

    async def _give_back_batch(self, holds: Sequence[Held]) -> list[LockfastError]:
        """Release a batch at the store. Holds without an answer are released one by one, until one
        more is not answered: then the store is unreachable, and the leases end the rest."""
        claims = [held.claim for held in holds]
        answers: Sequence[bool | None]
        errors: list[LockfastError] = []
        unreachable: BackendError | None = None
        try:
            answers = await answer_of(self.store.release(claims, _budget_for(claims)))
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
                await self.give_back(held, None if known is None else [known])
            except BackendError as error:
                unreachable = error
                errors.append(error)
            except LockfastError as error:
                errors.append(error)
        return errors

    def step_out(self, held: Held, now: float, take: int) -> bool:
        """Leave one entry; True if it was the last, so that the store must be asked to release."""
        writes = take == ALL_SLOTS
        ledger = self.ledger
        with ledger.mutex:
            if held.state is not HELD or (held.writes if writes else held.count - held.writes) <= 0:
                raise _excess_release(held, writes)
            # An interrupt at any instant leaves this undone or done: it can be repeated until the
            # count has changed (of an inner entry) or the state has (of the last).
            if held.count > 1:
                held.writes -= writes
                held.count -= 1
                return False
            ledger.end(held, RELEASED, now)
            held.count = held.writes = 0
        if held.callbacks:
            ledger.run_callbacks(held)
        return True

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

    async def _become_reader(self, held: Held) -> None:
        """Turn a writer that also reads into a reader, under the same fence, so that others may
        read. Locally it is a reader from now on, whatever becomes of the request: a store that did
        not receive it keeps others out for longer, which is safe."""
        with self.ledger.mutex:
            held.claim = held.claim._replace(take=1)
        try:
            answer = await self.answered(held.claim.lease, partial(self.store.shrink, held.claim))
        except BackendError as error:
            raise BackendError(
                f"whether others may read {shown(held.claim.name)} now is unknown: {error}."
                " It is still held, as a reader",
                transient=error.transient,
            ) from error
        if not isinstance(answer, Granted):
            self.ledger.lose(held, "the store no longer knows it")
            self.check(held)

    async def answered(self, lease: float, ask: Callable[[float], Reply[T]]) -> T:
        """The store's answer to a request, which is repeated while replies are lost."""
        budget = budget_for(lease)
        until = self.runtime.now() + budget
        while True:
            try:
                return await answer_of(ask(budget / ATTEMPTS))
            except BackendError as error:
                if not error.transient or self.runtime.now() + RETRY_PAUSE >= until:
                    raise
            await self.runtime.sleep(RETRY_PAUSE)

    async def _release_again(self, claims: Sequence[Claim], limit: float | None = None) -> None:
        """Release or withdraw claims once more, best effort: the leases end the rest."""
        for start in range(0, len(claims), LARGEST_BATCH):
            some = claims[start : start + LARGEST_BATCH]
            try:
                if limit is None:
                    reply: Reply[Any] = self.store.release(some, _budget_for(some))
                else:
                    reply = self.store.leave(some[0], max(limit, 0.01))
                if isinstance(reply, Awaitable):
                    await reply
            except BackendError as error:
                what = shown(some[0].name) if len(some) == 1 else f"{len(some)} claims"
                log.warning("lockfast: release of %s unknown: %s", what, error)
                for claim in some:
                    self.keeper.withdraw_if_session_bound(claim)

    def _release_unknown(self, held: Held, error: BackendError) -> BackendError:
        rest = max(held.deadline - self.runtime.now(), 0.0)
        self.keeper.withdraw_if_session_bound(held.claim)
        return BackendError(
            f"whether {shown(held.claim.name)} was released is unknown, the store did not answer: "
            f"{error}. It is no longer renewed and frees itself in at most {rest:.1f} s",
            transient=error.transient,
        )


def _excess_release(held: Held, writes: bool) -> NotHeld:
    name = shown(held.claim.name)
    if held.state is not HELD:
        return NotHeld(f"the hold on {name} was {held.state.value} already: one release too many")
    half = "write" if writes else "read"
    return NotHeld(f"{name} was not entered to {half}: one release too many")


def _budget_for(claims: Sequence[Claim]) -> float:
    return first_budget(min(claim.lease for claim in claims))
