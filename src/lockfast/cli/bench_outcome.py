"""What the contenders noted, merged: how fast, how fairly and at what cost a name went round.

A **hand-over** is from just before a release is asked for until the next one, another contender, is
inside. So it contains the release's own step at the store. Where there is only one contender, the
next one is itself: a release and an acquire, the cycle of a lock that nobody else wants.

Costs are per acquire. In a full queue that is per hand-over; where few contend, one of them may
come again before another does, and what that cost was not for a hand-over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from statistics import median

from lockfast.cli.bench_messages import Noted


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round, or the median of several in each respect. Times in µs; NaN is: not known."""

    handovers: float  # a second
    p50: float  # release→next
    p99: float
    fairness: float  # Jain's index of the contenders' visits
    requests: float  # to the store, as lockfast counts them, per acquire
    cpu: float  # of our processes, per acquire
    server_cpu: float  # of the server's, per acquire
    overlaps: float  # how often two were inside at once
    given_up: float  # how often a contender's turn did not come in time

    def for_scripts(self) -> dict[str, float | None]:
        """JSON knows no NaN."""
        return {key: None if math.isnan(value) else value for key, value in asdict(self).items()}


def outcome(
    everybody: Sequence[Noted], begin: float, end: float, server_cpu: float | None
) -> Outcome:
    """What happened from ``begin`` to ``end``. Fences are in the order in which they were inside:
    that a fence's visit began before the visit of the fence below it had ended is an overlap."""
    contenders = [visits for noted in everybody for visits in noted.visits]
    merged = sorted(
        (fence, acquired, released, who)
        for who, visits in enumerate(contenders)
        for fence, acquired, released in zip(
            visits.fences, visits.acquired, visits.released, strict=False
        )
    )
    gaps, overlaps = [], 0
    for (_, _, released, before), (_, acquired, _, after) in pairwise(merged):
        overlaps += acquired < released
        if begin <= acquired < end and (before != after or len(contenders) == 1):
            gaps.append((acquired - released) * 1e6)
    shares = [sum(begin <= moment < end for moment in visits.acquired) for visits in contenders]
    each = sum(shares) or math.nan
    return Outcome(
        handovers=len(gaps) / (end - begin),
        p50=percentile(gaps, 0.5),
        p99=percentile(gaps, 0.99),
        fairness=jain(shares),
        requests=sum(noted.requests for noted in everybody) / each,
        cpu=sum(noted.cpu for noted in everybody) * 1e6 / each,
        server_cpu=math.nan if server_cpu is None else server_cpu * 1e6 / each,
        overlaps=overlaps,
        given_up=sum(visits.given_up for visits in contenders),
    )


def middle(rounds: Sequence[Outcome]) -> Outcome:
    """The median of the rounds, in each respect; of what must not happen, the sum. Rounded here,
    once: the table, the chart and the JSON say the same figure."""

    def of(field: str) -> float:
        values: list[float] = [getattr(outcome, field) for outcome in rounds]
        if field in ("overlaps", "given_up"):
            return sum(values)
        known = [value for value in values if not math.isnan(value)]
        return round(median(known), 4) if known else math.nan

    return Outcome(**{field.name: of(field.name) for field in fields(Outcome)})


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all got the same, 1/n when one got everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else math.nan
