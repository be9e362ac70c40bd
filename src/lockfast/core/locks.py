"""A client's operations: acquire, re-enter, renew, release, hand over, inspect. Written once.

Both APIs call these coroutines: the sync API runs them to the end, the async API awaits them, the
simulator schedules them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

from lockfast.core.acquire import first_budget, leave, obtain
from lockfast.core.closing import close
from lockfast.core.explain import taken_message
from lockfast.core.holds import Holding
from lockfast.core.keeper import MAX_BUDGET, Keeper, budget_for
from lockfast.core.ledger import (
    HELD,
    LOST,
    RELEASED,
    VALID_FRACTION,
    Alarm,
    Held,
    Ledger,
    bare,
    shown,
)
from lockfast.core.listeners import Listeners
from lockfast.core.ports import Backend, KeeperRuntime, Runtime
from lockfast.core.terms import Terms
from lockfast.errors import AcquireTimeout, BackendError, NotHeld, WouldDeadlock
from lockfast.model import ALL_SLOTS, Busy, Claim, Differs, Granted, Snapshot

T = TypeVar("T")
log = logging.getLogger("lockfast")
Begun = tuple[Claim, object, float]  # the claim, its owner, and when it began
Attempt = Coroutine[Any, Any, Held | Snapshot | None]
_new = tuple.__new__  # hot path: skips the named tuple's wrapper that takes keywords


class Core(Holding):
    """One client's logic. ``keeper_backend`` is the blocking backend that the keeper uses;
    ``new_secret`` makes 128 bits that nobody can guess, the prefix of claim ids."""

    def __init__(
        self,
        runtime: Runtime,
        backend: Backend,
        new_secret: Callable[[], str],
        keeper_runtime: KeeperRuntime,
        keeper_backend: Backend,
    ) -> None:
        self.runtime = runtime
        self.backend = backend
        self.ledger = Ledger(runtime)
        self._keep(keeper_runtime, keeper_backend)
        self._new_secret = new_secret
        self._secret = new_secret()
        self._count = itertools.count(1)
        # Some backends of the sync API answer without a coroutine.
        self._claim_now = getattr(backend, "claim_now", None)
        # Some of the async API send the request without one.
        self._claim_soon = getattr(backend, "claim_soon", None)

    def _keep(self, runtime: KeeperRuntime, backend: Backend) -> None:
        self.keeper = Keeper(runtime, backend, self.ledger)
        # While the keeper runs, its thread keeps this client and its holds alive: a client that
        # nobody refers to any more still releases them at exit.
        self.keeper.client = self

    # ---- acquire ---------------------------------------------------------------------------

    async def refuse(
        self, terms: Terms, timeout: float | None, outcome: Snapshot | None
    ) -> NoReturn:
        """Raise `AcquireTimeout`, which names the holder."""
        if outcome is None:
            try:
                outcome = await self._look(
                    lambda limit: self.backend.inspect(terms.name, limit, terms.layout),
                    budget_for(terms.lease) / 2,
                )
            except BackendError:
                outcome = None  # still a time-out; the message just cannot name the holder
        raise AcquireTimeout(
            taken_message(bare(terms.name), timeout or 0.0, outcome),
            name=bare(terms.name),
            timeout=timeout or 0.0,
            snapshot=outcome,
        )

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
        if mine is not None:
            return self._reenter(mine, take)
        began = runtime.now()
        claim_id = f"{self._secret}-{next(self._count)}"
        fields = (name, claim_id, who, lease, slots, take, fair, timeout != 0, layout)
        ledger.asking.add(claim_id)
        return _new(Claim, fields), owner, began

    def enter(
        self, terms: Terms, begun: Begun, sent: float, now: float, grant: Granted, by_wakeup: bool
    ) -> Held:
        """Record a granted claim as a hold, and emit the event."""
        claim, owner, began = begun
        ledger = self.ledger
        held = Held(claim, owner, grant[0], now, terms.renew, terms.ends_by(now))
        if by_wakeup:
            held.extend_validity_from_wakeup(sent, now, grant[1])
        else:
            held.extend_validity(sent, grant[1])
        due = held.due
        if terms.warn_after is not None:
            alarm = Alarm(now + terms.warn_after, terms.warn_after, self.runtime.stack())
            held.alarm, due = alarm, min(due, alarm.at)
        listeners = ledger.listeners
        if listeners is not None:
            held.acquired_event = event = listeners.acquired(
                claim, terms.template, grant.fence, now - began
            )
        with ledger.mutex:
            ledger.enter(held, now - began)
        if due < self.keeper.wakes_at:
            self.keeper.schedule(due)
        if listeners is not None:
            listeners.emit(event)
        if ledger.closed:
            self.refuse_if_closed()
        ledger.asking.discard(claim[1])
        return held

    def attempt_now(self, terms: Terms, timeout: float | None) -> Held | Attempt:
        """Acquire without a coroutine in the common case: the backend grants the claim at once. In
        every other case return the coroutine to run, which continues after the backend's answer."""
        if self._claim_now is None:
            return self.attempt(terms, timeout)
        begun = self.begin(terms, timeout)
        if isinstance(begun, Held):
            return begun
        claim, _, began = begun
        try:
            answer = self._claim_now(claim, first_budget(claim.lease))
            now = self.runtime.now()
            if isinstance(answer, Granted) and now < began + answer.lease * VALID_FRACTION:
                return self.enter(terms, begun, began, now, answer, False)
        except BaseException as error:
            return self.attempt(terms, timeout, begun, error)
        return self.attempt(terms, timeout, begun, answer)

    async def acquire_soon(
        self, terms: Terms, timeout: float | None, made: Callable[[Held], T]
    ) -> T:
        """Acquire and return ``made(held)``, or raise `AcquireTimeout`. For the async API: a single
        coroutine in the common case, where the backend sends the request without one."""
        begun: Begun | None = None
        answer: Granted | Busy | Differs | BaseException | None = None
        if self._claim_soon is not None:
            found = self.begin(terms, timeout)
            if isinstance(found, Held):
                return made(found)
            begun = claim, _, began = found
            try:
                asked = self._claim_soon(claim, first_budget(claim[3]))
                if asked is not None:
                    answer = self.backend.claim_result(claim, await asked)  # type: ignore[attr-defined]
                    now = self.runtime.now()
                    if isinstance(answer, Granted) and now < began + answer[1] * VALID_FRACTION:
                        return made(self.enter(terms, begun, began, now, answer, False))
            except GeneratorExit:
                self.ledger.asking.discard(claim.id)
                raise
            except BaseException as error:
                answer = error
        outcome = await self.attempt(terms, timeout, begun, answer)
        if isinstance(outcome, Held):
            return made(outcome)
        await self.refuse(terms, timeout, outcome)

    async def attempt(
        self,
        terms: Terms,
        timeout: float | None,
        begun: Begun | Held | None = None,
        answer: Granted | Busy | Differs | BaseException | None = None,
    ) -> Held | Snapshot | None:
        """Acquire a hold. On time-out, return a snapshot of the holders (None: not asked). A claim
        that was ``begun`` before has an ``answer`` (None: it may have been executed)."""
        ledger, runtime = self.ledger, self.runtime
        fresh = begun is None
        if begun is None:
            begun = self.begin(terms, timeout)
        if isinstance(begun, Held):
            return begun
        claim, _, began = begun
        try:
            try:
                if isinstance(answer, BaseException):
                    raise answer
                if fresh:
                    answer = await self.backend.claim(claim, first_budget(claim.lease))
            except BackendError as error:
                if not error.transient:
                    raise
                answer = None  # it may have been executed: claim again with the same id
            now = runtime.now()
            if isinstance(answer, Granted) and now < began + answer.lease * VALID_FRACTION:
                return self.enter(terms, begun, began, now, answer, False)
            template = terms.template
            outcome = await obtain(
                runtime, self.backend, ledger, self.keeper, claim, began, timeout, now, answer,
                template,
            )  # fmt: skip
            if outcome is None or isinstance(outcome, Snapshot):
                ledger.timed_out += claim.wait
                if ledger.listeners is not None:
                    waited = runtime.now() - began
                    ledger.listeners.not_acquired(claim, template, waited)
                return outcome
            return self.enter(terms, begun, *outcome)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Cancelled, interrupted or refused: nobody wants what the store has of this claim.
            self.discard(claim)
            limit = budget_for(claim.lease) / 2
            await runtime.shielded(leave(self.backend, self.keeper, claim, limit), limit)
            if ledger.listeners is not None:
                waited = runtime.now() - began
                ledger.listeners.failed(claim, terms.template, waited, error)
            raise
        finally:
            ledger.asking.discard(claim.id)

    def discard(self, claim: Claim) -> None:
        """Remove the hold of an unwanted claim from the ledger, if it was entered."""
        ledger = self.ledger
        stray = ledger.kept.get(claim.id)
        if stray is not None:
            with ledger.mutex:
                ledger.end(stray, RELEASED, self.runtime.now())
            ledger.emit_end(stray)

    def _reenter(self, mine: Held, take: int) -> Held:
        self.settle(mine)
        with self.ledger.mutex:
            if mine.state is HELD and take <= mine.claim.take:
                mine.count += 1
                mine.writes += take == ALL_SLOTS
                self.ledger.reentered += 1
                return mine
        if mine.state is HELD:
            raise WouldDeadlock(
                f"{shown(mine.claim.name)} is read by the same thread, task or owner that now asks "
                "to write it, and would wait for itself: release the read hold first, or acquire "
                "the write lock from the beginning (a writer may also read)"
            )
        raise mine.loss()

    async def attach(self, terms: Terms, claim_id: str, fence: int) -> Held:
        """Take over a hold that another process detached, under its fence."""
        self.refuse_if_closed()
        current, who = self.runtime.identity(terms.label)
        owner = terms.owner if terms.owner is not None else current
        claim = Claim(terms.name, claim_id, who, terms.lease, terms.slots, terms.take, terms.fair)
        sent = self.runtime.now()
        answer = await self.backend.transfer(claim, True, budget_for(terms.lease))
        if not isinstance(answer, Granted) or answer.fence != fence:
            raise NotHeld(
                f"{shown(terms.name)} with fence {fence} cannot be taken over: its lease ran out "
                "before, or it was never detached under this name"
            )
        now = self.runtime.now()
        return self.enter(terms, (claim, owner, now), sent, now, answer, False)

    # ---- inspect ---------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        """Emit events to these listeners from now on."""
        self.ledger.listeners = listeners

    async def inspect(self, name: str, layout: str = "") -> Snapshot:
        return await self._look(lambda limit: self.backend.inspect(name, limit, layout), MAX_BUDGET)

    async def names(self, prefix: str) -> Iterable[str]:
        return await self._look(lambda limit: self.backend.names(prefix, limit), MAX_BUDGET)

    async def _look(self, ask: Callable[[float], Awaitable[T]], limit: float) -> T:
        """Ask the store something that changes nothing, and retry once if it failed early: a server
        may close a connection just when a request is sent on it, and another connection is all it
        takes. Both attempts share ``limit``, so that an unreachable store costs no more time. The
        budget is not divided, because a walk over many names may need all of it."""
        until = self.runtime.now() + limit
        try:
            return await ask(limit)
        except BackendError as error:
            rest = until - self.runtime.now()
            # With less than half of the limit, the second attempt would merely time out.
            if not error.transient or rest < limit / 2:
                raise
        return await ask(rest)

    async def break_hold(self, name: str, fence: int) -> bool:
        broken = await self.backend.break_hold(name, fence, MAX_BUDGET)
        log.warning(
            "lockfast: break of %s with fence %d: %s",
            shown(name),
            fence,
            "done" if broken else "refused, it is not held under this fence",
        )
        return broken

    # ---- close, fork -----------------------------------------------------------------------

    async def close(self, backend: Backend, limit: float, *, exiting: bool = False) -> None:
        """Release everything through ``backend``, within about ``limit`` seconds, and stop. Waiters
        are woken and withdraw; this waits for them, unless the program is ``exiting``."""
        await close(self.runtime, self.ledger, self.keeper, backend, limit, exiting)

    def before_fork(self) -> None:
        """Nothing to do: the store quiesces by itself."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        """Start empty in the child: the parent keeps its holds, and no keeper runs here."""
        inherited = list(self.ledger.by_owner.values())
        listeners = self.ledger.listeners
        self.ledger = Ledger(self.runtime)
        self.ledger.listeners = listeners
        self._keep(self.keeper.runtime, self.keeper.backend)
        self._secret = self._new_secret()
        self._count = itertools.count(1)
        for held in inherited:
            held.state = LOST
            held.callbacks = None
            held.foreign = True
            held.cause = "it belongs to the parent process; a forked child holds nothing"

    @property
    def closed(self) -> bool:
        return self.ledger.closed

    def refuse_if_closed(self) -> None:
        if self.ledger.closed:
            raise NotHeld("this client was closed: connect again")
