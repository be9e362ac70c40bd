"""What contenders for one name noted, merged: how fast, and how fairly, it went round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from itertools import pairwise
from statistics import median
from typing import TypeVar

from lockfast.cli.bench_outcome import jain, percentile

from ._processes import Ready, wait_until

T = TypeVar("T")
Visit = tuple[int, float, float, float]  # fence, asked, acquired, released


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round showed; latencies in µs."""

    rate: float
    p50: float
    p99: float
    longest: float  # wait, in ms
    fairness: float
    overlaps: float


# How to enter: a context manager that gives the fence, or 0.
Entrance = Callable[[], AbstractContextManager[int]]


def visits_of(
    enter: Entrance, ready: Ready, count: int, lasts: float, patience: float
) -> list[list[Visit]]:
    """So many threads of this process, which contend from the signal on: what each noted."""
    begin = ready()
    visits: list[list[Visit]] = [[] for _ in range(count)]
    crowd = [
        threading.Thread(target=_visit, args=(enter, begin, begin + lasts, noted), daemon=True)
        for noted in visits
    ]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(lasts + patience)
    return visits


def _visit(enter: Entrance, begin: float, end: float, noted: list[Visit]) -> None:
    wait_until(begin)
    now = time.monotonic
    while (asked := now()) < end:
        with enter() as fence:
            acquired = now()
            noted.append((fence, asked, acquired, now()))


def judged(everybody: Sequence[Sequence[Visit]], begin: float, end: float) -> Outcome:
    """Merge what the contenders noted. Fences are in the order in which they were inside; where
    there are none, the times are."""
    merged = sorted(
        (fence, acquired, released, asked, who)
        for who, visits in enumerate(everybody)
        for fence, asked, acquired, released in visits
    )
    gaps, overlaps = [], 0
    for (_, _, released, _, before), (_, acquired, _, _, after) in pairwise(merged):
        overlaps += acquired < released
        if before != after and begin <= acquired < end:
            gaps.append((acquired - released) * 1e6)
    shares = [sum(begin <= visit[2] < end for visit in visits) for visits in everybody]
    waits = [acquired - asked for _, acquired, _, asked, _ in merged if asked < end]
    return Outcome(
        rate=len(gaps) / (end - begin),
        p50=percentile(gaps, 0.5),
        p99=percentile(gaps, 0.99),
        longest=max(waits, default=0.0) * 1e3,
        fairness=jain(shares),
        overlaps=overlaps,
    )


def middle(found: Sequence[T]) -> T:
    """The median of the rounds, in each respect."""
    columns = zip(*map(astuple, found), strict=True)  # type: ignore[arg-type]
    return type(found[0])(*(median(column) for column in columns))
