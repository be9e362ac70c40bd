"""The witness: checks the promises P1–P5 in every run, from outside.

The witness inspects the store after each of its steps, and the clients when they report something.
It uses none of the law's own functions, so that a broken law cannot vouch for itself. The checks
that apply to every name are here; those of a lock, a semaphore, a latch … are in its `rules`.
"""

from __future__ import annotations

from lab.simulation.network import Seen, Server
from lab.simulation.rules import Grant, Rule
from lab.simulation.world import Node, World
from lockfast.core.law import REFRESH, Row
from lockfast.core.ledger import Held, State
from lockfast.core.locks import Core

# A waiter lives six seconds without a refresh; a request under way may refresh it once more.
REMOVED_AFTER = 9.0
# How long a request of a dead client may be under way and renew its hold once more.
UNDER_WAY = 4.0


class Witness:
    def __init__(self, world: World, server: Server) -> None:
        self.world = world
        self.server = server
        self.rules: dict[str, Rule] = {}
        self.violations: list[str] = []
        self.grants: dict[str, Grant] = {}
        self.clients: list[tuple[Node, Core]] = []
        self.patience = 3 * REFRESH
        self.set_back = 0.0
        self._losses: dict[tuple[str, int], int] = {}
        self._voided: set[tuple[str, int]] = set()
        server.observe = self.observe

    def accuse(self, promise: str, what: str) -> None:
        self.violations.append(f"{promise} at {self.world.time:.3f} s: {what}")

    # ---- at the store --------------------------------------------------------------------------

    def observe(self, name: str) -> None:
        """Check a name after each step: its live holds, its queue, new grants, ended holds."""
        rule = self.rules[name]
        seen = self.server.seen(name)
        live = rule.live
        if live:
            holding = {row.id for row in seen.holds}
            for claim_id in [claim_id for claim_id in live if claim_id not in holding]:
                live.pop(claim_id).over = True
        fresh = [row for row in seen.holds if self._is_new(rule, row)]
        rule.look(seen, fresh)
        for row in fresh:
            if rule.excludes:
                self._no_other_valid_hold(rule, row)
            if rule.keeps_order(row):
                self._nobody_was_overtaken(rule, row, seen)
        self._look_at_queue(rule, seen)

    def _is_new(self, rule: Rule, row: Row) -> bool:
        """Record a hold, or the extension of its lease; return True for a new hold.

        P3: a new fence is greater than all before.
        """
        ends = row.ends / self.server.rate
        grant = rule.live.get(row.id)
        if grant is not None and grant.fence == row.fence:
            if ends != grant.ends:
                grant.ends = ends
                if not grant.again and rule.history is not None:
                    rule.history.may_expire(row.id, ends)
            return False
        known = self.grants.get(row.id)
        if known is not None and known.fence == row.fence and self.set_back:
            # Its lease had ended, and its row was not removed yet when the clock was set back.
            known.over, rule.live[row.id] = False, known
            return False
        if row.fence <= rule.last_fence:
            self.accuse("P3", f"fence {row.fence} of {row.id} after {rule.last_fence}")
        rule.last_fence = max(rule.last_fence, row.fence)
        again = known is not None
        grant = Grant(row.id, rule.name, row.fence, ends, self.world.time, again=again)
        self.grants[row.id] = rule.live[row.id] = grant
        if not again and rule.history is not None:
            rule.history.may_expire(row.id, ends)
        return True

    def _no_other_valid_hold(self, rule: Rule, row: Row) -> None:
        """P2: the holds that are still valid at their clients leave room for the new grant."""
        takes = [row.take]
        for node, core in self.clients:
            if node.dead:
                continue
            for held in core.ledger.kept.values():
                claim = held.claim
                if claim.name != rule.name or claim.id == row.id or not core.is_held(held):
                    continue
                grant = self.grants.get(claim.id)
                if grant is not None and not grant.voided:
                    takes.append(claim.take)
        if rule.clash(takes):
            self.accuse("P2", f"{row.id} was granted {rule.name} beside a hold that is still valid")

    def _nobody_was_overtaken(self, rule: Rule, row: Row, seen: Seen) -> None:
        """Fair order: no waiter that was ahead of the granted one still waits."""
        order = rule.order
        before = order[: order.index(row.id)] if row.id in order else order
        if before:
            waiting = {waiter.id for waiter in seen.fair}
            for claim_id in before:
                if claim_id in waiting:
                    self.accuse("order", f"{row.id} overtook {claim_id} on {rule.name}")

    def _look_at_queue(self, rule: Rule, seen: Seen) -> None:
        """P4: note since when the first waiter could have been served."""
        waiters = seen.fair
        rule.order = [row.id for row in waiters]
        if not waiters or not rule.fits(waiters[0], seen) or not self._well(waiters[0].id):
            rule.free_since = None
        elif rule.free_since is None:
            rule.free_since = self.world.time

    def _check_leftovers(self, rule: Rule, seen: Seen) -> None:
        """P4: holds end, also those of dead clients, and a dead client's waiter leaves the queue
        within seconds."""
        now = self.server.now()
        for row in seen.holds:
            if rule.stays(row):
                continue
            if row.ends > now + 60:
                self.accuse("P4", f"the hold {row.id} never ends")
            grant = rule.live.get(row.id)
            since = (
                0.0 if grant is None else grant.since
            )  # its client may have died while it waited
            if self._dead_for(row, since) > row.lease + UNDER_WAY:
                self.accuse("P4", f"{row.id} died long ago and still holds {rule.name}")
        for row in (*seen.fair, *seen.unfair):
            gone = self._dead_for(row)
            if gone > REMOVED_AFTER:
                self.accuse("P4", f"{row.id} died {gone:.1f} s ago and is still in the queue")

    def _dead_for(self, row: Row, since: float = 0.0) -> float:
        node = self.server.nodes[row.id]
        if not node.dead:
            return 0.0
        return self.world.time - max(node.died_at, since) - self.set_back

    def _well(self, claim_id: str) -> bool:
        """Return True if the client of a claim runs and is connected, and the server is up.

        The waiter of another client stays in the queue for a while, and may block it.
        """
        node = self.server.nodes[claim_id]
        now = self.world.time
        return self.server.up and not node.dead and max(node.paused_until, node.cut_until) <= now

    def patrol(self) -> None:
        """Check, at intervals, that nobody waits for a free name, and that losses are reported."""
        for name, rule in self.rules.items():
            seen = self.server.seen(name)
            self._look_at_queue(rule, seen)
            if rule.free_since is not None and self.server.up:
                waited = self.world.time - rule.free_since
                if waited > self.patience:
                    self.accuse("P4", f"{name} is free for {waited:.1f} s while {rule.order} wait")
                    rule.free_since = self.world.time
            self._check_leftovers(rule, seen)
        for node, core in self.clients:
            if node.dead or node.paused_until > self.world.time - 1.0:
                continue
            for held in core.ledger.kept.values():
                if node.now() > held.deadline + 1.0:
                    self.accuse(
                        "P5", f"{held.claim.id} ended a second ago, and no loss was reported"
                    )

    # ---- at the clients ------------------------------------------------------------------------

    def released(self, held: Held) -> None:
        """P5: after a release that reported success, the store has the hold no more."""
        grant = self.grants.get(held.claim.id)
        if grant is None or grant.voided or grant.fence != held.fence:
            return  # a doubled claim that arrived later got a grant which no client uses
        self._recheck(grant)
        if not grant.over:
            self.accuse("P5", f"{held.claim.id} was reported released and is still held")

    def gave_up(self, node: Node, claim_ids: list[str]) -> None:
        """P5: a while after a cancelled or refused acquire, without other faults, nothing is left
        of it."""
        if node.dead or node.paused_until or node.cut_until or self.server.restarts:
            return
        for name, rule in self.rules.items():
            if any(claim_id in rule.takes for claim_id in claim_ids):
                for row in (row for kind in self.server.seen(name) for row in kind):
                    if row.id in claim_ids:
                        self.accuse("P5", f"{row.id} gave up a second ago and is still there")

    def loss_reported(self, held: Held) -> None:
        """P5: a loss is reported once."""
        key = (held.claim.name, held.fence)
        count = self._losses[key] = self._losses.get(key, 0) + 1
        if count > 1:
            self.accuse("P5", f"the loss of {held.claim.id} was reported {count} times")

    def _recheck(self, grant: Grant) -> None:
        if all(row.id != grant.claim_id for row in self.server.seen(grant.name).holds):
            grant.over = True

    def void_all(self) -> None:
        """Void all grants, since the store lost its data. Clients keep valid holds until they learn
        of that, and only the fence protects."""
        for rule in self.rules.values():
            for claim_id, grant in list(rule.live.items()):
                self.void(claim_id)
                grant.over = True
            rule.forgotten()

    def failed_over(self, forgets: bool) -> None:
        """Compare the records with the data of the new master. If it may lack valid holds
        (``forgets``), only the fence protects; if not, valid holds are checked as before."""
        if forgets:
            self.void_all()
        for name, rule in self.rules.items():
            rule.order, rule.free_since = [], None
            rows = {row.id: row for row in self.server.seen(name).holds}
            for claim_id in [claim_id for claim_id in rule.live if claim_id not in rows]:
                rule.live.pop(claim_id).over = True
                if rule.history is not None:
                    rule.history.broken(claim_id, self.world.time)
            for row in rows.values():
                known = self.grants[row.id]
                if row.id not in rule.live:
                    # It had been released, or granted anew under another fence, and is back.
                    known = Grant(row.id, name, row.fence, known.ends, known.since, again=True)
                    known.voided = True
                    self._voided.add((name, row.fence))
                    self.grants[row.id] = rule.live[row.id] = known
                self._is_new(rule, row)

    def clock_was_set(self, step: float) -> None:
        """Void all grants if the wall clock measures leases: setting it ends or prolongs them, so
        that a client's validity and the lease differ, and only the fence protects."""
        if self.server.leases_by_wall:
            self.set_back += max(-step, 0.0)
            self.patience += max(-step, 0.0)
            for claim_id in list(self.grants):
                self.void(claim_id)

    def is_voided(self, held: Held) -> bool:
        return (held.claim.name, held.fence) in self._voided

    def void(self, claim_id: str) -> None:
        grant = self.grants.get(claim_id)
        if grant is not None and not grant.over:
            grant.voided = True
            self._voided.add((grant.name, grant.fence))
            history = self.rules[grant.name].history
            if history is not None:
                history.broken(claim_id, self.world.time)

    def finish(self, stuck: list[str]) -> None:
        """P4, P5: after the quiet time, every worker was served and nothing is left behind."""
        for worker in stuck:
            self.accuse("P4", f"{worker} still waits after a long quiet time")
        for node, core in self.clients:
            for held in core.ledger.by_owner.values():
                if not node.dead and held.state is State.HELD and not core.is_held(held):
                    self.accuse("P5", f"{held.claim.id} ended, and its loss was never reported")
        live = {
            claim_id
            for _, core in self.clients
            for claim_id in (*core.ledger.kept, *core.ledger.waiting)
        }
        for name, rule in self.rules.items():
            seen = self.server.seen(name)
            for row in (*seen.holds, *seen.fair):
                if row.id not in live and not rule.stays(row):
                    self.accuse("P4", f"{row.id} was left behind on {name}")
            if rule.history is not None:
                verdict = rule.history.check()
                if verdict.ok is False:
                    self.accuse("history", f"{name}: {verdict.reason}")
