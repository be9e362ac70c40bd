"""What must be true in every run: the promises P1–P5, seen from outside.

The witness looks at the store after each of its steps and at the clients when they speak. It uses
none of the law's own functions, so that a broken law cannot vouch for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.backends.memory import NameBook
from holdfast.core.law import REFRESH, Row
from holdfast.core.ledger import Held, State
from holdfast.core.locks import Core
from holdfast.testing.history import History
from holdfast.testing.simulation.network import Server
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
        self._last_fence = 0
        self._queues = {name: Queue() for name in slots}
        self._told: dict[int, int] = {}
        self._voided: set[int] = set()
        server.observe = self.observe

    def accuse(self, promise: str, what: str) -> None:
        self.violations.append(f"{promise} at {self.world.time:.3f} s: {what}")

    # ---- at the store --------------------------------------------------------------------------

    def observe(self, name: str) -> None:
        """After each step on a name: its live holds, its queue, what is new, what is gone."""
        book = self.server.store._names.get(name)
        now = self.server.now()
        holds = [row for row in book._holds.values() if row.ends > now] if book else []
        if sum(row.take for row in holds) > self.slots[name]:
            self.accuse("P1", f"{[row.id for row in holds]} hold {name} beside each other")
        live = {row.id for row in holds}
        for grant in self.grants.values():
            if grant.name == name and not grant.over and grant.claim_id not in live:
                grant.over = True
        for row in holds:
            self._see(name, row, book)
        self._look_at_queue(name, book, now)

    def _see(self, name: str, row: Row, book: NameBook | None) -> None:
        ends = row.ends / self.server.rate
        grant = self.grants.get(row.id)
        if grant is not None and not grant.over and grant.fence == row.fence:
            if ends != grant.ends:
                grant.ends = ends
                if not grant.again:
                    self.histories[name].may_expire(row.id, ends)
            return
        if row.fence <= self._last_fence:
            self.accuse("P3", f"fence {row.fence} of {row.id} after {self._last_fence}")
        self._last_fence = max(self._last_fence, row.fence)
        again = grant is not None
        self.grants[row.id] = Grant(row.id, name, row.fence, row.take, ends, again=again)
        if not again:
            self.histories[name].may_expire(row.id, ends)
        self._nobody_else_believes(name, row)
        if row.fair and book is not None:
            self._nobody_was_overtaken(name, row, book)

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

    def _nobody_was_overtaken(self, name: str, row: Row, book: NameBook) -> None:
        """Fair order: who was granted stood before everybody who still stands there."""
        order = self._queues[name].order
        before = order[: order.index(row.id)] if row.id in order else order
        waiting = book._places[True]
        now = self.server.now()
        for claim_id in before:
            place = waiting.get(claim_id)
            if place is not None and place.ends > now:
                self.accuse("order", f"{row.id} overtook {claim_id} on {name}")

    def _look_at_queue(self, name: str, book: NameBook | None, now: float) -> None:
        """P4: free slots and a live waiter do not stay beside each other for long."""
        queue = self._queues[name]
        places = [row for row in book._places[True].values() if row.ends > now] if book else []
        queue.order = [row.id for row in places]
        taken = sum(row.take for row in book._holds.values() if row.ends > now) if book else 0
        if not places or places[0].take > self.slots[name] - taken or not self._well(places[0].id):
            queue.free_since = None
        elif queue.free_since is None:
            queue.free_since = self.world.time

    def _bury_check(self, book: NameBook, now: float) -> None:
        """Holds end, and who died some seconds ago stands in the queue no more."""
        for row in book._holds.values():
            if row.ends > now + 60:
                self.accuse("P4", f"the hold {row.id} never ends")
        for row in (*book._places[True].values(), *book._places[False].values()):
            node = self.server.ears[row.id].node
            gone = self.world.time - node.died_at if node.dead else 0.0
            if gone > BURIED_AFTER and row.ends > now:
                self.accuse("P4", f"{row.id} died {gone:.1f} s ago and still stands in the queue")

    def _well(self, claim_id: str) -> bool:
        """Is that client running and connected? One that is not keeps its place for a while."""
        node = self.server.ears[claim_id].node
        now = self.world.time
        return self.server.up and not node.dead and max(node.paused_until, node.cut_until) <= now

    def patrol(self) -> None:
        """Every so often: does anybody wait for what is free, or forever?"""
        now = self.server.now()
        for name, queue in self._queues.items():
            book = self.server.store._names.get(name)
            self._look_at_queue(name, book, now)
            if queue.free_since is not None and self.server.up:
                waited = self.world.time - queue.free_since
                if waited > self.patience:
                    self.accuse("P4", f"{name} is free for {waited:.1f} s while {queue.order} wait")
                    queue.free_since = self.world.time
            if book:
                self._bury_check(book, now)
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
        book = self.server.store._names.get(name)
        if book is not None and (claim_id in book._holds or book.place(claim_id) is not None):
            self.accuse("P5", f"{claim_id} was cancelled a second ago and is still there")

    def told_lost(self, held: Held) -> None:
        count = self._told[held.fence] = self._told.get(held.fence, 0) + 1
        if count > 1:
            self.accuse("P5", f"the loss of {held.claim.id} was told {count} times")

    def _recheck(self, grant: Grant) -> None:
        book = self.server.store._names.get(grant.name)
        row = book._holds.get(grant.claim_id) if book else None
        if row is None or row.ends <= self.server.now():
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
            book = self.server.store._names.get(name)
            if book is not None:
                book.open()
                rows = (*book._holds.values(), *book._places[True].values())
                left = [row.id for row in rows if row.ends > book.now]
                live = {
                    claim_id
                    for _, core in self.clients
                    for claim_id in (*core.ledger.kept, *core.ledger.waiting)
                }
                for claim_id in left:
                    if claim_id not in live:
                        self.accuse("P4", f"{claim_id} was left behind on {name}")
        for name, history in self.histories.items():
            verdict = history.check()
            if verdict.ok is False:
                self.accuse("history", f"{name}: {verdict.reason}")
