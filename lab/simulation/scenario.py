"""One run of one seed: some clients and names, thirty virtual seconds of faults, then quiet.

Everything is drawn from the seed: the number of clients and their clocks; the network's faults;
which clients pause for longer than a lease or crash; when the store restarts, loses its data, or
has its wall clock set; what the workers ask for, how long they hold it, when they are cancelled.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from lab.simulation.kinds import KINDS, kinds_of
from lab.simulation.network import MemoryServer, Server, Weather
from lab.simulation.witness import Witness
from lab.simulation.work import RunContext, Work
from lab.simulation.world import Node, SimRuntime, Task, World
from lockfast.core.locks import Core
from lockfast.model import Claim

TROUBLE = 30.0
QUIET = 25.0
MOST_AWAITS = 12  # an operation rarely has more awaits
DRIFT = 0.004  # greatest drift of a client's clock, and of the store's, either way


@dataclass(slots=True)
class Report:
    """The result of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    acquired: int = 0
    lost: int = 0
    timed_out: int = 0
    renewed: int = 0
    handovers: int = 0
    # Other events: downgraded, resized, elected, counted, let through, …
    counts: Counter[str] = field(default_factory=Counter)


class Scenario:
    def __init__(self, seed: int, store: type[Server] = MemoryServer) -> None:
        self.seed = seed
        self.world = world = World(seed)
        self.dice = dice = world.dice
        self.lease = dice.choice((0.8, 2.0, 4.0))
        self.weather = Weather()
        if dice.random() < 0.6:
            self.weather.loss = dice.choice((0.01, 0.05, 0.15))
            self.weather.double = dice.choice((0.0, 0.05))
            self.weather.spike = dice.choice((0.0, 0.01, 0.05))
        if dice.random() < 0.15:
            self.weather.delay = self.lease / 60  # slow in both directions, without faults
        self.weather.wakeup_delay = dice.choice((0.0, 0.0, 0.0, 1.5))
        self.server = store(world, 1 + dice.uniform(-DRIFT, DRIFT), self.weather)
        self.witness = Witness(world, self.server)
        self.witness.patience += 6.0 if self.weather.loss else 0.0
        self.pace = dice.choice((0.2, 0.6, 1.5))
        # How often an operation is cancelled at some await.
        self.haste = dice.choice((0.0, 0.0, 0.1))
        self.workers: list[tuple[Task, str]] = []
        self.context = RunContext(world, self.witness, self.lease, self.weather)
        self.works: list[Work] = [
            KINDS[kind](self.context, f"sim:{letter}")
            for kind, letter in zip(kinds_of(seed), "ab", strict=False)
        ]
        self.report = Report(seed)
        for number in range(dice.choice((2, 3, 3, 4))):
            self.add_client(f"c{number}")

    def add_client(self, name: str) -> None:
        dice, world = self.dice, self.world
        node = Node(world, name, 1 + dice.uniform(-DRIFT, DRIFT), dice.uniform(0, 1e6))
        store = self.server.store(node, lambda claim: self.asked(node, claim))
        runtime = SimRuntime(node)
        secret = f"{name}{len(self.witness.clients)}"
        core = Core(runtime, store, lambda: secret, runtime, store)
        self.witness.clients.append((node, core))
        for number in range(dice.choice((1, 1, 2))):
            task = world.start(node, self.work(node, core))
            self.workers.append((task, f"{name}.{number}"))

    def asked(self, node: Node, claim: Claim) -> None:
        """Record a claim that is sent, unless it was sent before."""
        task, rule = self.world.current, self.witness.rules[claim.name]
        if task is not None and claim.id not in rule.takes:
            task.asked.append(claim.id)
            rule.asked(node, claim)

    async def work(self, node: Node, core: Core) -> None:
        dice, runtime = self.dice, core.runtime
        while True:
            await runtime.sleep(dice.expovariate(1 / self.pace))
            if self.world.time >= TROUBLE:
                return
            task = self.world.current
            assert task is not None
            if dice.random() < self.haste:
                task.cancel_at = task.step + dice.randint(1, MOST_AWAITS)
            await dice.choice(self.works).run_once(node, core)
            task.cancel_at = 0

    # ---- faults --------------------------------------------------------------------------------

    def trouble(self) -> None:
        """Draw the faults of this run."""
        dice, world = self.dice, self.world
        for node, _ in list(self.witness.clients):
            if dice.random() < 0.5:
                world.at(dice.uniform(1, TROUBLE - 5), self.pause, node)
            if dice.random() < 0.3:
                world.at(dice.uniform(1, TROUBLE), self.crash, node)
            if dice.random() < 0.3:
                world.at(dice.uniform(1, TROUBLE - 5), self.cut, node)
        for _ in range(dice.choice((0, 1, 4))):
            task, _name = dice.choice(self.workers)
            world.at(dice.uniform(0, TROUBLE), world.cancel, task)
        if self.server.fails_over:
            for _ in range(dice.choice((2, 4, 6))):
                world.at(dice.uniform(1, TROUBLE - 3), self.fail_over)
        elif dice.random() < 0.25:
            world.at(dice.uniform(2, TROUBLE - 5), self.restart, dice.random() < 0.5)
        elif dice.random() < 0.3:
            world.at(dice.uniform(2, TROUBLE), self.set_clock, dice.choice((-60.0, 60.0)))

    def pause(self, node: Node) -> None:
        node.paused_until = self.world.time + self.lease * self.dice.choice((0.3, 1.1, 3.0))

    def cut(self, node: Node) -> None:
        node.cut_until = self.world.time + self.lease * self.dice.choice((0.2, 0.6, 2.0))

    def crash(self, node: Node) -> None:
        node.crash()
        if self.dice.random() < 0.7:
            self.add_client(f"{node.name}'")

    def restart(self, amnesia: bool) -> None:
        self.server.up = False
        self.server.restarts += 1
        self.server.restarted()
        if amnesia:
            self.server.amnesia()
            self.witness.void_all()
        self.world.after(self.dice.choice((0.05, 0.5, 2.0)), self.back)

    def fail_over(self) -> None:
        self.server.up = False
        self.server.restarts += 1
        self.server.restarted()
        self.server.fail_over()
        self.witness.failed_over(self.server.forgets)
        self.context.counts["failed over"] += 1
        self.world.after(self.dice.choice((0.3, 1.0, 2.5)), self.back)

    def back(self) -> None:
        self.server.up = True

    def set_clock(self, step: float) -> None:
        if self.server.leases_by_wall and step < 0:
            step /= 30  # so that leases still end within the run
        self.server.wall_offset += step
        self.witness.clock_was_set(step)

    # ---- the run -------------------------------------------------------------------------------

    def run(self) -> Report:
        self.trouble()
        self.patrol()
        self.world.run(TROUBLE)
        self.weather.calm()
        for node, _ in self.witness.clients:
            node.cut_until = 0.0
        self.start_final_jobs()
        self.world.run(TROUBLE + QUIET, self.everybody_is_done)
        # Afterwards every row that no client refreshes has ended, also that of a very late request.
        self.world.run(max(self.world.time, TROUBLE + 5.0) + 7.0)
        stuck = [name for task, name in self.workers if not task.done and not task.node.dead]
        self.witness.finish(stuck)
        for error in self.world.crashes:
            self.witness.accuse("P5", f"a worker ended in {error!r}")
        for node, core in self.witness.clients:
            ledger = core.ledger
            self.report.acquired += ledger.acquired
            self.report.lost += ledger.lost
            self.report.timed_out += ledger.timed_out
            self.report.renewed += ledger.renewals
            self.report.handovers += ledger.contended
            node.crash()  # so that nothing runs on after the run
        self.report.counts = self.context.counts
        self.report.violations = self.witness.violations
        return self.report

    def start_final_jobs(self) -> None:
        """Serve the last waiters: after the faults, no worker may wait in vain."""
        living = [(node, core) for node, core in self.witness.clients if not node.dead]
        for work in self.works if living else ():
            node, core = living[0]
            if (job := work.final_job(core)) is not None:
                self.workers.append((self.world.start(node, job), f"{node.name}.final"))

    def patrol(self) -> None:
        self.witness.patrol()
        if self.world.time < TROUBLE + QUIET:
            self.world.after(0.5, self.patrol)

    def everybody_is_done(self) -> bool:
        return all(task.done or task.node.dead for task, _ in self.workers)


def run_seed(seed: int, store: type[Server] = MemoryServer) -> Report:
    """Run one seed. The same seed gives the same run."""
    log = logging.getLogger("lockfast")
    level = log.level
    log.setLevel(logging.CRITICAL)  # failing renewals are normal here
    try:
        return Scenario(seed, store).run()
    finally:
        log.setLevel(level)
