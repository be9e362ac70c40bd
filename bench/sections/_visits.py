"""The visits of all contenders for one name, merged: rate, latency and fairness of hand-overs."""

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
    """The figures of one round; latencies in µs."""

    rate: float
    p50: float
    p99: float
    longest: float  # wait, in ms
    fairness: float
    overlaps: float


# Acquires the lock: a context manager that yields the fence, or 0.
Entrance = Callable[[], AbstractContextManager[int]]


def visits_of(
    enter: Entrance, ready: Ready, count: int, lasts: float, patience: float
) -> list[list[Visit]]:
    """Let ``count`` threads of this process contend from the signal on; return their visits."""
    begin = ready()
    visits: list[list[Visit]] = [[] for _ in range(count)]
    threads = [
        threading.Thread(target=_visit, args=(enter, begin, begin + lasts, noted), daemon=True)
        for noted in visits
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
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
    """Merge the visits. They are ordered by fence or, without fences, by time."""
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
    """The median of the rounds, field by field."""
    columns = zip(*map(astuple, found), strict=True)  # type: ignore[arg-type]
    return type(found[0])(*(median(column) for column in columns))
