"""The kinds of names that a seed uses: mostly plain locks, and every other kind often enough.

The kinds are drawn from a random generator of their own, so that a search for a bug in one kind can
skip the seeds of other kinds without running them.
"""

from __future__ import annotations

import random

from lab.simulation.work import Work
from lab.simulation.work_election import Election
from lab.simulation.work_latches import Barriers, Latches
from lab.simulation.work_locks import Locks
from lab.simulation.work_multi import Multi
from lab.simulation.work_permits import Permits
from lab.simulation.work_readwrite import ReadWrite

KINDS: dict[str, type[Work]] = {
    "lock": Locks,
    "semaphore": Permits,
    "readwrite": ReadWrite,
    "multi": Multi,
    "election": Election,
    "latch": Latches,
    "barrier": Barriers,
}
WEIGHTS = (40, 12, 16, 12, 6, 7, 7)
TWO = 0.3  # how often a run uses two names


def kinds_of(seed: int) -> list[str]:
    """Return the kinds of a seed, one or two. The same kind twice means two names of that kind."""
    dice = random.Random(f"cast {seed}")
    names = 2 if dice.random() < TWO else 1
    return dice.choices(tuple(KINDS), WEIGHTS, k=names)
