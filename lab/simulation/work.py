"""The base of all workers: acquire, release, and report the results to the witness.

The work on each kind of name is in `work_locks`, `work_permits`, `work_readwrite`, `work_latches`,
`work_election` and `work_multi`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from lab.simulation.network import Weather
from lab.simulation.rules import Rule
from lab.simulation.witness import Witness
from lab.simulation.world import Cancelled, Node, Task, World
from lockfast.core.ledger import Held, State
from lockfast.core.locks import Core
from lockfast.core.terms import Terms
from lockfast.errors import BackendError, HoldLost, NotHeld, NotReplicated


class RunContext:
    """The state that all workers of a run share."""

    def __init__(self, world: World, witness: Witness, lease: float, weather: Weather) -> None:
        self.world = world
        self.dice: random.Random = world.dice
        self.witness = witness
        self.lease = lease
        self.fine = weather.fine
        self.counts: Counter[str] = Counter()  # events, to check that they do happen


class Work(ABC):
    """One kind of work, on one name or on more."""

    def __init__(self, context: RunContext, name: str) -> None:
        self.context = context
        self.world = context.world
        self.dice = context.dice
        self.witness = context.witness
        self.lease = context.lease
        self.name = name

    @abstractmethod
    async def run_once(self, node: Node, core: Core) -> None:
        """Perform one operation of one worker. Return early if it is cancelled or refused."""

    def final_job(self, core: Core) -> Coroutine[Any, Any, None] | None:
        """Return a job to run after the faults, so that no worker waits in vain; None: no job."""
        return None

    # ---- acquire and release, observed by the witness ------------------------------------------

    def knows(self, rule: Rule) -> None:
        """Register the rule of a name with the witness."""
        self.witness.rules[rule.name] = rule

    def begin(self) -> Task:
        """Return the current task, as the beginning of a new call."""
        task = self.world.current
        assert task is not None
        task.asked = []
        task.call = object()
        return task

    async def acquire(
        self, node: Node, core: Core, terms: Terms, timeout: float | None
    ) -> Held | None:
        """Return a hold; None if it was refused, cancelled, or its outcome is unknown (then its
        history stays open)."""
        task = self.begin()
        try:
            held = await core.attempt(terms, timeout)
        except BackendError:
            return None
        except NotReplicated:
            self.context.counts["not replicated"] += 1
            self.gave_up(node, task)
            return None
        except Cancelled:
            self.gave_up(node, task)
            return None
        if not isinstance(held, Held):
            self.gave_up(node, task)
            return None
        self.entered(core, held)
        return held

    def gave_up(self, node: Node, task: Task) -> None:
        """Check that nothing of a call is left after a second, if the network is fine."""
        if self.context.fine:
            self.world.after(1.0, self.witness.gave_up, node, list(task.asked))

    def entered(self, core: Core, held: Held) -> None:
        """Record that a client knows of its hold."""
        self.witness.rules[held.claim.name].answered(held.claim.id, held.fence, self.world.time)
        core.ledger.on_end(held, lambda: self._ended(held))

    def _ended(self, held: Held) -> None:
        if held.state is State.LOST:
            self.witness.loss_reported(held)

    async def release(
        self, core: Core, held: Held, *, last: bool, take: int = 1, recorded: bool = True
    ) -> bool:
        """Release one entry; return True if that succeeded for certain. ``recorded``: in the
        history, if it is the last entry."""
        history = self.witness.rules[held.claim.name].history
        operation = None
        if last and recorded and history is not None:
            operation = history.invoke("", "release", held.claim.id, self.world.time)
        try:
            await core.wait_released(held, take)
        except (HoldLost, BackendError, NotHeld, Cancelled):
            return False  # the outcome is unknown: the history stays open
        if last:
            # After a lost reply, "not held" counts as our own release. If an operator's break was
            # faster, that is not quite true, and only the fence shows it.
            if history and operation and not self.witness.is_voided(held):
                history.answer(operation, self.world.time, True)
            self.witness.released(held)
        return True
