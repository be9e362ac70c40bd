"""Fair comparison on a noisy machine: rounds that measure every subject, and medians.

A ratio is taken within a round, where both sides met the same conditions; the result is the median
of the rounds' ratios. A ratio of two medians would compare different rounds.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

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


# ---- subjects -------------------------------------------------------------------------------


def cycles(made: Callable[[], Any]) -> Subject:
    """Acquire and release what is made each time."""

    def cycle(count: int) -> None:
        for _ in range(count):
            with made():
                pass

    return cycle


def gathered(runner: asyncio.Runner, tasks: int, made: Callable[[int], Any]) -> Subject:
    """So many tasks at once, each of which acquires and releases what is made for its number."""

    async def one(index: int, count: int) -> None:
        for _ in range(count):
            async with made(index):
                pass

    async def all_of_them(count: int) -> None:
        await asyncio.gather(*(one(index, count) for index in range(tasks)))

    return lambda count: runner.run(all_of_them(count))


@contextmanager
def threads(count: int, subject_of: Callable[[int], Subject]) -> Iterator[Subject]:
    """A subject that runs in all threads at once. The threads are the same in all rounds, so that
    they keep their connections."""
    orders: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(count)]
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    subjects = [subject_of(index) for index in range(count)]

    def work(index: int) -> None:
        while operations := orders[index].get():
            try:
                subjects[index](operations)
                done.put(None)
            except BaseException as error:
                done.put(error)

    crew = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(count)]
    for thread in crew:
        thread.start()

    def together(operations: int) -> None:
        for order in orders:
            order.put(operations)
        for error in [done.get(timeout=60) for _ in orders]:
            if error is not None:
                raise error

    try:
        yield together
    finally:
        for order in orders:
            order.put(0)
        for thread in crew:
            thread.join(10)
