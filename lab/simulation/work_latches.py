"""Workers that wait for each other: at latches, which others count down, and at barriers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any

from lab.simulation.witness_latches import BarrierRule, LatchRule
from lab.simulation.work import RunContext, Work
from lab.simulation.world import Cancelled, Node
from lockfast.core import primitives
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, NotReplicated
from lockfast.model import BARRIER, LATCH

KEEP = 600.0  # no count-down expires within a run, even if the clock is set


class Latches(Work):
    """One latch after the other: once a worker knows that it is open, the next one is used."""

    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.size = self.dice.choice((1, 2, 3, 5))
        self._rules: list[LatchRule] = []
        self._waiting: Counter[LatchRule] = Counter()
        self._next(None)

    def _next(self, opened: LatchRule | None) -> None:
        if opened is None or opened is self._rules[-1]:
            rule = LatchRule(self.witness.accuse, f"{self.name}{len(self._rules)}", self.size)
            self._rules.append(rule)
            self.knows(rule)

    async def run_once(self, node: Node, core: Core) -> None:
        # Now and then a worker comes late to a latch that opened long ago.
        rule = self._rules[-1] if self.dice.random() < 0.9 else self.dice.choice(self._rules)
        if self.dice.random() < 0.5:
            await self._count_down(core, rule)
        else:
            await self._wait(node, core, rule)

    async def _count_down(self, core: Core, rule: LatchRule) -> bool:
        """Count down; return True if the latch is known to be open."""
        task, server = self.begin(), self.witness.server
        restarts = server.restarts
        terms = Terms(rule.name, KEEP, False, slots=LATCH + self.size, take=1, owner=object())
        try:
            counted = await primitives.count_down(core, terms)
        except (BackendError, NotReplicated, Cancelled):
            return False  # it may have counted
        if server.restarts == restarts:
            seen = server.seen(rule.name)
            if counted:
                rule.count_down_confirmed(task.asked, seen)
                self.context.counts["counted"] += 1
            else:
                rule.latch_reported_open(seen)
        if not counted:
            self._next(rule)
        return not counted

    async def _wait(self, node: Node, core: Core, rule: LatchRule) -> None:
        task, server = self.begin(), self.witness.server
        restarts = server.restarts
        was_open = rule.count(server.seen(rule.name)) >= self.size
        terms = Terms(rule.name, self.lease, True, slots=LATCH + self.size, take=0, owner=object())
        self._waiting[rule] += 1
        try:
            passed = await primitives.pass_through(
                core, terms, self.dice.choice((0.0, 0.5, 3.0, None, None))
            )
        except (BackendError, NotReplicated, Cancelled) as error:
            if isinstance(error, Cancelled):
                self.gave_up(node, task)
            return
        finally:
            self._waiting[rule] -= 1
        if passed:
            self.context.counts["let through"] += 1
            self._next(rule)
        else:
            self.gave_up(node, task)
            if was_open and server.restarts == restarts:
                rule.refused_though_open()

    def final_job(self, core: Core) -> Coroutine[Any, Any, None] | None:
        return self._open_all(core)

    async def _open_all(self, core: Core) -> None:
        """Count down the latches that have waiters, until they are open."""
        for rule in list(self._rules):
            while self._waiting[rule] and not await self._count_down(core, rule):
                pass


class Barriers(Work):
    """One barrier, used repeatedly. A party without enough others gives up after a while."""

    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self.size = self.dice.choice((2, 2, 3))
        self.rule = BarrierRule(self.witness.accuse, name, self.size)
        self.knows(self.rule)

    async def run_once(self, node: Node, core: Core) -> None:
        task, rule = self.begin(), self.rule
        terms = Terms(self.name, self.lease, True, slots=BARRIER + self.size, owner=object())
        try:
            timeout = self.dice.choice((0.0, 0.5, 3.0, 8.0))
            passed = await primitives.pass_through(core, terms, timeout)
        except (BackendError, NotReplicated, Cancelled) as error:
            if isinstance(error, Cancelled):
                self.gave_up(node, task)
            return
        if passed:
            rule.passed_confirmed(task.asked)
            self.context.counts["gathered"] += 1
            return
        self.gave_up(node, task)
        trouble = node.paused_until or node.cut_until or self.witness.server.restarts
        if self.context.fine and not trouble:
            rule.left_for_certain(task.asked)
