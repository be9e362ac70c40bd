"""Workers that read or write: they re-enter as permitted, try what is not permitted, and writers
continue as readers when their last write entry ends."""

from __future__ import annotations

from lab.simulation.witness_readwrite import ReadWriteRule
from lab.simulation.work import RunContext
from lab.simulation.work_locks import Holding
from lab.simulation.world import Cancelled, Node
from lockfast.core.ledger import Held
from lockfast.core.locks import Core
from lockfast.errors import BackendError, HoldLost, NotHeld, WouldDeadlock
from lockfast.model import ALL_SLOTS

READ, WRITE = 1, ALL_SLOTS


class ReadWrite(Holding):
    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.rule = ReadWriteRule(self.witness.accuse, name)
        self.knows(self.rule)

    async def run_once(self, node: Node, core: Core) -> None:
        entries = [self._draw()]
        terms = self.terms(ALL_SLOTS, entries[0])
        held = await self.acquire(node, core, terms, self.timeout())
        if held is None:
            return
        try:
            while self.dice.random() < 0.4:
                await self._enter(core, held, entries)
            await self.meddle(core, held)
            await self.linger(core)
        except (BackendError, HoldLost, NotHeld, Cancelled):
            pass
        self.dice.shuffle(entries)
        while entries:
            await self._step_out(core, held, entries)

    def _draw(self) -> int:
        return WRITE if self.dice.random() < 0.4 else READ

    async def _enter(self, core: Core, held: Held, entries: list[int]) -> None:
        """Re-enter as a reader or a writer; a reader that asks to write is refused."""
        take = self._draw()
        try:
            again = await core.attempt(self.terms(ALL_SLOTS, take), None)
        except WouldDeadlock:
            if WRITE in entries:
                self.witness.accuse("re-entry", f"{held.claim.id} writes and may not enter again")
            return
        entries.append(take)
        if again is not held:
            self.witness.accuse("re-entry", f"{held.claim.id} changed")
        if take == WRITE and entries[0] == READ:
            self.rule.may_write(held)

    async def _step_out(self, core: Core, held: Held, entries: list[int]) -> None:
        take = entries.pop()
        fence, last = held.fence, not entries
        downgrades = take == WRITE and not last and WRITE not in entries
        if downgrades:
            self.rule.downgrading(held, self.world.time)
        # The history has no downgrades: in it, such a writer may end once it only reads.
        recorded = held.claim.id not in self.rule.downgrades
        done = await self.release(core, held, last=last, take=take, recorded=recorded)
        if downgrades and done:
            self.context.counts["downgraded"] += 1
            if core.is_held(held):
                self.rule.downgraded(held, fence, self.witness.server.seen(self.name))
        if not last:
            try:
                await self.linger(core)
            except Cancelled:
                pass
