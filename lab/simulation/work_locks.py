"""Workers that lock one name: fair or not, renewed or not, re-entered, broken by operators."""

from __future__ import annotations

from lab.simulation.rules import Rule
from lab.simulation.work import RunContext, Work
from lab.simulation.world import Cancelled, Node
from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, HoldLost, NotHeld


class Holding(Work):
    """Work with holds: use, renew, re-enter and release them."""

    def timeout(self) -> float | None:
        return self.dice.choice((0.0, 0.5, 3.0, None, None))

    def terms(self, slots: int, take: int) -> Terms:
        dice = self.dice
        renew = dice.random() < 0.8
        return Terms(
            self.name,
            self.lease,
            renew,
            max_hold=self.lease * 3 if renew and dice.random() < 0.1 else None,
            fair=dice.random() < 0.85,
            slots=slots,
            take=take,
        )

    async def use(self, core: Core, terms: Terms, held: Held) -> None:
        """Keep a hold for a while, perhaps re-enter, renew or break it; then release it."""
        dice, depth = self.dice, 1
        try:
            if dice.random() < 0.2:
                again = await core.attempt(terms, None)
                depth = 2
                if not isinstance(again, Held) or again.fence != held.fence:
                    self.witness.accuse("re-entry", f"{held.claim.id} changed")
            await self.meddle(core, held)
            await self.linger(core)
        except (BackendError, HoldLost, NotHeld, Cancelled):
            pass
        for step in range(depth):
            await self.release(core, held, last=step == depth - 1)

    async def meddle(self, core: Core, held: Held) -> None:
        """Renew a hold explicitly, or break it as an operator does, now and then."""
        if self.dice.random() < 0.1:
            await core.renew(held, None)
        if self.dice.random() < 0.03:
            self.witness.void(held.claim.id)
            await core.break_hold(held.claim.name, held.fence)

    async def linger(self, core: Core) -> None:
        """Sleep for no time, for a while, or for longer than a lease."""
        rest = self.dice.choice((0.0, 0.01, 0.1, self.lease * 0.5, self.lease * 1.5))
        await core.runtime.sleep(rest * self.dice.random())


class Locks(Holding):
    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.knows(Rule(self.witness.accuse, name))

    async def run_once(self, node: Node, core: Core) -> None:
        terms = self.terms(1, 1)
        held = await self.acquire(node, core, terms, self.timeout())
        if held is not None:
            await self.use(core, terms, held)
