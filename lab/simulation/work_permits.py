"""Workers that take one or more permits of a semaphore, and now and then resize it."""

from __future__ import annotations

from lab.simulation.witness_permits import PermitsRule
from lab.simulation.work import RunContext
from lab.simulation.work_locks import Holding
from lab.simulation.world import Cancelled, Node
from lockfast.core import primitives
from lockfast.core.locks import Core
from lockfast.errors import BackendError, ConfigurationError, NotReplicated

SIZES = (1, 2, 3, 4)


class Permits(Holding):
    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.size = self.dice.choice((2, 3))
        self.rule = PermitsRule(self.witness.accuse, name, self.size)
        self.knows(self.rule)
        self.resizes = self.dice.random() < 0.5
        self._known: dict[Core, int] = {}  # the size that each client knows

    async def run_once(self, node: Node, core: Core) -> None:
        dice, size = self.dice, self._known.get(core, self.size)
        if self.resizes and dice.random() < 0.15:
            await self._resize(core, size)
            return
        terms = self.terms(size, dice.choice((1, 1, size, dice.randint(1, size))))
        try:
            held = await self.acquire(node, core, terms, self.timeout())
        except ConfigurationError:
            await self._learn(core, size)
            return
        if held is not None:
            await self.use(core, terms, held)

    async def _resize(self, core: Core, size: int) -> None:
        to, rule, seen = self.dice.choice(SIZES), self.rule, self.witness.server.seen
        sole = rule.resizing(to, self.world.time) and self.context.fine
        count, before = rule.resizes, seen(self.name)
        try:
            await primitives.resize(core, self.terms(size, 1), to)
        except (BackendError, NotReplicated, Cancelled):
            return
        except ConfigurationError:
            await self._learn(core, size)
            return
        self._known[core] = to
        self.context.counts["resized"] += 1
        if sole and rule.resizes == count and not self.witness.server.restarts:
            rule.resized(to, before, seen(self.name))

    async def _learn(self, core: Core, size: int) -> None:
        """Ask for the current size: another client changed it."""
        try:
            _, self._known[core] = await primitives.in_use(core, self.terms(size, 1))
        except (BackendError, NotReplicated, Cancelled):
            pass
