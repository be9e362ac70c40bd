"""The keeper (elsewhere called a watchdog): renews holds, refreshes waiters, notices losses, and
listens for wake-ups. There is one per client, whatever the client holds or waits for.

The rules:

1. On waking up, the keeper checks deadlines first: a hold that our own clock proves expired is
   lost, whatever a reply that is still under way may say.
2. A failed renewal is not a loss. The keeper retries until the deadline, and then reports the loss
   once. Until then the hold is uncertain, which its owner can see.
3. Renewals are sent in batches of a hundred or so, which do not block a store for others.
4. Nothing on the fast path wakes the keeper: it sleeps until the earliest entry is due, and a hold
   that was released before that is simply no longer in the ledger.
5. A keeper with nothing to do ends; the next hold starts another, also after one that died.
6. A hold that lasts longer than ``warn_after`` is logged, once, with the stack of its owner.
7. A claim that was given up while the store did not answer may still be, or get, in the queue, and
   would be granted to nobody. So the keeper withdraws it, again and again until it is answered.
8. While the owner changes the lease of a hold, the keeper does not renew it: of two requests under
   way at once, the older reply could restore a validity that the store has shortened since.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from lockfast.core.explain import ago
from lockfast.core.law import FIRST_LEASE, WAITER_LEASE
from lockfast.core.ledger import HELD, Alarm, Held, Ledger, Waiting, shown
from lockfast.core.ports import KeeperRuntime, Store, answer_of
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Gone, Granted, Who

BATCH = 125
IDLE = 20.0
LONGEST_SLEEP = 3600.0  # a poll of the system takes at most 24 days
MAX_BUDGET, LEAST_BUDGET = 5.0, 0.001
ERROR_PAUSE = 0.5
# How often, and for how long, to withdraw a claim that was given up: a waiter, and then its grant,
# could last that long.
LEAVE_EVERY = 0.5
LEAVE_FOR = WAITER_LEASE + FIRST_LEASE
LEAVE_BUDGET = 0.25
NEVER = float("inf")

log = logging.getLogger("lockfast")


def budget_for(lease: float) -> float:
    """The longest time for one operation: a sixth of the lease, so that several fit in it."""
    return lease / 6 if lease < 6 * MAX_BUDGET else MAX_BUDGET


class Keeper:
    def __init__(self, runtime: KeeperRuntime, store: Store, ledger: Ledger) -> None:
        self.runtime = runtime
        self.store = store
        self._ledger = ledger
        self.client: object = None
        self._running = False
        self._stopped = False
        self.wakes_at = NEVER
        self._scan_at = -NEVER
        self._withdraw_at = NEVER
        self.sending: list[Held | Waiting] = []  # entries whose renewal is under way
        store.on_uncertain(self.mark_uncertain)

    @property
    def running(self) -> bool:
        return self._running

    def schedule(self, due: float) -> None:
        """Make the keeper run when an entry of the ledger is due. Not under the mutex."""
        if due >= self.wakes_at:
            return  # rule 4: the common case
        with self._ledger.mutex:
            if due >= self.wakes_at or self._stopped:
                return
            self.wakes_at = self._scan_at = due
            started, self._running = self._running, True
        if started:
            self.store.interrupt()
        else:
            try:
                self.runtime.spawn("lockfast-keeper", self.run)
            except BaseException:
                self.mark_ended()  # or no later hold would start a keeper, and none be renewed
                raise

    def mark_uncertain(self) -> None:
        """Mark all holds as uncertain, and renew them at once to find out."""
        now = self.runtime.now()
        with self._ledger.mutex:
            for held in list(self._ledger.kept.values()):
                held.due = held.early = held.uncertain_since = now
        self.schedule(now)

    def stop(self) -> None:
        """Stop the keeper; holds are no longer renewed."""
        with self._ledger.mutex:
            self._stopped = True
        self.store.interrupt()

    def mark_ended(self) -> None:
        """Record that the keeper's thread has ended, so that the next `schedule` starts another."""
        self._running = False
        self.wakes_at = NEVER

    async def run(self) -> None:
        idle_since: float | None = None
        retired = False
        try:
            while not self._stopped:
                now = self.runtime.now()
                try:
                    if await self._work(now):
                        idle_since = None
                        continue
                    if self.wakes_at != NEVER:
                        idle_since = None
                    elif idle_since is None:
                        idle_since = now
                    elif now - idle_since >= IDLE and (retired := self._retire()):
                        return
                    # Read the clock again: withdrawing claims takes time.
                    rest = self.wakes_at - self.runtime.now()
                    rest = IDLE if rest == NEVER else min(max(rest, 0.0), LONGEST_SLEEP)
                    await answer_of(self.store.listen(rest))
                except Exception:  # whatever it is, the holds must be kept: log it and continue
                    log.exception("lockfast: unexpected error in the keeper, which continues")
                    await self.runtime.sleep(ERROR_PAUSE)
        finally:
            # Since it retired, another keeper may have started: its schedule stays.
            if not retired:
                self.mark_ended()

    async def _work(self, now: float) -> bool:
        """Do everything that is due; False if nothing was."""
        if self._ledger.withdrawals and now >= self._withdraw_at:
            await self._withdraw_claims(now)
            now = self.runtime.now()
        overdue, work, long = self._plan(now)
        for held in overdue:
            self._ledger.lose(held, held.expiry_reason())
            self.withdraw_if_session_bound(held.claim)
        for held, alarm in long:
            _warn(held, alarm, now)
        if work:
            try:
                await self._renew(work)
            finally:
                self.sending = []
        return bool(overdue or work)

    def keep_withdrawing(self, claim: Claim) -> None:
        """Keep withdrawing a claim for which the store did not answer the first attempt."""
        now = self.runtime.now()
        # An unreachable session has ended after that time; its length is known once it is granted.
        leave_for = LEAVE_FOR + 2 * self.store.capabilities.session
        with self._ledger.mutex:
            self._ledger.withdrawals[claim.id] = (claim, now + leave_for)
            self._withdraw_at = min(self._withdraw_at, now + LEAVE_EVERY)
        with contextlib.suppress(RuntimeError):  # no thread can be started: its lease ends it
            self.schedule(now + LEAVE_EVERY)

    def withdraw_if_session_bound(self, claim: Claim) -> None:
        """Withdraw a claim that has ended here and may still exist at the store. Elsewhere its
        lease ends it; where holds end with a session, nothing does while our session lives."""
        if self.store.in_session:
            self.keep_withdrawing(claim)

    async def _withdraw_claims(self, now: float) -> None:
        """Apply rule 7. Stop at the first claim without an answer: the store is still away."""
        self._withdraw_at = NEVER
        for claim_id, (claim, until) in list(self._ledger.withdrawals.items()):
            try:
                if now < until:
                    limit = min(LEAVE_BUDGET, budget_for(claim.lease))
                    await answer_of(self.store.leave(claim, limit))
            except BackendError:
                self._withdraw_at = self.runtime.now() + LEAVE_EVERY
                return
            self._ledger.withdrawals.pop(claim_id, None)

    def _retire(self) -> bool:
        with self._ledger.mutex:
            if self._ledger.kept or self._ledger.waiting or self._ledger.withdrawals:
                return False
            self.mark_ended()
            return True

    def _plan(
        self, now: float
    ) -> tuple[list[Held], list[Held | Waiting], list[tuple[Held, Alarm]]]:
        """Find expired holds, entries to renew and holds to warn about; set the next scan."""
        overdue: list[Held] = []
        work: list[Held | Waiting] = []
        long: list[tuple[Held, Alarm]] = []
        with self._ledger.mutex:
            if now < self._scan_at:
                return overdue, work, long  # woken by a wake-up message: nothing is due
            next_at = self._withdraw_at
            due = False
            for held in list(self._ledger.kept.values()):  # a destructor may release one
                if (alarm := held.alarm) is not None:
                    if alarm.at <= now:
                        long.append((held, alarm))
                        held.alarm = None
                    elif alarm.at < next_at:
                        next_at = alarm.at
                if now >= held.deadline:
                    overdue.append(held)
                elif held.amending:  # rule 8
                    next_at = min(next_at, held.deadline)
                elif held.early <= now:
                    work.append(held)
                    due = due or held.due <= now
                elif held.due < next_at:
                    next_at = held.due
            for waiting in list(self._ledger.waiting.values()):
                if waiting.early <= now:
                    work.append(waiting)
                    due = due or waiting.due <= now
                elif waiting.due < next_at:
                    next_at = waiting.due
            if work and not due:  # all entries are early: not worth a request
                next_at = min(next_at, *(entry.due for entry in work))
                work = []
            self.sending = work
            self.wakes_at = self._scan_at = -NEVER if work or overdue else next_at
        return overdue, work, long

    async def _renew(self, work: list[Held | Waiting]) -> None:
        for batch in _batches(work):
            sent = self.runtime.now()
            claims = [
                entry.claim if entry.ends_by == NEVER else _capped(entry, sent) for entry in batch
            ]
            fences = [entry.fence for entry in batch]
            lease = min([claim.lease for claim in claims])
            # The request must end by the first deadline, or the loss would be reported late.
            rest = max(min([entry.deadline for entry in batch]) - sent, LEAST_BUDGET)
            try:
                budget = min(budget_for(lease), rest)
                answers = await answer_of(self.store.renew(claims, fences, budget))
            except BackendError as error:
                self._not_renewed(error, len(batch), work, lease)
                return
            now = self.runtime.now()
            lost = []
            unknown: dict[Held | Waiting, BackendError] = {}
            renewed = self._renewed
            with self._ledger.mutex:
                for entry, claim, answer in zip(batch, claims, answers, strict=True):
                    if isinstance(answer, BackendError):
                        unknown[entry] = answer
                    elif not isinstance(entry, Held):
                        self._refreshed(entry, sent, now, answer)
                    elif cause := renewed(entry, claim, sent, now, answer):
                        lost.append((entry, cause))
            for held, cause in lost:
                self._ledger.lose(held, cause)
            if unknown:  # one server of several is unreachable: the others' holds are renewed
                first = next(iter(unknown.values()))
                self._not_renewed(first, len(unknown), list(unknown), lease)

    def _not_renewed(
        self, error: BackendError, asked: int, postponed: list[Held | Waiting], lease: float
    ) -> None:
        """Apply rule 2: retry soon, and mark the holds as uncertain."""
        self._ledger.renew_errors += 1
        log.warning("lockfast: renewal of %d claims failed, will retry: %s", asked, error)
        now = self.runtime.now()
        for entry in postponed:
            _postpone(entry, now + min(1.0, lease / 20))
            if isinstance(entry, Held):
                entry.uncertain_since = now
        if self._ledger.listeners is not None:
            self._ledger.listeners.renew_failed(asked, error)

    def _renewed(
        self, held: Held, claim: Claim, sent: float, now: float, answer: Granted | Busy | Gone
    ) -> str:
        """Extend the validity of a renewed hold, or return why it is lost. Under the mutex."""
        if held.state is not HELD:
            return ""  # released meanwhile
        if not isinstance(answer, Granted) or answer.fence != held.fence:
            return "the store no longer knows it (its lease ran out there, or it was broken)"
        if now >= held.deadline:
            return held.expiry_reason()  # rule 1: the grant came too late
        # A store may grant less than it was asked for.
        held.extend_validity(sent, answer.lease if answer.lease < claim.lease else claim.lease)
        self._ledger.renewals += 1
        return ""

    def _refreshed(
        self, waiting: Waiting, sent: float, now: float, answer: Granted | Busy | Gone
    ) -> None:
        if isinstance(answer, Busy):
            waiting.still(sent, now, answer.retry_after, answer.fence)
            return
        waiting.due = waiting.early = NEVER
        if isinstance(answer, Granted):
            waiting.granted(sent, answer)
        else:
            waiting.wake(None)  # it has lost its position: it claims again, at the end


def _batches(work: list[Held | Waiting]) -> Iterator[list[Held | Waiting]]:
    for start in range(0, len(work), BATCH):
        yield work[start : start + BATCH]


def _capped(entry: Held | Waiting, now: float) -> Claim:
    """The claim with its lease cut so that it does not outlast the entry's own end."""
    claim, rest = entry.claim, entry.ends_by - now
    return claim if rest >= claim.lease else claim._replace(lease=max(rest, 0.001))


def _warn(held: Held, alarm: Alarm, now: float) -> None:
    """Apply rule 6. The stack is the current one, which shows where the owner is stuck."""
    log.warning(
        "lockfast: %s has been held for %s, longer than warn_after=%g s, by %s, fence %d. Its "
        "owner is at:\n%s",
        shown(held.claim.name),
        ago(now - held.acquired_at),
        alarm.after,
        Who.decoded(held.claim.who),
        held.fence,
        alarm.stack(),
    )


def _postpone(entry: Held | Waiting, until: float) -> None:
    if isinstance(entry, Held):
        entry.due = entry.early = min(until, entry.deadline)
    else:
        entry.due = entry.early = until
