"""The one waiting loop, for every primitive, every store, threads, asyncio and simulation.

    claim ── granted ─────────────────────────────────────────────► held
      │ busy
    watch, and if bells were missed meanwhile, claim again
      │ busy
    wait ── bell with a grant, younger than our last answer ──────► held, with no round trip
      │ ├── keeper's refresh answered with the grant ─────────────► held
      │ ├── a bare ring, a place that is gone, silence ──► claim again
      │ └── time is over ─────────────────────────────────► leave ► not acquired

Survives: a lost reply (asked again with the same id), a lost bell (the refresh tells), a late bell
(its fence is older than our last answer), a dead keeper (the floor makes us ask ourselves), a store
that is away for a while (we go on asking as long as our patience), and cancellation or Ctrl-C at
any instant (we leave, shielded).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

from lockfast.core.keeper import Keeper, budget_for
from lockfast.core.law import REFRESH
from lockfast.core.ledger import BELIEF, Ledger, Waiting, shown
from lockfast.core.ports import Backend, Runtime
from lockfast.errors import BackendError, ConfigurationError, NotHeld
from lockfast.events import WaitBegan
from lockfast.model import Busy, Claim, Differs, Granted, Snapshot, kind_of

# A waiter that heard nothing of its keeper for so long asks for itself.
FLOOR = 2 * REFRESH
# A waiter whose store does not answer goes on asking so long, at least, before it gives up.
PATIENCE = 10.0
RETRY_PAUSE, LONGEST_PAUSE = 0.02, 0.2
# A budget is divided, so that a reply that was lost can be asked for again.
ATTEMPTS = 3


@functools.lru_cache(maxsize=64)
def first_budget(lease: float) -> float:
    """For the first attempt of an operation. Remembered: it is asked for twice a cycle."""
    return budget_for(lease) / ATTEMPTS


# Granted by a request (or after one) that left at that time; known to us now; by a bell.
Obtained = tuple[float, float, Granted, bool]


async def obtain(
    runtime: Runtime,
    backend: Backend,
    ledger: Ledger,
    keeper: Keeper,
    claim: Claim,
    sent: float,
    timeout: float | None,
    now: float,
    answer: Granted | Busy | Differs | None,
    template: str,
) -> Obtained | Snapshot | None:
    """Go on from the first answer, to a request that left at ``sent``. The grant, or who was in the
    way when time was over (None: was not or could not be asked). Whoever calls leaves, if we
    raise."""
    until = float("inf") if timeout is None else sent + timeout
    if answer is None or isinstance(answer, Granted):
        rest = budget_for(claim.lease) * (1 - 1 / ATTEMPTS)
        sent, now, answer = await claim_until_known(runtime, backend, claim, runtime.now(), rest)
        if isinstance(answer, Granted):
            return (sent, now, answer, False)
    if isinstance(answer, Differs):
        raise differs(claim, answer)
    if not claim.wait:
        return None
    ear = getattr(backend, "ear", None)
    waiting = Waiting(claim, runtime.signal() if ear is None else ear(claim))
    waiting.still(sent, now, answer.retry_after, answer.fence)
    told: WaitBegan | None = None
    try:
        missed = await backend.watch(claim, waiting.wake, sent)
        with ledger.mutex:
            ledger.waiting[claim.id] = waiting
            ledger.contended += 1
        keeper.mind(waiting.due)
        if ledger.listeners is not None:
            told = ledger.listeners.wait_began(claim, template)
        _refuse_if_closed(ledger, claim)
        return await _wait(runtime, backend, ledger, keeper, waiting, until, missed)
    finally:
        backend.unwatch(claim)
        with ledger.mutex:
            ledger.waiting.pop(claim.id, None)
        if told is not None:
            assert ledger.listeners is not None, "who told of its beginning"
            ledger.listeners.wait_ended(told, runtime.now() - now)


async def _wait(
    runtime: Runtime,
    backend: Backend,
    ledger: Ledger,
    keeper: Keeper,
    waiting: Waiting,
    until: float,
    ask: bool,
) -> Obtained | Snapshot | None:
    """We stand in the queue: hear, or ask again, until it is ours or time is over. ``ask`` at once
    if a release before we watched may have rung nobody."""
    claim = waiting.claim
    budget = budget_for(claim.lease)
    patience = max(getattr(backend, "patience", PATIENCE), claim.lease)
    while True:
        now = runtime.now()
        if ask:
            try:
                # At the end of our time an answer still gets half a budget, and leaving the other
                # half, so that the caller waits at most one budget more than it said.
                limit = min(budget, max(until - now, budget / 2))
                sent, now, answer = await claim_until_known(runtime, backend, claim, now, limit)
            except BackendError as error:
                now = runtime.now()
                impatient = now - waiting.last[0] > patience
                if impatient or not error.transient or now >= until:
                    raise
                await runtime.sleep(min(LONGEST_PAUSE, until - now))
                continue
            _refuse_if_closed(ledger, claim)
            if isinstance(answer, Granted):
                if _goes_back(waiting, answer):
                    raise BackendError(
                        f"the store granted {shown(claim.name)} under fence {answer.fence} after "
                        f"it had told of {waiting.last[1]}: did it lose its data and its clock?",
                        transient=False,
                    )
                return (sent, now, answer, False)
            if isinstance(answer, Differs):
                raise differs(claim, answer)
            waiting.still(sent, now, answer.retry_after, answer.fence)
            keeper.mind(waiting.due)
        if now >= until:
            return await leave(backend, keeper, claim, budget / 2)
        woken = await waiting.signal.wait(min(until - now, FLOOR))
        _refuse_if_closed(ledger, claim)
        news, waiting.news = waiting.news, None
        now = runtime.now()
        if news is None:
            # Rung, but what for slipped between two lines; or our keeper is not refreshing.
            ask = woken or now - waiting.last[0] > FLOOR
        elif news[1] is not None and (obtained := _believed(waiting, news[0], news[1], now)):
            return obtained
        else:
            ask = True


async def claim_until_known(
    runtime: Runtime, backend: Backend, claim: Claim, sent: float, limit: float
) -> tuple[float, float, Granted | Busy | Differs]:
    """One claim, asked again with the same id while the outcome is unknown and the limit allows:
    the claim that was executed although its reply was lost is then found, not taken for
    another's. When it was sent, when it was answered, and what."""

    async def ask(budget: float) -> list[Granted | Busy | Differs]:
        return [await backend.claim(claim, budget)]

    sent, now, answers = await ask_until_known(runtime, ask, sent, limit)
    return sent, now, answers[0]


Answers = Sequence[Granted | Busy | Differs]


async def ask_until_known(
    runtime: Runtime,
    ask: Callable[[float], Awaitable[Answers]],
    sent: float,
    limit: float,
) -> tuple[float, float, Answers]:
    """The same for any number of claims. It asks at longer and longer intervals, up to a tenth of
    the limit: a crowd that waits for a store that is away must not be what keeps it from
    starting."""
    until = sent + limit
    pause = RETRY_PAUSE
    while True:
        try:
            answers = await ask(limit / ATTEMPTS)
            now = runtime.now()
            leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
            if not leases or now < sent + min(leases) * BELIEF:
                return sent, now, answers
            # We were paused, or the store was: this lease may be over. Ask anew, and be quick.
            if now >= until + PATIENCE:
                raise BackendError("the store's answers take longer than the lease")
        except BackendError as error:
            if not error.transient or runtime.now() + pause >= until:
                raise
            await runtime.sleep(pause)
            pause = max(pause, min(2 * pause, limit / 10, LONGEST_PAUSE))
        sent = runtime.now()


def _believed(waiting: Waiting, sent: float | None, grant: Granted, now: float) -> Obtained | None:
    """What a bell or a refresh granted, if it is not over already."""
    by_bell = sent is None
    last_sent, last_fence = waiting.last
    if sent is None:
        if grant.fence <= last_fence:
            return None  # older than an answer that said "still waiting": a late bell
        sent = last_sent
    if _goes_back(waiting, grant):
        return None  # a refresh cannot say that: ask
    if now >= sent + grant.lease * BELIEF:
        return None  # we were paused: ask, do not believe
    return (sent, now, grant, by_bell)


def _goes_back(waiting: Waiting, grant: Granted) -> bool:
    """A fence that is not above the last one that we were told of. (0: a store without fences.)"""
    return 0 < grant.fence <= waiting.last[1]


async def leave(backend: Backend, keeper: Keeper, claim: Claim, limit: float) -> Snapshot | None:
    """Out of the queue; a grant that crossed is given back. Unreachable: the keeper goes on trying,
    and the place ends by itself, a grant that crossed with its first lease."""
    for _ in range(ATTEMPTS):
        try:
            return await backend.leave(claim, limit / ATTEMPTS)
        except BackendError as error:
            if not error.transient:
                return None
    keeper.abandon(claim)
    return None


def _refuse_if_closed(ledger: Ledger, claim: Claim) -> None:
    if ledger.closed:
        raise NotHeld(f"the client was closed while waiting for {shown(claim.name)}")


def differs(claim: Claim, answer: Differs) -> ConfigurationError:
    if claim.take > claim.slots:
        return ConfigurationError(
            f"{shown(claim.name)} has {claim.slots} slots: {claim.take} at once can never be had"
        )
    return ConfigurationError(
        f"{shown(claim.name)} is in use as {kind_of(answer.slots)}, and cannot be "
        f"{kind_of(claim.slots)} at the same time: use another name, or the same kind and size "
        "everywhere"
    )
