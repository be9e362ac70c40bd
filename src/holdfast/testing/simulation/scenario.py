"""One run of one seed: some clients, some names, thirty virtual seconds of trouble, then quiet.

What happens is drawn from the seed: how many clients with what clocks, what weather, who pauses for
longer than a lease, who crashes, when the store restarts, forgets, or has its wall clock set; what
the workers ask for, how long they hold it, when they are cancelled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from holdfast.core.ledger import Held, State
from holdfast.core.locks import Core
from holdfast.core.terms import Terms
from holdfast.errors import BackendError, HoldLost, NotHeld
from holdfast.model import Claim
from holdfast.testing.history import Operation
from holdfast.testing.simulation.network import MemoryServer, Server, Weather
from holdfast.testing.simulation.witness import Witness
from holdfast.testing.simulation.world import Cancelled, Node, SimRuntime, Task, World

TROUBLE = 30.0
QUIET = 25.0
DRIFT = 0.004  # of a client's clock, and of the store's, either way


@dataclass(slots=True)
class Report:
    """What one seed showed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    acquired: int = 0
    lost: int = 0
    timed_out: int = 0
    renewed: int = 0
    handovers: int = 0


class Scenario:
    def __init__(self, seed: int, store: type[Server] = MemoryServer) -> None:
        self.seed = seed
        self.world = world = World(seed)
        self.dice = dice = world.dice
        self.weather = Weather()
        if dice.random() < 0.6:
            self.weather.loss = dice.choice((0.01, 0.05, 0.15))
            self.weather.double = dice.choice((0.0, 0.05))
            self.weather.spike = dice.choice((0.0, 0.01, 0.05))
        self.fine = self.weather.fine
        self.weather.bell_delay = dice.choice((0.0, 0.0, 0.0, 1.5))
        self.server = store(world, 1 + dice.uniform(-DRIFT, DRIFT), self.weather)
        self.lease = dice.choice((0.8, 2.0, 4.0))
        self.slots = {"sim:a": dice.choice((1, 1, 1, 2, 3))}
        if dice.random() < 0.3:
            self.slots["sim:b"] = 1
        self.witness = Witness(world, self.server, self.slots)
        self.witness.patience += 6.0 if self.weather.loss else 0.0
        self.pace = dice.choice((0.2, 0.6, 1.5))
        self.workers: list[tuple[Task, str]] = []
        self.report = Report(seed)
        self.open_claims: dict[str, Operation] = {}
        for number in range(dice.choice((2, 3, 3, 4))):
            self.add_client(f"c{number}")

    def add_client(self, name: str) -> None:
        dice, world = self.dice, self.world
        node = Node(world, name, 1 + dice.uniform(-DRIFT, DRIFT), dice.uniform(0, 1e6))
        backend = self.server.backend(
            node, lambda claim: self.asked(node, claim.id, claim.name, claim.take)
        )
        runtime = SimRuntime(node)
        secret = f"{name}{len(self.witness.clients)}"
        core = Core(runtime, backend, lambda: secret, runtime, backend)
        self.witness.clients.append((node, core))
        for number in range(dice.choice((1, 1, 2))):
            task = world.start(node, self.work(node, core))
            self.workers.append((task, f"{name}.{number}"))

    # ---- what workers do -----------------------------------------------------------------------

    def asked(self, node: Node, claim_id: str, name: str, take: int) -> None:
        """A claim leaves for the store: its history begins, once per claim id."""
        task = self.world.current
        if task is not None and task.claim_id != claim_id:
            task.claim_id = claim_id
            history = self.witness.histories[name]
            self.open_claims[claim_id] = history.invoke(
                node.name, "claim", claim_id, self.world.time, take
            )

    async def work(self, node: Node, core: Core) -> None:
        dice, runtime = self.dice, core.runtime
        while self.world.time < TROUBLE:
            await runtime.sleep(dice.expovariate(1 / self.pace))
            name = dice.choice(list(self.slots))
            slots = self.slots[name]
            renew = dice.random() < 0.8
            terms = Terms(
                name,
                self.lease,
                renew,
                max_hold=self.lease * 3 if renew and dice.random() < 0.1 else None,
                fair=dice.random() < 0.85,
                slots=slots,
                take=dice.choice((1, 1, slots)),
            )
            timeout = dice.choice((0.0, 0.5, 3.0, None, None))
            task = self.world.current
            assert task is not None
            task.claim_id = ""
            try:
                held = await core.attempt(terms, timeout)
            except (BackendError, Cancelled) as error:
                # What became of it is not known: the history stays open.
                if isinstance(error, Cancelled) and self.fine:
                    self.world.after(1.0, self.witness.gave_up, node, name, task.claim_id)
                continue
            if isinstance(held, Held):
                self.answered(held.claim, held.fence)
                core.ledger.on_end(held, lambda held=held: self.ended(held))  # type: ignore[misc]
                await self.use(core, terms, held)

    def answered(self, claim: Claim, fence: int) -> None:
        operation = self.open_claims[claim.id]
        self.witness.histories[claim.name].answer(operation, self.world.time, fence)

    def ended(self, held: Held) -> None:
        if held.state is State.LOST:
            self.witness.told_lost(held)

    async def use(self, core: Core, terms: Terms, held: Held) -> None:
        """Hold it for a while, perhaps re-enter, renew or have it broken; then give it back."""
        dice, runtime = self.dice, core.runtime
        depth = 1
        try:
            if dice.random() < 0.2:
                again = await core.attempt(terms, None)
                depth = 2
                if not isinstance(again, Held) or again.fence != held.fence:
                    self.witness.accuse("re-entry", f"{held.claim.id} changed")
            if dice.random() < 0.1:
                await core.renew(held, None)
            if dice.random() < 0.03:
                self.witness.void(held.claim.id)
                await core.break_hold(terms.name, held.fence)
            rest = dice.choice((0.0, 0.01, 0.1, self.lease * 0.5, self.lease * 1.5))
            await runtime.sleep(rest * dice.random())
        except (BackendError, HoldLost, NotHeld, Cancelled):
            pass
        for step in range(depth):
            await self.release(core, held, last=step == depth - 1)

    async def release(self, core: Core, held: Held, last: bool) -> None:
        history = self.witness.histories[held.claim.name]
        operation = None
        if last:
            operation = history.invoke("", "release", held.claim.id, self.world.time)
        try:
            await core.release(held)
        except (HoldLost, BackendError, NotHeld, Cancelled):
            return  # whether our release ended it is not known: the history stays open
        if last:
            # After a lost reply "not ours any more" is taken for our own doing: if an operator's
            # break was faster, that is not quite true, and only the fence tells.
            if operation is not None and not self.witness.is_voided(held.fence):
                history.answer(operation, self.world.time, True)
            self.witness.released(held)

    # ---- what goes wrong -----------------------------------------------------------------------

    def trouble(self) -> None:
        """Draw the accidents of this run."""
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
        if dice.random() < 0.25:
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

    def back(self) -> None:
        self.server.up = True

    def set_clock(self, step: float) -> None:
        if self.server.leases_by_wall and step < 0:
            step /= 30  # or nobody's lease would end in time to see what follows
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
        self.world.run(TROUBLE + QUIET, self.everybody_is_done)
        self.world.run(self.world.time + 7.0)  # what nobody refreshes is over by now
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
            node.crash()  # nothing may run on after the run
        self.report.violations = self.witness.violations
        return self.report

    def patrol(self) -> None:
        self.witness.patrol()
        if self.world.time < TROUBLE + QUIET:
            self.world.after(0.5, self.patrol)

    def everybody_is_done(self) -> bool:
        return all(task.done or task.node.dead for task, _ in self.workers)


def run_seed(seed: int, store: type[Server] = MemoryServer) -> Report:
    """One run; the same seed, the same run."""
    log = logging.getLogger("holdfast")
    level = log.level
    log.setLevel(logging.CRITICAL)  # failing renewals are the daily bread here
    try:
        return Scenario(seed, store).run()
    finally:
        log.setLevel(level)
