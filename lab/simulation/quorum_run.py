"""One run of one seed on a quorum: thirty virtual seconds of faults, then quiet.

The witness does not use the law of slots. It observes the clients: when a claim is granted, no
other client has a valid hold that excludes it (P1, P2), and its fence is unique and above every
fence granted before the claim was sent (P3); after a release that reported success, no majority of
nodes has the hold (P5); and when the faults are over every waiter is served, and no node keeps
anything (P4).

Any number of nodes may lose their data, but not all within one longest lease: then nothing but the
fence could protect.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from lab.simulation.network import Weather
from lab.simulation.quorum import QuorumNode, quorum_of, quorum_store
from lab.simulation.world import Cancelled, Node, SimRuntime, Task, World
from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.core.multi import Part, attempt_all, in_order, release_all
from lockfast.core.terms import Terms
from lockfast.errors import LockfastError
from lockfast.model import ALL_SLOTS

TROUBLE, QUIET = 30.0, 40.0
LONGEST = 5.0
DRIFT = 0.004
KINDS = ("lock", "lock", "readwrite", "multi")


@dataclass(slots=True)
class QuorumReport:
    """The result of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    acquired: int = 0
    lost: int = 0
    handovers: int = 0
    forgot: int = 0


class QuorumScenario:
    renewing = 0.8  # the part of the holds that are renewed
    longest_rest = 1.5  # leases for which a hold is kept

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.dice = dice = world.dice
        self.kind = dice.choice(KINDS)
        self.lease = dice.choice((0.8, 2.0, 4.0))
        self.weather = Weather()
        if dice.random() < 0.6:
            self.weather.loss = dice.choice((0.01, 0.05, 0.15))
            self.weather.double = dice.choice((0.0, 0.05))
            self.weather.spike = dice.choice((0.0, 0.01, 0.05))
        self.servers = quorum_of(world, dice.choice((3, 3, 5)), DRIFT, self.weather)
        self.pace = dice.choice((0.2, 0.6, 1.5))
        self.report = QuorumReport(seed)
        self.clients: list[tuple[Node, Core]] = []
        self.workers: list[Task] = []
        self.fences: dict[str, set[int]] = {}
        self.highest: dict[str, int] = {}
        self.forgot = dict.fromkeys(self.servers, -float("inf"))
        for number in range(dice.choice((2, 3, 4))):
            self.add_client(f"c{number}")

    def accuse(self, promise: str, what: str) -> None:
        self.report.violations.append(f"{promise} at {self.world.time:.3f} s: {what}")

    def add_client(self, name: str) -> None:
        dice = self.dice
        node = Node(self.world, name, 1 + dice.uniform(-DRIFT, DRIFT), dice.uniform(0, 1e6))
        store = quorum_store(node, self.servers, LONGEST)
        runtime, secret = SimRuntime(node), f"{name}{len(self.clients)}"
        core = Core(runtime, store, lambda: secret, runtime, store)
        self.clients.append((node, core))
        for _ in range(dice.choice((1, 2))):
            self.workers.append(self.world.start(node, self.work(core)))

    # ---- work ----------------------------------------------------------------------------------

    async def work(self, core: Core) -> None:
        while True:
            await core.runtime.sleep(self.dice.expovariate(1 / self.pace))
            if self.world.time >= TROUBLE:
                return
            try:
                await self.lock_once(core)
            except (LockfastError, Cancelled):
                pass

    async def lock_once(self, core: Core) -> None:
        dice = self.dice
        timeout = dice.choice((0.0, 0.5, 3.0, None, None))
        names = ("sim:a", "sim:b") if self.kind == "multi" else ("sim:a",)
        take = 1
        if self.kind == "readwrite":
            take = dice.choice((1, 1, ALL_SLOTS))
        slots = ALL_SLOTS if self.kind == "readwrite" else 1
        fair, renew = dice.random() < 0.85, dice.random() < self.renewing
        terms = [Terms(n, self.lease, renew, fair=fair, slots=slots, take=take) for n in names]
        before = dict(self.highest)
        if len(terms) == 1:
            held = await core.attempt(terms[0], timeout)
            holds = [held] if isinstance(held, Held) else []
        else:
            parts = in_order(("sim", Part(core, one)) for one in terms)
            batch = await attempt_all(parts, timeout)
            holds = batch if isinstance(batch, list) else []
        for one in holds:
            self.entered(core, one, before.get(one.claim.name, 0))
        if not holds:
            return
        try:
            rest = dice.choice((0.0, 0.01, 0.1, self.lease * 0.5, self.lease * self.longest_rest))
            await core.runtime.sleep(rest * dice.random())
        except Cancelled:
            pass
        if len(terms) > 1:
            await release_all([(core, one, take) for one in holds])
        else:
            await core.wait_released(holds[0], take)
            self.released(holds[0])

    def entered(self, core: Core, held: Held, before: int) -> None:
        """Check a claim that was granted."""
        name, fence = held.claim.name, held.fence
        known = self.fences.setdefault(name, set())
        if fence in known:
            self.accuse("P3", f"fence {fence} of {held.claim.id} was given twice")
        if fence <= before:
            self.accuse("P3", f"fence {fence} of {held.claim.id} after {before}")
        known.add(fence)
        self.highest[name] = max(self.highest.get(name, 0), fence)
        if not core.is_held(held):
            return
        for node, other in self.clients:
            if node.dead:
                continue
            for theirs in other.ledger.kept.values():
                claim = theirs.claim
                if claim.name != name or claim.id == held.claim.id or not other.is_held(theirs):
                    continue
                if claim.take + held.claim.take > claim.slots:
                    self.accuse("P1", f"{held.claim.id} and {claim.id} both hold {name}")

    def released(self, held: Held) -> None:
        mine = (held.claim.id, held.fence)
        nodes = sum(mine in server.rows(held.claim.name) for server in self.servers)
        if nodes > len(self.servers) // 2:
            self.accuse("P5", f"{held.claim.id} was released and a majority still has it")

    # ---- faults ----------------------------------------------------------------------------------

    def trouble(self) -> None:
        dice, world = self.dice, self.world
        for node, _ in list(self.clients):
            if dice.random() < 0.5:
                world.at(dice.uniform(1, TROUBLE - 5), self.pause, node)
            if dice.random() < 0.3:
                world.at(dice.uniform(1, TROUBLE), self.crash, node)
            if dice.random() < 0.3:
                world.at(dice.uniform(1, TROUBLE - 5), self.cut, node)
        for _ in range(dice.choice((0, 1, 4))):
            world.at(dice.uniform(0, TROUBLE), world.cancel, dice.choice(self.workers))
        time = dice.uniform(2, 6)
        while time < TROUBLE - 6:
            server = dice.choice(self.servers)
            world.at(time, self.away, server, dice.choice((0.05, 0.5, 2.0)), dice.random() < 0.5)
            time += dice.uniform(0.5, 2 * LONGEST)
        if dice.random() < 0.4:  # a majority loses its data at nearly the same time
            time = dice.uniform(5, TROUBLE / 2)
            for server in dice.sample(self.servers, len(self.servers) // 2 + 1):
                world.at(time + dice.uniform(0, 0.3), self.away, server, 0.05, True)

    def pause(self, node: Node) -> None:
        node.paused_until = self.world.time + self.lease * self.dice.choice((0.3, 1.1, 3.0))

    def cut(self, node: Node) -> None:
        node.cut_until = self.world.time + self.lease * self.dice.choice((0.2, 0.6, 2.0))

    def crash(self, node: Node) -> None:
        node.crash()
        if self.dice.random() < 0.7:
            self.add_client(f"{node.name}'")

    def away(self, server: QuorumNode, seconds: float, forgets: bool) -> None:
        """Take a server down for a while; it restarts empty unless all others just did."""
        server.up = False
        server.restarted()
        now = self.world.time
        others = [at for one, at in self.forgot.items() if one is not server]
        if forgets and min(others) < now - 1.5 * LONGEST:
            self.forgot[server] = now
            server.amnesia()
            self.report.forgot += 1
        self.world.after(seconds, self.back, server)

    def back(self, server: QuorumNode) -> None:
        server.up = True

    # ---- the run -------------------------------------------------------------------------------

    def run(self) -> QuorumReport:
        self.trouble()
        self.world.run(TROUBLE)
        self.weather.calm()
        for node, _ in self.clients:
            node.cut_until = 0.0
        self.world.run(TROUBLE + QUIET, self.all_done)
        self.world.run(self.world.time + 8.0)
        for task in self.workers:
            if not task.done and not task.node.dead:
                self.accuse("P4", f"a worker of {task.node.name} still waits")
        for number, server in enumerate(self.servers):
            for name in ("sim:a", "sim:b"):
                for row in server.rows(name):
                    self.accuse("P4", f"{row} was left behind at node {number}")
        for error in self.world.crashes:
            self.accuse("P5", f"a worker ended in {error!r}")
        for node, core in self.clients:
            self.report.acquired += core.ledger.acquired
            self.report.lost += core.ledger.lost
            self.report.handovers += core.ledger.contended
            node.crash()
        return self.report

    def all_done(self) -> bool:
        return all(task.done or task.node.dead for task in self.workers)


class RestartsScenario(QuorumScenario):
    """All nodes restart empty, first a minority and then the others. Between, there are only the
    renewals of one client: the others begin when all nodes are back. The network is calm."""

    renewing, longest_rest = 1.0, 6.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weather.calm()
        self.began = self.dice.uniform(4, TROUBLE / 2)
        self.ended = self.began + 0.7 * self.lease

    async def work(self, core: Core) -> None:
        if core is not self.clients[0][1]:
            await core.runtime.sleep(self.ended)
        await super().work(core)

    def trouble(self) -> None:
        servers = self.dice.sample(self.servers, len(self.servers))
        for number, server in enumerate(servers):
            time = self.began if number < len(servers) // 2 else self.ended
            self.world.at(time + self.dice.uniform(0, 0.02), self.empty, server)

    def empty(self, server: QuorumNode) -> None:
        server.up = False
        server.restarted()
        server.amnesia()
        self.report.forgot += 1
        self.world.after(0.05, self.back, server)


def run_quorum_seed(seed: int, scenario: type[QuorumScenario] = QuorumScenario) -> QuorumReport:
    """Run one seed. The same seed gives the same run."""
    log = logging.getLogger("lockfast")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return scenario(seed).run()
    finally:
        log.setLevel(level)
