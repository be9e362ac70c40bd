"""Claiming: ask the store until the outcome is known, wait in the queue, withdraw.

    claim ── granted ─────────────────────────────────────────────► held
      │ busy
    watch, and if a wake-up was missed meanwhile, claim again
      │ busy
    wait ── wake-up with a grant newer than the last reply ───────► held, with no round trip
      │ ├── keeper's refresh answered with the grant ─────────────► held
      │ ├── wake-up without a grant, lost position, silence ► claim again
      │ └── time-out ─────────────────────────────────────► leave ► not acquired

The road survives a lost reply (the claim is sent again with the same id), a lost wake-up (the
keeper's refresh finds the grant), a late wake-up (its fence is older than the last reply), a dead
keeper (after `SELF_REFRESH` seconds the waiter asks for itself), a store that is unreachable for
a while (the waiter asks for the store's ``patience``), and cancellation or Ctrl-C at any instant
(the claim is withdrawn, shielded).

A time-out is kept whatever the store does: no request may take longer than `GRACE` after it, and
what could not be withdrawn by then is left to the keeper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from lockfast.core.keeper import Keeper, budget_for
from lockfast.core.law import REFRESH
from lockfast.core.ledger import VALID_FRACTION, Ledger, Waiting, shown
from lockfast.core.ports import PATIENCE, Answer, Reply, Store, answer_of
from lockfast.core.terms import FOREVER
from lockfast.core.validity import Validity
from lockfast.errors import BackendError, ConfigurationError, NotHeld, WouldDeadlock
from lockfast.events import WaitBegan
from lockfast.model import Claim, Differs, Granted, Snapshot, kind_of

# A waiter that its keeper has not refreshed for so long sends its claim itself.
SELF_REFRESH = 2 * REFRESH
# Between attempts whose outcome is unknown. The first one follows at once: most often only the
# connection was closed.
FIRST_PAUSE, RETRY_PAUSE, LONGEST_PAUSE = 0.005, 0.02, 0.2
# A budget allows this many attempts, so that a request whose reply is lost can be repeated.
ATTEMPTS = 3
# By how much requests may outlast a time-out: the last claim, its withdrawal, and asking for the
# holder's name. The promise is 0.1 s, of which the rest is for the caller's own work.
GRACE = 0.08
LEAST_BUDGET = 0.002  # seconds: with less than that, a request would merely time out

T = TypeVar("T")


@functools.lru_cache(maxsize=64)
def first_budget(lease: float) -> float:
    """The budget of an operation's first attempt. Cached: every cycle needs it twice."""
    return budget_for(lease) / ATTEMPTS


class Obtained(NamedTuple):
    """A grant: when the request left from which validity counts, when the grant was known, and
    whether a wake-up delivered it."""

    sent: float
    now: float
    grant: Granted
    by_wakeup: bool


class Claiming(Validity):
    """Mixin of a client: claim, wait in the queue, and withdraw."""

    store: Store
    keeper: Keeper

    async def claim_until_known(
        self, claims: Sequence[Claim], until: float, since: float, waiting: bool = False
    ) -> tuple[float, float, Sequence[Answer]]:
        """Send claims, again and with the same ids while the outcome is unknown: the store then
        recognizes a claim that was executed although its reply was lost. Return when they were
        sent, when they were answered, and the answers. Give up shortly after ``until``, or when
        the store has been silent ``since`` too long ago: a claim that is not ``waiting`` in the
        queue yet has nothing to lose, and a caller without a time-out wants to know."""
        runtime, store = self.runtime, self.store
        lease = min([claim[3] for claim in claims])
        limit = until + GRACE
        patience = max(store.patience, lease)
        if not waiting and until == FOREVER:
            patience = min(store.patience, PATIENCE)
        pause = FIRST_PAUSE
        while True:
            sent = runtime.now()
            try:
                budget = min(first_budget(lease), max(limit - sent, LEAST_BUDGET))
                answers = await answer_of(store.claim(claims, budget))
                now = runtime.now()
                leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
                if not leases or now < sent + min(leases) * VALID_FRACTION:
                    return sent, now, answers
                # This process or the store was paused: the lease may have expired. Ask again.
                if now >= since + patience + lease:
                    raise BackendError("the store's replies take longer than the lease")
            except BackendError as error:
                now = runtime.now()
                silent = now - since > patience
                # What is left of the time then is for withdrawing the claim.
                late = now + pause >= limit - GRACE / 2
                if silent or not error.transient or late:
                    raise
                # Growing pauses: many waiters must not keep a store that is down from starting.
                await runtime.sleep(pause)
                pause = max(pause, min(2 * pause, budget_for(lease) / 10, LONGEST_PAUSE))

    async def obtain(
        self,
        claim: Claim,
        until: float,
        sent: float,
        now: float,
        answer: Answer | None,
        template: str,
    ) -> Obtained | Snapshot | None:
        """Continue after the first ``answer`` (None: unknown), to a request that left at ``sent``.
        Return the grant or, on time-out, a snapshot of the holders (None: not asked, or not
        answered). If this raises, the caller withdraws the claim."""
        if answer is None or isinstance(answer, Granted):
            sent, now, answers = await self.claim_until_known((claim,), until, sent)
            answer = answers[0]
            if isinstance(answer, Granted):
                return Obtained(sent, now, answer, False)
        if isinstance(answer, Differs):
            raise differs(claim, answer)
        if not claim.wait:
            return None
        ledger, store = self.ledger, self.store
        stuck = [held.claim for held in self.runtime.stuck(ledger.by_owner)]
        taken = sum(other.take for other in stuck if other.name == claim.name)
        if taken and taken + claim.take > claim.slots:
            raise WouldDeadlock(
                f"{shown(claim.name)} is held by another task of this thread, which cannot go on "
                "while this blocking call waits: use lockfast.aio, or wait in a thread "
                "(asyncio.to_thread)"
            )
        waiting = Waiting(claim, store.signal(claim) or self.runtime.signal())
        waiting.still(sent, now, answer.retry_after, answer.fence)
        wait_began: WaitBegan | None = None
        try:
            missed = await answer_of(store.watch(claim, waiting.wake, sent))
            with ledger.mutex:
                ledger.waiting[claim.id] = waiting
                ledger.contended += 1
            self.keeper.schedule(waiting.due)
            if ledger.listeners is not None:
                wait_began = ledger.listeners.wait_began(claim, template)
            _refuse_if_closed(ledger, claim)
            return await self._wait(waiting, until, missed)
        finally:
            store.unwatch(claim)
            with ledger.mutex:
                ledger.waiting.pop(claim.id, None)
            if wait_began is not None:
                assert ledger.listeners is not None, "the listeners that got the WaitBegan event"
                ledger.listeners.wait_ended(wait_began, self.runtime.now() - now)

    async def _wait(self, waiting: Waiting, until: float, ask: bool) -> Obtained | Snapshot | None:
        """Wait in the queue for a wake-up, or claim again, until granted or timed out. ``ask``:
        claim at once, because a release before watching began may have woken nobody."""
        runtime, ledger, claim = self.runtime, self.ledger, waiting.claim
        while True:
            now = runtime.now()
            if ask:
                since = waiting.last[0]
                sent, now, answers = await self.claim_until_known((claim,), until, since, True)
                answer = answers[0]
                _refuse_if_closed(ledger, claim)
                if isinstance(answer, Granted):
                    if _is_stale_fence(waiting, answer):
                        raise BackendError(
                            f"the store granted {shown(claim.name)} under fence {answer.fence} "
                            f"after it had issued {waiting.last[1]}: it may have lost its data, "
                            "and its clock was set back",
                            transient=False,
                        )
                    return Obtained(sent, now, answer, False)
                if isinstance(answer, Differs):
                    raise differs(claim, answer)
                waiting.still(sent, now, answer.retry_after, answer.fence)
                self.keeper.schedule(waiting.due)
            if now >= until:
                return await self.withdraw(claim, max(until + GRACE - now, LEAST_BUDGET))
            woken = await waiting.signal.wait(min(until - now, SELF_REFRESH))
            _refuse_if_closed(ledger, claim)
            delivered, waiting.delivered = waiting.delivered, None
            now = runtime.now()
            if delivered is None:
                # Woken while the previous wake-up was being read, or the keeper is not refreshing.
                ask = woken or now - waiting.last[0] > SELF_REFRESH
            elif delivered[1] is not None and (
                obtained := _accepted_grant(waiting, delivered[0], delivered[1], now)
            ):
                return obtained
            else:
                ask = True

    async def withdraw(self, claim: Claim, limit: float) -> Snapshot | None:
        """Withdraw the claim from the queue; a grant that crossed is released. If the store does
        not answer, the keeper keeps trying; at the latest, the waiter expires after
        `law.WAITER_LEASE` and a grant that crossed after its first lease."""
        until = self.runtime.now() + limit
        for attempt in range(ATTEMPTS):
            rest = until - self.runtime.now()
            if attempt and rest <= LEAST_BUDGET:
                break
            try:
                return await answer_of(self.store.leave(claim, rest))
            except BackendError as error:
                if not error.transient:
                    return None
        self.keeper.keep_withdrawing(claim)
        return None

    async def look(self, ask: Callable[[float], Reply[T]], limit: float) -> T:
        """Ask the store something that changes nothing, and retry once if it failed early: a server
        may close a connection just when a request is sent on it, and another connection is all it
        takes. Both attempts share ``limit``, so that an unreachable store costs no more time. The
        budget is not divided, because a walk over many names may need all of it."""
        until = self.runtime.now() + limit
        try:
            return await answer_of(ask(limit))
        except BackendError as error:
            rest = until - self.runtime.now()
            # With less than half of the limit, the second attempt would merely time out.
            if not error.transient or rest < limit / 2:
                raise
        return await answer_of(ask(rest))


def _accepted_grant(
    waiting: Waiting, sent: float | None, grant: Granted, now: float
) -> Obtained | None:
    """The grant that a wake-up or a refresh delivered, or None if it is stale or has expired."""
    by_wakeup = sent is None
    last_sent, last_fence = waiting.last
    if sent is None:
        if grant.fence <= last_fence:
            return None  # older than a reply that was "still waiting": a late wake-up
        sent = last_sent
    if _is_stale_fence(waiting, grant):
        return None  # not a possible answer to a refresh: claim again
    if now >= sent + grant.lease * VALID_FRACTION:
        return None  # this process was paused and the lease may have expired: claim again
    return Obtained(sent, now, grant, by_wakeup)


def _is_stale_fence(waiting: Waiting, grant: Granted) -> bool:
    """True if the fence is not above the last one known (0: a store without fences)."""
    return 0 < grant.fence <= waiting.last[1]


def _refuse_if_closed(ledger: Ledger, claim: Claim) -> None:
    if ledger.closed:
        raise NotHeld(f"the client was closed while waiting for {shown(claim.name)}")


def differs(claim: Claim, answer: Differs) -> ConfigurationError:
    """The error for a claim whose kind or size differs from that of the name in use."""
    if claim.take > claim.slots:
        return ConfigurationError(
            f"{shown(claim.name)} has {claim.slots} slots: a claim of {claim.take} never fits"
        )
    return ConfigurationError(
        f"{shown(claim.name)} is in use as {kind_of(answer.slots)}, and cannot be "
        f"{kind_of(claim.slots)} at the same time: use another name, or the same kind and size "
        "everywhere"
    )
