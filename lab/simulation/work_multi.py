"""Workers that lock a set of names, in any order: all of them, or none."""

from __future__ import annotations

from lab.history import Operation
from lab.simulation import witness_multi
from lab.simulation.rules import Rule
from lab.simulation.work import RunContext
from lab.simulation.work_locks import Holding
from lab.simulation.world import Cancelled, Node
from lockfast.core import multi
from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.core.multi import Part, release_all
from lockfast.errors import BackendError, HoldLost, NotHeld, NotReplicated


class Multi(Holding):
    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.names = [f"{name}{number}" for number in range(self.dice.choice((2, 3, 3)))]
        for one in self.names:
            self.knows(Rule(self.witness.accuse, one))

    async def run_once(self, node: Node, core: Core) -> None:
        names = self.dice.sample(self.names, self.dice.randint(1, len(self.names)))
        had: Held | None = None
        if self.dice.random() < 0.25:
            # The worker holds the first name already, and takes the others too.
            first = self.terms(1, 1)._replace(name=min(names), fair=True)
            had = await self.acquire(node, core, first, self.timeout())
            if had is None:
                return
        holds = await self._acquire_all(node, core, names, had)
        if holds is not None:
            self.context.counts["multi-locked"] += 1
            await self._use_all(core, holds, had)
        if had is not None:
            await self.release(core, had, last=True)

    async def _acquire_all(
        self, node: Node, core: Core, names: list[str], had: Held | None
    ) -> list[Held] | None:
        terms = self.terms(1, 1)
        parts = multi.in_order(("", Part(core, terms._replace(name=name))) for name in names)
        task, accuse = self.begin(), self.witness.accuse
        holds: object = None
        try:
            holds = await multi.attempt_all(parts, self.timeout())
        except (BackendError, NotReplicated, HoldLost):
            pass
        except Cancelled:
            self.gave_up(node, task)
        if not isinstance(holds, list):
            witness_multi.got_nothing(accuse, core, task.asked, had)
            if holds is not None:
                self.gave_up(node, task)
            return None
        witness_multi.got_all(accuse, names, holds)
        for held in holds:
            if held is not had:
                self.entered(core, held)
        return holds

    async def _use_all(self, core: Core, holds: list[Held], had: Held | None) -> None:
        try:
            for held in holds:
                await self.meddle(core, held)
            await self.linger(core)
        except (BackendError, HoldLost, NotHeld, Cancelled):
            pass
        ours = [held for held in holds if held is not had]
        operations: list[Operation] = []
        for held in ours:
            history = self.witness.rules[held.claim.name].history
            assert history is not None
            operations.append(history.invoke("", "release", held.claim.id, self.world.time))
        try:
            errors = await release_all([(core, held, 1) for held in holds])
        except Cancelled:
            return
        if errors:
            return  # of which hold is unknown: the histories stay open
        for held, operation in zip(ours, operations, strict=True):
            history = self.witness.rules[held.claim.name].history
            if history is not None and not self.witness.is_voided(held):
                history.answer(operation, self.world.time, True)
            self.witness.released(held)
