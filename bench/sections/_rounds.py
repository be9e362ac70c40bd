"""Fair comparison on a noisy machine: rounds that measure every subject, and medians.

A ratio is taken within a round, where both sides met the same conditions; the result is the median
of the rounds' ratios. A ratio of two medians would compare different rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

Subject = Callable[[int], object]  # runs so many operations


class Rounds:
    """Seconds per operation, by subject and round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = seconds

    def micros(self, subject: str) -> float:
        """Microseconds in the best round: other work on the machine can only add to them."""
        return min(self.seconds[subject]) * 1e6

    def per_second(self, subject: str) -> float:
        return 1 / median(self.seconds[subject])

    def faster(self, subject: str, other: str) -> float:
        """The median ratio of the rates: above 1 if ``subject`` is faster."""
        pairs = zip(self.seconds[other], self.seconds[subject], strict=True)
        return median(theirs / ours for theirs, ours in pairs)


def interleaved(subjects: Mapping[str, Subject], *, rounds: int, seconds: float) -> Rounds:
    """Measure each subject for about ``seconds`` in each round, in rotating order."""
    counts = {name: _warm_up(subject, seconds) for name, subject in subjects.items()}
    took: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    for round_number in range(rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            subjects[name](counts[name])
            took[name].append((time.perf_counter() - began) / counts[name])
    return Rounds(took)


def _warm_up(subject: Subject, seconds: float) -> int:
    """Return the number of operations that fit into that time, with caches and files warm."""
    count = 10
    while True:
        began = time.perf_counter()
        subject(count)
        took = time.perf_counter() - began
        if took >= seconds / 5:
            return max(int(count * seconds / took), 1)
        count *= 4
