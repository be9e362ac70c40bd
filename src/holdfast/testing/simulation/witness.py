"""What must be true in every run: the promises P1–P5, seen from outside.

The witness looks at the store after each of its steps and at the clients when they speak. It uses
none of the law's own functions, so that a broken law cannot vouch for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.law import REFRESH, Row
from holdfast.core.ledger import Held, State
from holdfast.core.locks import Core
from holdfast.testing.history import History
from holdfast.testing.simulation.network import Seen, Server
from holdfast.testing.simulation.world import Node, World

# A place lives six seconds without a refresh; a request that is under way may refresh it once more.
BURIED_AFTER = 9.0


@dataclass(slots=True)
class Grant:
    """One grant, as the store showed it."""

    claim_id: str
    name: str
    fence: int
    take: int
    ends: float  # true time at which the store's lease ends, as last extended
    over: bool = False  # no longer at the store
    # Not the first of its claim: a doubled request, or asked again after a pause.
    again: bool = False
    # Broken by an operator or forgotten by the store: belief may outlive it until it is told.
    voided: bool = False


@dataclass(slots=True)
class Queue:
    """What was last seen of one name's queue."""

    order: list[str] = field(default_factory=list)
    free_since: float | None = None


class Witness:
    def __init__(self, world: World, server: Server, slots: dict[str, int]) -> None:
        self.world = world
        self.server = server
        self.slots = slots
        self.violations: list[str] = []
        self.grants: dict[str, Grant] = {}
        self.histories = {name: History(count) for name, count in slots.items()}
        self.clients: list[tuple[Node, Core]] = []
        self.patience = 3 * REFRESH
        self.set_back = 0.0
        self._last_fence: dict[str, int] = {}
        self._queues = {name: Queue() for name in slots}
        self._told: dict[int, int] = {}
        self._voided: set[int] = set()
        server.observe = self.observe

    def accuse(self, promise: str, what: str) -> None:
        self.violations.append(f"{promise} at {self.world.time:.3f} s: {what}")

    # ---- at the store --------------------------------------------------------------------------

    def observe(self, name: str) -> None:
        """After each step on a name: its live holds, its queue, what is new, what is gone."""
        seen = self.server.seen(name)
        holds = seen.holds
        if sum(row.take for row in holds) > self.slots[name]:
            self.accuse("P1", f"{[row.id for row in holds]} hold {name} beside each other")
        live = {row.id for row in holds}
        for grant in self.grants.values():
            if grant.name == name and not grant.over and grant.claim_id not in live:
                grant.over = True
        for row in holds:
            self._see(name, row, seen)
        self._look_at_queue(name, seen)

    def _see(self, name: str, row: Row, seen: Seen) -> None:
        ends = row.ends / self.server.rate
        grant = self.grants.get(row.id)
        if grant is not None and not grant.over and grant.fence == row.fence:
            if ends != grant.ends:
                grant.ends = ends
                if not grant.again:
                    self.histories[name].may_expire(row.id, ends)
            return
        last = self._last_fence.get(name, 0)
        if row.fence <= last:
            self.accuse("P3", f"fence {row.fence} of {row.id} after {last}")
        self._last_fence[name] = max(last, row.fence)
        again = grant is not None
        self.grants[row.id] = Grant(row.id, name, row.fence, row.take, ends, again=again)
        if not again:
            self.histories[name].may_expire(row.id, ends)
        self._nobody_else_believes(name, row)
        if row.fair:
            self._nobody_was_overtaken(name, row, seen)

    def _nobody_else_believes(self, name: str, row: Row) -> None:
        """P2: when the store grants, those who still believe leave room for it."""
        taken = row.take
        for node, core in self.clients:
            if node.dead:
                continue
            for held in core.ledger.kept.values():
                if held.claim.name != name or held.claim.id == row.id or not core.is_held(held):
                    continue
                grant = self.grants.get(held.claim.id)
                if grant is not None and not grant.voided:
                    taken += held.claim.take
        if taken > self.slots[name]:
            self.accuse("P2", f"{row.id} was granted {name} while another still believed")

    def _nobody_was_overtaken(self, name: str, row: Row, seen: Seen) -> None:
        """Fair order: who was granted stood before everybody who still stands there."""
        order = self._queues[name].order
        before = order[: order.index(row.id)] if row.id in order else order
        waiting = {place.id for place in seen.fair}
        for claim_id in before:
            if claim_id in waiting:
                self.accuse("order", f"{row.id} overtook {claim_id} on {name}")

    def _look_at_queue(self, name: str, seen: Seen) -> None:
        """P4: free slots and a live waiter do not stay beside each other for long."""
        queue = self._queues[name]
        places = seen.fair
        queue.order = [row.id for row in places]
        taken = sum(row.take for row in seen.holds)
        if not places or places[0].take > self.slots[name] - taken or not self._well(places[0].id):
            queue.free_since = None
        elif queue.free_since is None:
            queue.free_since = self.world.time

    def _bury_check(self, seen: Seen) -> None:
        """Holds end, and who died some seconds ago stands in the queue no more."""
        now = self.server.now()
        for row in seen.holds:
            if row.ends > now + 60:
                self.accuse("P4", f"the hold {row.id} never ends")
        for row in (*seen.fair, *seen.unfair):
            node = self.server.nodes[row.id]
            gone = self.world.time - node.died_at if node.dead else 0.0
            if gone > BURIED_AFTER + self.set_back:
                self.accuse("P4", f"{row.id} died {gone:.1f} s ago and still stands in the queue")

    def _well(self, claim_id: str) -> bool:
        """Is that client running and connected? One that is not keeps its place for a while."""
        node = self.server.nodes[claim_id]
        now = self.world.time
        return self.server.up and not node.dead and max(node.paused_until, node.cut_until) <= now

    def patrol(self) -> None:
        """Every so often: does anybody wait for what is free, or forever?"""
        for name, queue in self._queues.items():
            seen = self.server.seen(name)
            self._look_at_queue(name, seen)
            if queue.free_since is not None and self.server.up:
                waited = self.world.time - queue.free_since
                if waited > self.patience:
                    self.accuse("P4", f"{name} is free for {waited:.1f} s while {queue.order} wait")
                    queue.free_since = self.world.time
            self._bury_check(seen)
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

    def gave_up(self, node: Node, name: str, claim_id: str) -> None:
        """A while after a cancelled acquire where all else is well: nothing is left of it."""
        if node.dead or node.paused_until or node.cut_until or self.server.restarts:
            return
        seen = self.server.seen(name)
        if any(row.id == claim_id for kind in seen for row in kind):
            self.accuse("P5", f"{claim_id} was cancelled a second ago and is still there")

    def told_lost(self, held: Held) -> None:
        count = self._told[held.fence] = self._told.get(held.fence, 0) + 1
        if count > 1:
            self.accuse("P5", f"the loss of {held.claim.id} was told {count} times")

    def _recheck(self, grant: Grant) -> None:
        if all(row.id != grant.claim_id for row in self.server.seen(grant.name).holds):
            grant.over = True

    def void_all(self) -> None:
        """The store forgot everything: belief outlives it until told, the fence alone protects."""
        for grant in self.grants.values():
            if not grant.over:
                grant.over = grant.voided = True
                self._voided.add(grant.fence)
                self.histories[grant.name].broken(grant.claim_id, self.world.time)
        for queue in self._queues.values():
            queue.order, queue.free_since = [], None

    def clock_was_set(self, step: float) -> None:
        """Where the wall clock measures leases, setting it ends or prolongs them: belief and lease
        part, and the fence alone protects."""
        if self.server.leases_by_wall:
            self.set_back += max(-step, 0.0)
            self.patience += max(-step, 0.0)
            for claim_id in list(self.grants):
                self.void(claim_id)

    def is_voided(self, fence: int) -> bool:
        return fence in self._voided

    def void(self, claim_id: str) -> None:
        grant = self.grants.get(claim_id)
        if grant is not None and not grant.over:
            grant.voided = True
            self._voided.add(grant.fence)
            self.histories[grant.name].broken(claim_id, self.world.time)

    def finish(self, stuck: list[str]) -> None:
        """After the quiet time at the end: everybody was served and nothing is left behind."""
        for who in stuck:
            self.accuse("P4", f"{who} still waits after a long quiet time")
        for node, core in self.clients:
            for held in core.ledger.by_owner.values():
                if not node.dead and held.state is State.HELD and not core.is_held(held):
                    self.accuse("P5", f"{held.claim.id} is over and was never told")
        for name in self.slots:
            seen = self.server.seen(name)
            live = {
                claim_id
                for _, core in self.clients
                for claim_id in (*core.ledger.kept, *core.ledger.waiting)
            }
            for row in (*seen.holds, *seen.fair):
                if row.id not in live:
                    self.accuse("P4", f"{row.id} was left behind on {name}")
        for name, history in self.histories.items():
            verdict = history.check()
            if verdict.ok is False:
                self.accuse("history", f"{name}: {verdict.reason}")
