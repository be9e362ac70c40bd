"""Fair comparison on a noisy machine: rounds in which every subject has its turn, and medians.

A ratio is taken within a round, where both sides met the same weather, and then the median of the
rounds' ratios: two medians of different rounds would compare different weathers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

Subject = Callable[[int], object]  # does it so many times


class Rounds:
    """Seconds an operation took, by subject and round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = seconds

    def micros(self, subject: str) -> float:
        """In the best round: for a target in µs, as others on the machine can only add to it."""
        return min(self.seconds[subject]) * 1e6

    def per_second(self, subject: str) -> float:
        return 1 / median(self.seconds[subject])

    def faster(self, subject: str, other: str) -> float:
        """How many times as fast as the other."""
        pairs = zip(self.seconds[other], self.seconds[subject], strict=True)
        return median(theirs / ours for theirs, ours in pairs)


def interleaved(subjects: Mapping[str, Subject], *, rounds: int, seconds: float) -> Rounds:
    """Each subject for about so many seconds in each round, in an order that turns."""
    counts = {name: _warm_up(subject, seconds) for name, subject in subjects.items()}
    took: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            subjects[name](counts[name])
            took[name].append((time.perf_counter() - began) / counts[name])
    return Rounds(took)


def _warm_up(subject: Subject, seconds: float) -> int:
    """How often it goes into that time; caches and files are warm after it."""
    count = 10
    while True:
        began = time.perf_counter()
        subject(count)
        took = time.perf_counter() - began
        if took >= seconds / 5:
            return max(int(count * seconds / took), 1)
        count *= 4
