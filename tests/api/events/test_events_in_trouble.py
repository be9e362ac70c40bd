"""Events under faults: the simulated clients are cancelled at any await, paused, and disconnected,
and their network loses, delays and repeats messages. The events of each client must still be
consistent, and agree with its counters."""

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


class Tally:
    """Listener that counts the events of one client."""

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
                self.wrong.append(f"{event}: ended twice, or before it began")
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
    tallies, wrong, total = {}, [], Counter()

    def core_with_tally(*args):
        core = Core(*args)
        tallies[core] = tally = Tally()
        listeners = Listeners("simulated")
        listeners.add(tally)
        core.listen(listeners)
        return core

    finish = Witness.finish

    def finish_and_compare(witness, stuck):
        for node, core in witness.clients:
            if not node.dead:  # a dead client cannot emit its last events
                tally = tallies[core]
                wrong.extend(tally.wrong)
                total.update(tally.count)
                wrong.extend(name for name, right in tally.adds_up(core).items() if not right)
        finish(witness, stuck)

    monkeypatch.setattr(scenario, "Core", core_with_tally)
    monkeypatch.setattr(Witness, "finish", finish_and_compare)
    for seed in range(1, 101):
        assert run_seed(seed).violations == [] and wrong == [], f"seed {seed}"
        tallies.clear()
    assert total[Acquired] > 2000 and total[Lost] > 50 and total[TimedOut] > 50
