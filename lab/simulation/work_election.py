"""Workers that stand for election and lead for a while, or observe who leads."""

from __future__ import annotations

from lab.simulation.witness_election import ElectionRule
from lab.simulation.work import RunContext
from lab.simulation.work_locks import Holding
from lab.simulation.world import Cancelled, Node
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, NotReplicated


class Election(Holding):
    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.rule = ElectionRule(self.witness.accuse, name)
        self.knows(self.rule)

    async def run_once(self, node: Node, core: Core) -> None:
        if self.dice.random() < 0.3:
            await self._look(core)
            return
        terms = Terms(self.name, self.lease, True, label=node.name)
        before = self.rule.greatest
        held = await self.acquire(node, core, terms, self.dice.choice((3.0, None, None)))
        if held is not None:
            self.rule.elected(held, before)
            self.context.counts["elected"] += 1
            await self.use(core, terms, held)

    async def _look(self, core: Core) -> None:
        try:
            self.rule.shown(self.begin(), await core.inspect(self.name))
        except (BackendError, NotReplicated, Cancelled):
            pass
