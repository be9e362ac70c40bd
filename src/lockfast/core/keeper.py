"""The keeper (elsewhere called a watchdog): renews what is held, refreshes the places of those who
wait, notices what is lost, and hears the bells. One per client, whatever it holds or waits for.

The rules:

1. On waking up, the deadline comes first: what our own clock proves lost is lost, whatever an
   answer that is still under way may say.
2. An error in renewal is not a loss. It is tried again until the deadline, then it is one, once.
   Until then the hold is in doubt, which its owner can see.
3. Batches: a hundred or so claims a step keep a store from being blocked for others.
4. Nothing on the fast path wakes the keeper: it sleeps until the earliest thing is due, and a hold
   that is released before that is simply not there any more.
5. A keeper with nothing to do ends, and one that died is noticed: the next hold starts another.
6. A hold that lasts longer than ``warn_after`` is told of, once, with the stack of who acquired it.
7. A claim that was given up while the store did not answer may still stand, or come to stand, in
   the queue, and would be granted to nobody. So the keeper goes on leaving it until it is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lockfast.core.explain import ago
from lockfast.core.law import FIRST_LEASE, WAITER_LEASE
from lockfast.core.ledger import HELD, Alarm, Held, Ledger, Waiting, shown
from lockfast.core.ports import Backend, KeeperRuntime
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Gone, Granted, Who

BATCH = 125
IDLE = 20.0
MAX_BUDGET, LEAST_BUDGET = 5.0, 0.001
STUMBLE = 0.5
# How often, and for how long, to leave what was given up: so long could a place and its grant last.
LEAVE_EVERY = 0.5
LEAVE_FOR = WAITER_LEASE + FIRST_LEASE
LEAVE_BUDGET = 0.25
NEVER = float("inf")

log = logging.getLogger("lockfast")


def budget_for(lease: float) -> float:
    """How long one operation may take: a sixth of the lease, so that several fit before it ends."""
    return lease / 6 if lease < 6 * MAX_BUDGET else MAX_BUDGET


class Keeper:
    def __init__(self, runtime: KeeperRuntime, backend: Backend, ledger: Ledger) -> None:
        self.runtime = runtime
        self.backend = backend
        self._ledger = ledger
        self.client: object = None
        self._running = False
        self._stopped = False
        self.wakes_at = NEVER
        self._looks_at = -NEVER
        self._leaves_at = NEVER
        self.sending: list[Held | Waiting] = []  # what it is in the middle of renewing
        # Some stores know when all that is held may be lost at once, and say so.
        on_uncertain = getattr(backend, "on_uncertain", None)
        self._in_session = on_uncertain is not None
        self._leave_for = LEAVE_FOR
        if on_uncertain is not None:
            on_uncertain(self.mark_uncertain)
            # A session that we could not reach for so long has ended.
            self._leave_for += 2 * backend.capabilities.session

    @property
    def running(self) -> bool:
        return self._running

    def mind(self, due: float) -> None:
        """Something is in the ledger that is due then. Not under the mutex."""
        if due >= self.wakes_at:
            return  # rule 4: the common case
        with self._ledger.mutex:
            if due >= self.wakes_at or self._stopped:
                return
            self.wakes_at = self._looks_at = due
            started, self._running = self._running, True
        if started:
            self.backend.interrupt()
        else:
            self.runtime.spawn("lockfast-keeper", self.run)

    def mark_uncertain(self) -> None:
        """Whether anything is still held is unknown: ask, now."""
        now = self.runtime.now()
        with self._ledger.mutex:
            for held in self._ledger.kept.values():
                held.due = held.early = held.uncertain_since = now
        self.mind(now)

    def stop(self) -> None:
        """End it; holds are no longer renewed."""
        with self._ledger.mutex:
            self._stopped = True
        self.backend.interrupt()

    def died(self) -> None:
        """Its thread is no more (a fork, a killed thread): the next `mind` starts another."""
        self._running = False
        self.wakes_at = NEVER

    async def run(self) -> None:
        idle_since: float | None = None
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
                    elif now - idle_since >= IDLE and self._retire():
                        return
                    # From now on, not from when we began: leaving what was given up takes time.
                    rest = self.wakes_at - self.runtime.now()
                    await self.backend.listen(IDLE if rest == NEVER else max(rest, 0.0))
                except Exception:  # whatever it is, the holds must be kept: say it, and go on
                    log.exception("lockfast: the keeper stumbled, and goes on")
                    await self.runtime.sleep(STUMBLE)
        finally:
            self.died()

    async def _work(self, now: float) -> bool:
        """Do what is due; whether there was anything."""
        if self._ledger.abandoned and now >= self._leaves_at:
            await self._leave_abandoned(now)
            now = self.runtime.now()
        overdue, work, long = self._plan(now)
        for held in overdue:
            self._ledger.lose(held, held.why_over())
            self.see_off(held.claim)
        for held, alarm in long:
            _warn(held, alarm, now)
        if work:
            try:
                await self._renew(work)
            finally:
                self.sending = []
        return bool(overdue or work)

    def abandon(self, claim: Claim) -> None:
        """Nobody wants it any more, and the store did not answer when it was told so."""
        now = self.runtime.now()
        with self._ledger.mutex:
            self._ledger.abandoned[claim.id] = (claim, now + self._leave_for)
            self._leaves_at = min(self._leaves_at, now + LEAVE_EVERY)
        self.mind(now + LEAVE_EVERY)

    def see_off(self, claim: Claim) -> None:
        """It is over for us, and whether the store knows that is unknown. A lease ends it there;
        where holds end with a session, nothing does as long as our session lives."""
        if self._in_session:
            self.abandon(claim)

    async def _leave_abandoned(self, now: float) -> None:
        """Rule 7. One that is not answered is enough to know that the store is still away."""
        self._leaves_at = NEVER
        for claim_id, (claim, until) in list(self._ledger.abandoned.items()):
            try:
                if now < until:
                    await self.backend.leave(claim, min(LEAVE_BUDGET, budget_for(claim.lease)))
            except BackendError:
                self._leaves_at = self.runtime.now() + LEAVE_EVERY
                return
            self._ledger.abandoned.pop(claim_id, None)

    def _retire(self) -> bool:
        with self._ledger.mutex:
            if self._ledger.kept or self._ledger.waiting or self._ledger.abandoned:
                return False
            self.died()
            return True

    def _plan(
        self, now: float
    ) -> tuple[list[Held], list[Held | Waiting], list[tuple[Held, Alarm]]]:
        """What is over, what to send now, what lasts long; sets when to look again."""
        overdue: list[Held] = []
        work: list[Held | Waiting] = []
        long: list[tuple[Held, Alarm]] = []
        with self._ledger.mutex:
            if now < self._looks_at:
                return overdue, work, long  # woken by a bell: nothing of ours is due
            next_at = self._leaves_at
            due = False
            for held in self._ledger.kept.values():
                if (alarm := held.alarm) is not None:
                    if alarm.at <= now:
                        long.append((held, alarm))
                        held.alarm = None
                    elif alarm.at < next_at:
                        next_at = alarm.at
                if now >= held.deadline:
                    overdue.append(held)
                elif held.early <= now:
                    work.append(held)
                    due = due or held.due <= now
                elif held.due < next_at:
                    next_at = held.due
            for waiting in self._ledger.waiting.values():
                if waiting.early <= now:
                    work.append(waiting)
                    due = due or waiting.due <= now
                elif waiting.due < next_at:
                    next_at = waiting.due
            if work and not due:  # all of it early: not worth sending for
                next_at = min(next_at, *(entry.due for entry in work))
                work = []
            self.sending = work
            self.wakes_at = self._looks_at = -NEVER if work or overdue else next_at
        return overdue, work, long

    async def _renew(self, work: list[Held | Waiting]) -> None:
        for batch in _batches(work):
            sent = self.runtime.now()
            claims = [
                entry.claim if entry.ends_by == NEVER else _capped(entry, sent) for entry in batch
            ]
            fences = [entry.fence for entry in batch]
            lease = min([claim.lease for claim in claims])
            # A loss is told on time: who waits for an answer does not look at the clock.
            rest = max(min([entry.deadline for entry in batch]) - sent, LEAST_BUDGET)
            try:
                answers = await self.backend.renew(claims, fences, min(budget_for(lease), rest))
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
            if unknown:  # one server of several is away: the others' are renewed all the same
                first = next(iter(unknown.values()))
                self._not_renewed(first, len(unknown), list(unknown), lease)

    def _not_renewed(
        self, error: BackendError, asked: int, postponed: list[Held | Waiting], lease: float
    ) -> None:
        """Rule 2."""
        self._ledger.renew_errors += 1
        log.warning("lockfast: not renewed (%d), will ask again: %s", asked, error)
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
        """Believe in it anew, or say why it is lost. Under the mutex."""
        if held.state is not HELD:
            return ""  # released meanwhile
        if not isinstance(answer, Granted) or answer.fence != held.fence:
            return "the store no longer knows it (its lease ran out there, or it was broken)"
        if now >= held.deadline:
            return held.why_over()  # rule 1: the good answer came too late
        # A store may give less than it was asked for.
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
            waiting.wake(None)  # it asks again, and takes a new place


def _batches(work: list[Held | Waiting]) -> Iterator[list[Held | Waiting]]:
    for start in range(0, len(work), BATCH):
        yield work[start : start + BATCH]


def _capped(entry: Held | Waiting, now: float) -> Claim:
    """What is to end at some time is not renewed for longer."""
    claim, rest = entry.claim, entry.ends_by - now
    return claim if rest >= claim.lease else claim._replace(lease=max(rest, 0.001))


def _warn(held: Held, alarm: Alarm, now: float) -> None:
    """Rule 6. The stack is that of now: where it is stuck, if it is."""
    log.warning(
        "lockfast: %s has been held for %s, longer than warn_after=%g s, by %s, fence %d. Who "
        "acquired it is here:\n%s",
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
