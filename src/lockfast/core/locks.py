"""What a client can do: acquire, re-enter, renew, release, hand over, look. Written once.

Both faces call these coroutines; the blocking one runs them to the end, asyncio awaits them, the
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
from lockfast.core.ledger import BELIEF, HELD, LOST, RELEASED, Alarm, Held, Ledger, bare, shown
from lockfast.core.listeners import Listeners
from lockfast.core.ports import Backend, KeeperRuntime, Runtime
from lockfast.core.terms import Terms
from lockfast.errors import AcquireTimeout, BackendError, NotHeld, WouldDeadlock
from lockfast.model import ALL_SLOTS, Busy, Claim, Differs, Granted, Snapshot

T = TypeVar("T")
log = logging.getLogger("lockfast")
Begun = tuple[Claim, object, float]  # what is asked for, by whom, since when
Attempt = Coroutine[Any, Any, Held | Snapshot | None]
_new = tuple.__new__  # of a named tuple, without the wrapper that takes keywords: it is hot


class Core(Holding):
    """One client's logic. ``keeper_backend`` is the blocking twin that the keeper speaks through;
    ``new_secret`` makes 128 bits that nobody can guess, from which claim ids are made."""

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
        # Some backends of the blocking colour can answer without a coroutine.
        self._claim_now = getattr(backend, "claim_now", None)
        # Some for tasks can begin without one.
        self._claim_soon = getattr(backend, "claim_soon", None)

    def _keep(self, runtime: KeeperRuntime, backend: Backend) -> None:
        self.keeper = Keeper(runtime, backend, self.ledger)
        # While it runs, its thread keeps us alive, and what we hold: a client that nobody refers to
        # any more still gives back at exit.
        self.keeper.client = self

    # ---- acquire ---------------------------------------------------------------------------

    async def refuse(
        self, terms: Terms, timeout: float | None, outcome: Snapshot | None
    ) -> NoReturn:
        """Say that the time is over: `AcquireTimeout`, which names the holder."""
        if outcome is None:
            try:
                outcome = await self._look(
                    lambda limit: self.backend.inspect(terms.name, limit, terms.layout),
                    budget_for(terms.lease) / 2,
                )
            except BackendError:
                outcome = None  # the time is over either way; who was in the way stays unsaid
        raise AcquireTimeout(
            taken_message(bare(terms.name), timeout or 0.0, outcome),
            name=bare(terms.name),
            timeout=timeout or 0.0,
            snapshot=outcome,
        )

    def begin(self, terms: Terms, timeout: float | None) -> Begun | Held:
        """A claim to ask for, or the hold that this owner has already."""
        ledger, runtime = self.ledger, self.runtime
        if ledger.closed:
            self.refuse_if_closed()
        name, lease, _, _, fair, slots, take, owner, label, layout, _, _ = terms
        asker, who = runtime.asker(label)
        if owner is None:
            owner = asker
        mine = ledger.by_owner.get((name, owner))
        if mine is not None:
            return self._reenter(mine, take)
        began = runtime.now()
        claim_id = f"{self._secret}-{next(self._count)}"
        said = (name, claim_id, who, lease, slots, take, fair, timeout != 0, layout)
        ledger.asking.add(claim_id)
        return _new(Claim, said), owner, began

    def enter(
        self, terms: Terms, begun: Begun, sent: float, now: float, grant: Granted, by_bell: bool
    ) -> Held:
        """It is ours."""
        claim, owner, began = begun
        ledger = self.ledger
        held = Held(claim, owner, grant[0], now, terms.renew, terms.ends_by(now))
        if by_bell:
            held.extend_validity_from_wakeup(sent, now, grant[1])
        else:
            held.extend_validity(sent, grant[1])
        due = held.due
        if terms.warn_after is not None:
            alarm = Alarm(now + terms.warn_after, terms.warn_after, self.runtime.stack())
            held.alarm, due = alarm, min(due, alarm.at)
        listeners = ledger.listeners
        if listeners is not None:
            held.told = told = listeners.acquired(claim, terms.template, grant.fence, now - began)
        with ledger.mutex:
            ledger.enter(held, now - began)
        if due < self.keeper.wakes_at:
            self.keeper.mind(due)
        if listeners is not None:
            listeners.tell(told)
        if ledger.closed:
            self.refuse_if_closed()
        ledger.asking.discard(claim[1])
        return held

    def attempt_now(self, terms: Terms, timeout: float | None) -> Held | Attempt:
        """The common case without a coroutine, where the backend answers at once: asked, and
        granted. In every other case what to run instead, which goes on from the answer."""
        if self._claim_now is None:
            return self.attempt(terms, timeout)
        begun = self.begin(terms, timeout)
        if isinstance(begun, Held):
            return begun
        claim, _, began = begun
        try:
            answer = self._claim_now(claim, first_budget(claim.lease))
            now = self.runtime.now()
            if isinstance(answer, Granted) and now < began + answer.lease * BELIEF:
                return self.enter(terms, begun, began, now, answer, False)
        except BaseException as error:
            return self.attempt(terms, timeout, begun, error)
        return self.attempt(terms, timeout, begun, answer)

    async def acquire_soon(
        self, terms: Terms, timeout: float | None, made: Callable[[Held], T]
    ) -> T:
        """What is ``made`` of a hold, or `AcquireTimeout`. For tasks: a single coroutine in the
        common case, where the backend can begin to ask without one."""
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
                    answer = self.backend.claim_said(claim, await asked)  # type: ignore[attr-defined]
                    now = self.runtime.now()
                    if isinstance(answer, Granted) and now < began + answer[1] * BELIEF:
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
        """A hold, or whoever was in the way when the time was over (None: nobody asked). What was
        ``begun`` already has an ``answer`` (None: it may have been executed)."""
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
                answer = None  # it may have been executed: ask again, with the same id
            now = runtime.now()
            if isinstance(answer, Granted) and now < began + answer.lease * BELIEF:
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
            # Cancelled, interrupted, refused: what the store has of this claim, nobody wants.
            self.withdraw(claim)
            limit = budget_for(claim.lease) / 2
            await runtime.shielded(leave(self.backend, self.keeper, claim, limit), limit)
            if ledger.listeners is not None:
                waited = runtime.now() - began
                ledger.listeners.failed(claim, terms.template, waited, error)
            raise
        finally:
            ledger.asking.discard(claim.id)

    def withdraw(self, claim: Claim) -> None:
        """What was entered of a claim although nobody wants it."""
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
                "to write it, and would wait for itself: release the read hold first, or ask to "
                "write from the beginning (a writer may also read)"
            )
        raise mine.loss()

    async def attach(self, terms: Terms, claim_id: str, fence: int) -> Held:
        """Take over what another process detached, under its fence."""
        self.refuse_if_closed()
        asker, who = self.runtime.asker(terms.label)
        owner = terms.owner if terms.owner is not None else asker
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

    # ---- look ------------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        """Tell them what happens from now on."""
        self.ledger.listeners = listeners

    async def inspect(self, name: str, layout: str = "") -> Snapshot:
        return await self._look(lambda limit: self.backend.inspect(name, limit, layout), MAX_BUDGET)

    async def names(self, prefix: str) -> Iterable[str]:
        return await self._look(lambda limit: self.backend.names(prefix, limit), MAX_BUDGET)

    async def _look(self, ask: Callable[[float], Awaitable[T]], limit: float) -> T:
        """What the store says to a question that changes nothing. It is asked again, once, if it
        failed soon: a server may close a connection in the very moment in which we ask on it, and
        to ask on another is all that it takes. Both together have ``limit``, so a store that is
        away costs no more time than before. The budget is not divided, because a walk over many
        names may need all of it."""
        until = self.runtime.now() + limit
        try:
            return await ask(limit)
        except BackendError as error:
            rest = until - self.runtime.now()
            # With less than half, the second error would only say how little was left.
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

    # ---- the end ---------------------------------------------------------------------------

    async def close(self, backend: Backend, limit: float, *, exiting: bool = False) -> None:
        """Give back everything through ``backend``, within about ``limit`` seconds, and stop. Those
        who wait are told, and leave; we wait for that, unless the program is ``exiting``."""
        await close(self.runtime, self.ledger, self.keeper, backend, limit, exiting)

    def before_fork(self) -> None:
        """The store comes to rest by itself."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        """We are a child: what the parent holds is the parent's, and no keeper runs here."""
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
            held.cause = "it belongs to the parent process; a fork holds nothing"

    @property
    def closed(self) -> bool:
        return self.ledger.closed

    def refuse_if_closed(self) -> None:
        if self.ledger.closed:
            raise NotHeld("this client was closed: connect again")
