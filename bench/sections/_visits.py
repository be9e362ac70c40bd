"""The visits of all contenders for one name, merged: rate, latency and fairness of hand-overs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from statistics import median
from typing import TypeVar

from lockfast.cli.bench_outcome import hand_overs, jain, percentile

from ._processes import wait_until

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
    enter: Entrance, begin: float, count: int, lasts: float, patience: float
) -> list[list[Visit]]:
    """Let ``count`` threads of this process contend from ``begin`` on; return their visits."""
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
        try:
            with enter() as fence:
                acquired = now()
                noted.append((fence, asked, acquired, now()))
        except TimeoutError:
            return


def judged(everybody: Sequence[Sequence[Visit]], begin: float, end: float) -> Outcome:
    """Merge the visits of all contenders."""
    merged = hand_overs(
        [
            [(fence, acquired, released) for fence, _, acquired, released in visits]
            for visits in everybody
        ],
        begin,
        end,
    )
    waits = [visit[2] - visit[1] for visits in everybody for visit in visits if visit[1] < end]
    return Outcome(
        rate=len(merged.gaps) / (end - begin),
        p50=percentile(merged.gaps, 0.5),
        p99=percentile(merged.gaps, 0.99),
        longest=max(waits, default=0.0) * 1e3,
        fairness=jain(merged.shares),
        overlaps=merged.overlaps,
    )


def middle(found: Sequence[T]) -> T:
    """The median of the rounds, field by field."""
    columns = zip(*map(astuple, found), strict=True)  # type: ignore[arg-type]
    return type(found[0])(*(median(column) for column in columns))
