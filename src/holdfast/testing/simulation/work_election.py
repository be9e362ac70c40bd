"""Workers that stand for election and lead for a while, and others that look who leads."""

from __future__ import annotations

from holdfast.core.locks import Core
from holdfast.core.terms import Terms
from holdfast.errors import BackendError, NotReplicated
from holdfast.testing.simulation.witness_election import ElectionRule
from holdfast.testing.simulation.work import Place
from holdfast.testing.simulation.work_locks import Holding
from holdfast.testing.simulation.world import Cancelled, Node


class Election(Holding):
    def __init__(self, place: Place, name: str) -> None:
        super().__init__(place, name)
        self.rule = ElectionRule(self.witness.accuse, name)
        self.knows(self.rule)

    async def turn(self, node: Node, core: Core) -> None:
        if self.dice.random() < 0.3:
            await self._look(core)
            return
        terms = Terms(self.name, self.lease, True, label=node.name)
        before = self.rule.greatest
        held = await self.acquire(node, core, terms, self.dice.choice((3.0, None, None)))
        if held is not None:
            self.rule.elected(held, before)
            self.place.counts["elected"] += 1
            await self.use(core, terms, held)

    async def _look(self, core: Core) -> None:
        try:
            self.rule.shown(self.begin(), await core.inspect(self.name))
        except (BackendError, NotReplicated, Cancelled):
            pass
