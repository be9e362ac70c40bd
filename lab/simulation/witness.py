"""What must be true in every run: the promises P1–P5, seen from outside.

The witness looks at the store after each of its steps and at the clients when they speak. It uses
none of the law's own functions, so that a broken law cannot vouch for itself. What is true of every
name is here; what a lock, a semaphore, a latch … may do is in its `rules`.
"""

from __future__ import annotations

from lab.simulation.network import Seen, Server
from lab.simulation.rules import Grant, Rule
from lab.simulation.world import Node, World
from lockfast.core.law import REFRESH, Row
from lockfast.core.ledger import Held, State
from lockfast.core.locks import Core

# A place lives six seconds without a refresh; a request that is under way may refresh it once more.
BURIED_AFTER = 9.0
# How long a request of a client that died may be under way and renew its hold once more.
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
        self._told: dict[tuple[str, int], int] = {}
        self._voided: set[tuple[str, int]] = set()
        server.observe = self.observe

    def accuse(self, promise: str, what: str) -> None:
        self.violations.append(f"{promise} at {self.world.time:.3f} s: {what}")

    # ---- at the store --------------------------------------------------------------------------

    def observe(self, name: str) -> None:
        """After each step on a name: its live holds, its queue, what is new, what is gone."""
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
                self._nobody_else_believes(rule, row)
            if rule.keeps_order(row):
                self._nobody_was_overtaken(rule, row, seen)
        self._look_at_queue(rule, seen)

    def _is_new(self, rule: Rule, row: Row) -> bool:
        """Write down a hold, or until when its lease was extended. P3: a new fence is greater."""
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
            # Its lease had ended and was not cleared away yet when the clock was set back.
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

    def _nobody_else_believes(self, rule: Rule, row: Row) -> None:
        """P2: when the store grants, those who still believe leave room for it."""
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
            self.accuse("P2", f"{row.id} was granted {rule.name} while another still believed")

    def _nobody_was_overtaken(self, rule: Rule, row: Row, seen: Seen) -> None:
        """Fair order: who was granted stood before everybody who still stands there."""
        order = rule.order
        before = order[: order.index(row.id)] if row.id in order else order
        if before:
            waiting = {waiter.id for waiter in seen.fair}
            for claim_id in before:
                if claim_id in waiting:
                    self.accuse("order", f"{row.id} overtook {claim_id} on {rule.name}")

    def _look_at_queue(self, rule: Rule, seen: Seen) -> None:
        """P4: free slots and a live waiter do not stay beside each other for long."""
        waiters = seen.fair
        rule.order = [row.id for row in waiters]
        if not waiters or not rule.fits(waiters[0], seen) or not self._well(waiters[0].id):
            rule.free_since = None
        elif rule.free_since is None:
            rule.free_since = self.world.time

    def _bury_check(self, rule: Rule, seen: Seen) -> None:
        """Holds end, also a dead reader's or permit's, and who died some seconds ago stands in the
        queue no more."""
        now = self.server.now()
        for row in seen.holds:
            if rule.stays(row):
                continue
            if row.ends > now + 60:
                self.accuse("P4", f"the hold {row.id} never ends")
            grant = rule.live.get(row.id)
            since = 0.0 if grant is None else grant.since  # perhaps it died while it waited
            if self._dead_for(row, since) > row.lease + UNDER_WAY:
                self.accuse("P4", f"{row.id} died long ago and still holds {rule.name}")
        for row in (*seen.fair, *seen.unfair):
            gone = self._dead_for(row)
            if gone > BURIED_AFTER:
                self.accuse("P4", f"{row.id} died {gone:.1f} s ago and still stands in the queue")

    def _dead_for(self, row: Row, since: float = 0.0) -> float:
        node = self.server.nodes[row.id]
        if not node.dead:
            return 0.0
        return self.world.time - max(node.died_at, since) - self.set_back

    def _well(self, claim_id: str) -> bool:
        """Is that client running and connected? One that is not keeps its place for a while."""
        node = self.server.nodes[claim_id]
        now = self.world.time
        return self.server.up and not node.dead and max(node.paused_until, node.cut_until) <= now

    def patrol(self) -> None:
        """Every so often: does anybody wait for what is free, or forever?"""
        for name, rule in self.rules.items():
            seen = self.server.seen(name)
            self._look_at_queue(rule, seen)
            if rule.free_since is not None and self.server.up:
                waited = self.world.time - rule.free_since
                if waited > self.patience:
                    self.accuse("P4", f"{name} is free for {waited:.1f} s while {rule.order} wait")
                    rule.free_since = self.world.time
            self._bury_check(rule, seen)
        for node, core in self.clients:
            if node.dead or node.paused_until > self.world.time - 1.0:
                continue
            for held in core.ledger.kept.values():
                if node.now() > held.deadline + 1.0:
                    self.accuse("P5", f"{held.claim.id} is over for a second and nobody was told")

    # ---- at the clients ------------------------------------------------------------------------

    def released(self, held: Held) -> None:
        """P5: a release that says "released" ended the hold itself, and nobody else had it
        since."""
        grant = self.grants.get(held.claim.id)
        if grant is None or grant.voided or grant.fence != held.fence:
            return  # a doubled claim that arrived later made a grant that nobody believes in
        self._recheck(grant)
        if not grant.over:
            self.accuse("P5", f"{held.claim.id} was reported released and is still held")

    def gave_up(self, node: Node, claim_ids: list[str]) -> None:
        """A while after an acquire that was cancelled or refused, where all else is well: nothing
        is left of it."""
        if node.dead or node.paused_until or node.cut_until or self.server.restarts:
            return
        for name, rule in self.rules.items():
            if any(claim_id in rule.takes for claim_id in claim_ids):
                for row in (row for kind in self.server.seen(name) for row in kind):
                    if row.id in claim_ids:
                        self.accuse("P5", f"{row.id} gave up a second ago and is still there")

    def told_lost(self, held: Held) -> None:
        key = (held.claim.name, held.fence)
        count = self._told[key] = self._told.get(key, 0) + 1
        if count > 1:
            self.accuse("P5", f"the loss of {held.claim.id} was told {count} times")

    def _recheck(self, grant: Grant) -> None:
        if all(row.id != grant.claim_id for row in self.server.seen(grant.name).holds):
            grant.over = True

    def void_all(self) -> None:
        """The store forgot everything: belief outlives it until told, the fence alone protects."""
        for rule in self.rules.values():
            for claim_id, grant in list(rule.live.items()):
                self.void(claim_id)
                grant.over = True
            rule.forgotten()

    def failed_over(self, forgets: bool) -> None:
        """Another server is the master, and has what it has. Where it may have forgotten what was
        believed (``forgets``), the fence alone protects. Where not, belief is judged as ever."""
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
                    # It had been released, or extended under another fence, and stands again.
                    known = Grant(row.id, name, row.fence, known.ends, known.since, again=True)
                    known.voided = True
                    self._voided.add((name, row.fence))
                    self.grants[row.id] = rule.live[row.id] = known
                self._is_new(rule, row)

    def clock_was_set(self, step: float) -> None:
        """Where the wall clock measures leases, setting it ends or prolongs them: belief and lease
        part, and the fence alone protects."""
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
        """After the quiet time at the end: everybody was served and nothing is left behind."""
        for who in stuck:
            self.accuse("P4", f"{who} still waits after a long quiet time")
        for node, core in self.clients:
            for held in core.ledger.by_owner.values():
                if not node.dead and held.state is State.HELD and not core.is_held(held):
                    self.accuse("P5", f"{held.claim.id} is over and was never told")
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
