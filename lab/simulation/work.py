"""What the workers of a run have in common: they acquire something, and give it back, and tell the
witness what they were told. What they do with it is in `work_locks`, `work_permits`,
`work_readwrite`, `work_gates`, `work_election` and `work_multi`.
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


class Place:
    """Where work is done: what all workers of a run share."""

    def __init__(self, world: World, witness: Witness, lease: float, weather: Weather) -> None:
        self.world = world
        self.dice: random.Random = world.dice
        self.witness = witness
        self.lease = lease
        self.fine = weather.fine
        self.counts: Counter[str] = Counter()  # what happened, to see that it does


class Work(ABC):
    """One kind of work on one name, or on some."""

    def __init__(self, waiter: Place, name: str) -> None:
        self.waiter = waiter
        self.world = waiter.world
        self.dice = waiter.dice
        self.witness = waiter.witness
        self.lease = waiter.lease
        self.name = name

    @abstractmethod
    async def turn(self, node: Node, core: Core) -> None:
        """One turn of one worker. Cancelled or refused by the store it just ends."""

    def usher(self, core: Core) -> Coroutine[Any, Any, None] | None:
        """What must be done when trouble is over, so that nobody waits in vain."""
        return None

    # ---- acquire and release, with the witness looking on --------------------------------------

    def knows(self, rule: Rule) -> None:
        """Let the witness know of a name."""
        self.witness.rules[rule.name] = rule

    def begin(self) -> Task:
        """The current task, which has not asked for anything yet."""
        task = self.world.current
        assert task is not None
        task.asked = []
        task.call = object()
        return task

    async def acquire(
        self, node: Node, core: Core, terms: Terms, timeout: float | None
    ) -> Held | None:
        """A hold, or None: refused, cancelled, or what became of it is not known (then its history
        stays open)."""
        task = self.begin()
        try:
            held = await core.attempt(terms, timeout)
        except BackendError:
            return None
        except NotReplicated:
            self.waiter.counts["not replicated"] += 1
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
        """Nobody wants it any more: where all is well, nothing is left of it a second later."""
        if self.waiter.fine:
            self.world.after(1.0, self.witness.gave_up, node, list(task.asked))

    def entered(self, core: Core, held: Held) -> None:
        """Its client knows that it holds it."""
        self.witness.rules[held.claim.name].answered(held.claim.id, held.fence, self.world.time)
        core.ledger.on_end(held, lambda: self._ended(held))

    def _ended(self, held: Held) -> None:
        if held.state is State.LOST:
            self.witness.told_lost(held)

    async def release(
        self, core: Core, held: Held, *, last: bool, take: int = 1, told: bool = True
    ) -> bool:
        """One step out; whether it was done for certain. ``told``: history hears of it."""
        history = self.witness.rules[held.claim.name].history
        operation = None
        if last and told and history is not None:
            operation = history.invoke("", "release", held.claim.id, self.world.time)
        try:
            await core.release(held, take)
        except (HoldLost, BackendError, NotHeld, Cancelled):
            return False  # whether our release ended it is not known: the history stays open
        if last:
            # After a lost reply "not ours any more" is taken for our own doing: if an operator's
            # break was faster, that is not quite true, and only the fence tells.
            if history and operation and not self.witness.is_voided(held):
                history.answer(operation, self.world.time, True)
            self.witness.released(held)
        return True
