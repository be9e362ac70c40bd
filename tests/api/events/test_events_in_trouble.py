"""Events under trouble: the simulator's clients are cancelled at any await, paused, cut off and
told lies by their network; what was told of each adds up all the same, and to what was counted."""

from __future__ import annotations

from collections import Counter

from lab.simulation import scenario
from lab.simulation.scenario import run_seed
from lab.simulation.witness import Witness
from lockfast.core.listeners import Listeners
from lockfast.core.locks import Core
from lockfast.events import (
    Acquired,
    Detached,
    Lost,
    Released,
    TimedOut,
    WaitBegan,
    WaitEnded,
)

ENDS = (Released, Detached, Lost)


class Ear:
    """Hears one client."""

    def __init__(self):
        self.count = Counter()
        self.held = Counter()
        self.waiting = 0
        self.wrong = []

    def __call__(self, event):
        self.count[type(event)] += 1
        if isinstance(event, Acquired):
            self.held[event.name, event.fence] += 1
        elif isinstance(event, ENDS):
            self.held[event.name, event.fence] -= 1
            if self.held[event.name, event.fence] < 0:
                self.wrong.append(f"{event} ended twice, or before it began")
        elif isinstance(event, WaitBegan):
            self.waiting += 1
        elif isinstance(event, WaitEnded):
            self.waiting -= 1

    def adds_up(self, core):
        ledger, count = core.ledger, self.count
        return {
            "held": sum(self.held.values()) == len(ledger.kept),
            "waiting": self.waiting == len(ledger.waiting),
            "acquired": count[Acquired] == ledger.acquired,
            "lost": count[Lost] == ledger.lost,
            "released": count[Released] + count[Detached] == ledger.released,
            "contended": count[WaitBegan] == ledger.contended,
            "timed out": count[TimedOut] == ledger.timed_out,
        }


def test_every_hold_and_every_wait_ends_once_and_counts_agree(monkeypatch):
    ears, wrong, total = {}, [], Counter()

    def listening(*said):
        core = Core(*said)
        ears[core] = ear = Ear()
        listeners = Listeners("simulated")
        listeners.add(ear)
        core.listen(listeners)
        return core

    finish = Witness.finish

    def look(witness, stuck):
        for node, core in witness.clients:
            if not node.dead:  # the dead tell no tales
                ear = ears[core]
                wrong.extend(ear.wrong)
                total.update(ear.count)
                wrong.extend(what for what, right in ear.adds_up(core).items() if not right)
        finish(witness, stuck)

    monkeypatch.setattr(scenario, "Core", listening)
    monkeypatch.setattr(Witness, "finish", look)
    for seed in range(1, 101):
        assert run_seed(seed).violations == [] and wrong == [], f"seed {seed}"
        ears.clear()
    assert total[Acquired] > 2000 and total[Lost] > 50 and total[TimedOut] > 50
