"""Acquiring: one road for every primitive and every store, for threads, asyncio and simulation.

`Acquiring.acquire` makes the claim and sends the first request. If the store answers at once with a
grant, which is the common case, the hold is entered without a coroutine. Everything else goes on
in `Acquiring.go_on`: a reply that is awaited, a lost reply, waiting in the queue (`claim`), the
time-out, and cancellation or Ctrl-C at any instant (the claim is withdrawn, shielded).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeAlias

from lockfast.core.claim import (
    GRACE,
    LEAST_BUDGET,
    Claiming,
    Obtained,
    first_budget,
)
from lockfast.core.explain import taken_message
from lockfast.core.keeper import budget_for
from lockfast.core.ledger import (
    HELD,
    LOST,
    RELEASED,
    VALID_FRACTION,
    Alarm,
    Held,
    bare,
    shown,
)
from lockfast.core.ports import Answer, Reply
from lockfast.core.terms import FOREVER, Terms
from lockfast.errors import (
    AcquireTimeout,
    BackendError,
    NotHeld,
    WouldDeadlock,
)
from lockfast.model import ALL_SLOTS, Claim, Granted, Snapshot

Begun = tuple[Claim, object, float]  # the claim, its owner, and when it began
_new = tuple.__new__  # hot path: skips the named tuple's wrapper that takes keywords


# A hold, or the coroutine that goes on until there is one.
SoonHeld: TypeAlias = Held | Coroutine[Any, Any, Held]


class Acquiring(Claiming):
    """Mixin of a client: acquire holds."""

    _new_secret: Callable[[], str]
    _secret: str
    _count: itertools.count[int]

    def acquire(self, terms: Terms, timeout: float | None, insist: bool = True) -> SoonHeld:
        """Acquire a hold, or raise `AcquireTimeout`. Without a coroutine if the store blocks and
        grants the claim at once; otherwise return the coroutine to run."""
        begun = self.begin(terms, timeout)
        if type(begun) is Held:
            return begun
        claim, _, began = begun  # type: ignore[misc]
        reply: Reply[Sequence[Answer]] | BaseException
        try:
            budget = first_budget(claim[3])
            if timeout is not None and budget > timeout + GRACE:
                budget = timeout + GRACE
            reply = self.store.claim((claim,), budget)
            if type(reply) is list:
                now = self.runtime.now()
                answer = reply[0]
                if type(answer) is Granted and now < began + answer[1] * VALID_FRACTION:
                    return self.enter(terms, begun, began, now, answer, False)  # type: ignore[arg-type]
        except BaseException as error:
            reply = error
        return self.go_on(terms, timeout, begun, reply, insist)  # type: ignore[arg-type, return-value]

    async def attempt(self, terms: Terms, timeout: float | None) -> Held | Snapshot | None:
        """Acquire a hold; on time-out, return a snapshot of the holders (None: not asked)."""
        held = self.acquire(terms, timeout, insist=False)
        return held if isinstance(held, Held) else await held

    def begin(self, terms: Terms, timeout: float | None) -> Begun | Held:
        """Make a new claim, or re-enter the hold that this owner already has."""
        ledger, runtime = self.ledger, self.runtime
        if ledger.closed:
            self.refuse_if_closed()
        name, lease, _, _, fair, slots, take, owner, label, layout, _, _ = terms
        current, who = runtime.identity(label)
        if owner is None:
            owner = current
        mine = ledger.by_owner.get((name, owner))
        if mine is not None and self._reenter(mine, take):
            return mine
        began = runtime.now()
        claim_id = f"{self._secret}-{next(self._count)}"
        fields = (name, claim_id, who, lease, slots, take, fair, timeout != 0, layout)
        ledger.asking.add(claim_id)
        return _new(Claim, fields), owner, began

    async def go_on(
        self,
        terms: Terms,
        timeout: float | None,
        begun: Begun,
        reply: Reply[Sequence[Answer]] | BaseException,
        insist: bool = False,
    ) -> Held | Snapshot | None:
        """Go on from the reply, or the failure, of the first request, until the hold is acquired.
        On time-out, raise if the caller ``insists``, or return a snapshot of the holders."""
        ledger, runtime = self.ledger, self.runtime
        claim, _, began = begun
        until = FOREVER if timeout is None else began + timeout
        try:
            answer: Answer | None = None
            try:
                if isinstance(reply, BaseException):
                    raise reply
                answers: Sequence[Answer]
                answers = reply if type(reply) is list else await reply  # type: ignore[misc]
                answer = answers[0]
            except BackendError as error:
                if not error.transient:
                    raise
            now = runtime.now()
            if type(answer) is Granted and now < began + answer[1] * VALID_FRACTION:
                return self.enter(terms, begun, began, now, answer, False)
            outcome = await self.obtain(claim, until, began, now, answer, terms.template)
            if isinstance(outcome, Obtained):
                return self.enter(terms, begun, *outcome)
            ledger.timed_out += claim.wait
            if ledger.listeners is not None:
                waited = runtime.now() - began
                ledger.listeners.not_acquired(claim, terms.template, waited)
            if not insist:
                return outcome
        except GeneratorExit:
            raise
        except BaseException as error:
            # Cancelled, interrupted or refused: nobody wants what the store has of this claim.
            self.discard(claim)
            rest = until + GRACE - runtime.now()
            limit = min(budget_for(claim.lease) / 2, rest)
            # A store that has just kept us waiting until the end will not answer now either.
            if limit > LEAST_BUDGET:
                await runtime.shielded(self.withdraw(claim, limit), limit)
            else:
                self.keeper.keep_withdrawing(claim)
            if ledger.listeners is not None:
                waited = runtime.now() - began
                ledger.listeners.failed(claim, terms.template, waited, error)
            raise
        finally:
            ledger.asking.discard(claim.id)
        await self.refuse(terms, timeout, outcome, until + GRACE - runtime.now())

    async def refuse(
        self, terms: Terms, timeout: float | None, outcome: Snapshot | None, rest: float = GRACE
    ) -> NoReturn:
        """Raise `AcquireTimeout`, which names the holder: as known from the ``outcome``, or by
        asking for it, in the ``rest`` of the time."""

        def ask(limit: float) -> Reply[Snapshot]:
            return self.store.inspect(terms.name, limit, terms.layout)

        if outcome is None and rest > LEAST_BUDGET:
            try:
                outcome = await self.look(ask, rest)
            except BackendError:
                pass  # still a time-out; the message just cannot name the holder
        name = bare(terms.name)
        message = taken_message(name, timeout or 0.0, outcome)
        raise AcquireTimeout(message, name=name, timeout=timeout or 0.0, snapshot=outcome)

    def enter(
        self, terms: Terms, begun: Begun, sent: float, now: float, grant: Granted, by_wakeup: bool
    ) -> Held:
        """Record a granted claim as a hold, and emit the event."""
        claim, owner, began = begun
        ledger = self.ledger
        _, lease, renews, max_hold, _, _, _, _, _, _, _, warn_after = terms
        limit = max_hold if renews else lease
        held = Held(claim, owner, grant[0], now, renews, FOREVER if limit is None else now + limit)
        if by_wakeup:
            held.extend_validity_from_wakeup(sent, now, grant[1])
        else:
            held.extend_validity(sent, grant[1])
        due = held.due
        if warn_after is not None:
            alarm = Alarm(now + warn_after, warn_after, self.runtime.stack())
            held.alarm, due = alarm, min(due, alarm.at)
        listeners = ledger.listeners
        if listeners is not None:
            held.acquired_event = event = listeners.acquired(
                claim, terms.template, grant.fence, now - began
            )
        with ledger.mutex:
            ledger.by_owner[claim[0], owner] = held
            ledger.kept[claim[1]] = held
            ledger.wait_time[int((now - began) * 1e6).bit_length()] += 1
        if due < self.keeper.wakes_at:
            self.keeper.schedule(due)
        if listeners is not None:
            listeners.emit(event)
        if ledger.closed:
            self.refuse_if_closed()
        ledger.asking.discard(claim[1])
        return held

    def _reenter(self, mine: Held, take: int) -> bool:
        """Enter the hold once more; False if another thread of its owner has just released it."""
        self.settle(mine)
        with self.ledger.mutex:
            state = mine.state
            if state is HELD and take <= mine.claim.take:
                mine.count += 1
                mine.writes += take == ALL_SLOTS
                self.ledger.reentered += 1
                return True
        if state is HELD:
            raise WouldDeadlock(
                f"{shown(mine.claim.name)} is read by the same thread, task or owner that now asks "
                "to write it, and would wait for itself: release the read hold first, or acquire "
                "the write lock from the beginning (a writer may also read)"
            )
        if state is LOST:
            raise mine.loss()
        return False

    def discard(self, claim: Claim) -> None:
        """Remove the hold of an unwanted claim from the ledger, if it was entered."""
        ledger = self.ledger
        stray = ledger.kept.get(claim.id)
        if stray is not None:
            with ledger.mutex:
                ledger.end(stray, RELEASED, self.runtime.now())
            ledger.emit_end(stray)

    def refuse_if_closed(self) -> None:
        if self.ledger.closed:
            raise NotHeld("this client was closed: connect again")
