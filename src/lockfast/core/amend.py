"""Changing a hold: extend it by hand, detach it for another process, attach one.

Requests that change the lease of one hold are sent one at a time, the keeper's renewals included
(its rule 8): of two requests under way at once, the older reply could restore a validity that the
store has shortened since. Detaching and attaching are repeated while replies are lost; the store
recognizes the claim.
"""

from __future__ import annotations

from lockfast.core.claim import ATTEMPTS, RETRY_PAUSE
from lockfast.core.keeper import budget_for
from lockfast.core.ledger import DETACHED, HELD, Held, shown
from lockfast.core.ports import Reply, answer_of
from lockfast.core.release import Releasing
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, NotHeld
from lockfast.model import Claim, Gone, Granted


class Amending(Releasing):
    """Mixin of a client: renew, detach and attach holds."""

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
        (answer,) = await answer_of(
            self.store.renew([claim], [held.fence], budget_for(claim.lease))
        )
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
        claim = held.claim

        def ask(budget: float) -> Reply[Granted | Gone]:
            nonlocal claim
            if until is not None:
                claim = held.claim._replace(lease=max(until - self.runtime.now(), 0.001))
            return self.store.transfer(claim, False, budget)

        answer: Granted | Gone = await self.answered(held.claim.lease, ask)
        return claim, answer

    async def attach(self, terms: Terms, claim_id: str, fence: int) -> Held:
        """Take over a hold that another process detached, under its fence. The request is repeated
        while replies are lost: the store knows the claim and its caller. What was taken by mistake
        (under another fence, or by a caller that was cancelled) is detached again."""
        self.refuse_if_closed()
        current, who = self.runtime.identity(terms.label)
        owner = terms.owner if terms.owner is not None else current
        # Of two callers with one text only one may get the hold, also where their hosts and pids
        # are the same (containers): the store tells them apart by this mark.
        who += " " * (5 - len(who.split(" "))) + self._new_secret()[:16]
        claim = Claim(terms.name, claim_id, who, terms.lease, terms.slots, terms.take, terms.fair)
        sent = 0.0

        def ask(budget: float) -> Reply[Granted | Gone]:
            nonlocal sent
            sent = self.runtime.now()  # validity counts from the request that was answered
            return self.store.transfer(claim, True, budget)

        if claim_id not in self.ledger.kept:  # or this client has attached it already
            try:
                answer: Granted | Gone = await self.answered(terms.lease, ask)
                now = self.runtime.now()
                if isinstance(answer, Granted) and answer.fence == fence:
                    return self.enter(terms, (claim, owner, now), sent, now, answer, False)
            except GeneratorExit:
                raise
            except BaseException:
                self.discard(claim)
                limit = budget_for(terms.lease)
                await self.runtime.shielded(self._detach_again(claim), limit)
                raise
            if isinstance(answer, Granted):
                await self._detach_again(claim)
        raise NotHeld(
            f"{shown(terms.name)} with fence {fence} cannot be taken over: its lease ran out "
            "before, or it was never detached under this name"
        )

    async def _detach_again(self, claim: Claim) -> None:
        """Give a hold back that nobody here will use, best effort: its lease ends it otherwise."""
        try:
            budget = budget_for(claim.lease) / ATTEMPTS
            await answer_of(self.store.transfer(claim, False, budget))
        except BackendError:
            self.keeper.withdraw_if_session_bound(claim)
