"""The waiting loop of every primitive and every store, for threads, asyncio and simulation.

    claim ── granted ─────────────────────────────────────────────► held
      │ busy
    watch, and if a wake-up was missed meanwhile, claim again
      │ busy
    wait ── wake-up with a grant newer than the last reply ───────► held, with no round trip
      │ ├── keeper's refresh answered with the grant ─────────────► held
      │ ├── wake-up without a grant, lost position, silence ► claim again
      │ └── time-out ─────────────────────────────────────► leave ► not acquired

The loop survives a lost reply (the claim is sent again with the same id), a lost wake-up (the
keeper's refresh finds the grant), a late wake-up (its fence is older than the last reply), a dead
keeper (after `SELF_REFRESH` seconds the waiter asks for itself), a store that is unreachable for
a while (the waiter retries for `PATIENCE` seconds), and cancellation or Ctrl-C at any instant (the
claim is withdrawn, shielded).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

from lockfast.core.keeper import Keeper, budget_for
from lockfast.core.law import REFRESH
from lockfast.core.ledger import VALID_FRACTION, Ledger, Waiting, shown
from lockfast.core.ports import Backend, Runtime
from lockfast.errors import BackendError, ConfigurationError, NotHeld
from lockfast.events import WaitBegan
from lockfast.model import Busy, Claim, Differs, Granted, Snapshot, kind_of

# A waiter that its keeper has not refreshed for so long sends its claim itself.
SELF_REFRESH = 2 * REFRESH
# The least time for which a waiter keeps asking a store that does not answer.
PATIENCE = 10.0
RETRY_PAUSE, LONGEST_PAUSE = 0.02, 0.2
# A budget allows this many attempts, so that a request whose reply is lost can be repeated.
ATTEMPTS = 3


@functools.lru_cache(maxsize=64)
def first_budget(lease: float) -> float:
    """The budget of an operation's first attempt. Cached: every cycle needs it twice."""
    return budget_for(lease) / ATTEMPTS


# When the request left from which validity counts, when the grant was known, the grant, and whether
# a wake-up delivered it.
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
    """Continue after the first ``answer``, to a request that left at ``sent``.

    Return the grant or, on time-out, a snapshot of the holders (None: not asked, or not answered).
    If this raises, the caller withdraws the claim.
    """
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
    waiter_signal = getattr(backend, "waiter_signal", None)
    signal = runtime.signal() if waiter_signal is None else waiter_signal(claim)
    waiting = Waiting(claim, signal)
    waiting.still(sent, now, answer.retry_after, answer.fence)
    wait_began: WaitBegan | None = None
    try:
        missed = await backend.watch(claim, waiting.wake, sent)
        with ledger.mutex:
            ledger.waiting[claim.id] = waiting
            ledger.contended += 1
        keeper.schedule(waiting.due)
        if ledger.listeners is not None:
            wait_began = ledger.listeners.wait_began(claim, template)
        _refuse_if_closed(ledger, claim)
        return await _wait(runtime, backend, ledger, keeper, waiting, until, missed)
    finally:
        backend.unwatch(claim)
        with ledger.mutex:
            ledger.waiting.pop(claim.id, None)
        if wait_began is not None:
            assert ledger.listeners is not None, "the listeners that got the WaitBegan event"
            ledger.listeners.wait_ended(wait_began, runtime.now() - now)


async def _wait(
    runtime: Runtime,
    backend: Backend,
    ledger: Ledger,
    keeper: Keeper,
    waiting: Waiting,
    until: float,
    ask: bool,
) -> Obtained | Snapshot | None:
    """Wait in the queue for a wake-up, or claim again, until granted or timed out. ``ask``: claim
    at once, because a release before watching began may have woken nobody."""
    claim = waiting.claim
    budget = budget_for(claim.lease)
    patience = max(getattr(backend, "patience", PATIENCE), claim.lease)
    while True:
        now = runtime.now()
        if ask:
            try:
                # At the end of the time-out, this request still gets half a budget and `leave` the
                # other half, so that the caller waits at most one budget longer than it asked.
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
                if _is_stale_fence(waiting, answer):
                    raise BackendError(
                        f"the store granted {shown(claim.name)} under fence {answer.fence} after "
                        f"it had issued {waiting.last[1]}: it may have lost its data, and "
                        "its clock was set back",
                        transient=False,
                    )
                return (sent, now, answer, False)
            if isinstance(answer, Differs):
                raise differs(claim, answer)
            waiting.still(sent, now, answer.retry_after, answer.fence)
            keeper.schedule(waiting.due)
        if now >= until:
            return await leave(backend, keeper, claim, budget / 2)
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


async def claim_until_known(
    runtime: Runtime, backend: Backend, claim: Claim, sent: float, limit: float
) -> tuple[float, float, Granted | Busy | Differs]:
    """Send one claim, again and with the same id while the outcome is unknown and the limit allows:
    the store then recognizes a claim that was executed although its reply was lost. Return when it
    was sent, when it was answered, and the answer."""

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
    """Send a batch of claims until the outcome is known, as `claim_until_known` does. The pauses
    between attempts grow up to a tenth of the limit: a large number of waiters must not keep a
    store that is down from starting."""
    until = sent + limit
    pause = RETRY_PAUSE
    while True:
        try:
            answers = await ask(limit / ATTEMPTS)
            now = runtime.now()
            leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
            if not leases or now < sent + min(leases) * VALID_FRACTION:
                return sent, now, answers
            # This process or the store was paused: the lease may have expired. Ask again.
            if now >= until + PATIENCE:
                raise BackendError("the store's replies take longer than the lease")
        except BackendError as error:
            if not error.transient or runtime.now() + pause >= until:
                raise
            await runtime.sleep(pause)
            pause = max(pause, min(2 * pause, limit / 10, LONGEST_PAUSE))
        sent = runtime.now()


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
    return (sent, now, grant, by_wakeup)


def _is_stale_fence(waiting: Waiting, grant: Granted) -> bool:
    """True if the fence is not above the last one known (0: a store without fences)."""
    return 0 < grant.fence <= waiting.last[1]


async def leave(backend: Backend, keeper: Keeper, claim: Claim, limit: float) -> Snapshot | None:
    """Withdraw the claim from the queue; a grant that crossed is released. If the store does not
    answer, the keeper keeps trying; at the latest, the waiter expires after `law.WAITER_LEASE` and
    a grant that crossed after its first lease."""
    for _ in range(ATTEMPTS):
        try:
            return await backend.leave(claim, limit / ATTEMPTS)
        except BackendError as error:
            if not error.transient:
                return None
    keeper.keep_withdrawing(claim)
    return None


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
