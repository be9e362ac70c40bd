"""Merge the contenders' records: speed, fairness and cost of the hand-overs of a name.

A **hand-over** lasts from just before one contender calls release until another contender holds the
lock, so it includes the release's own round trip to the store. With a single contender it is the
release and acquire of that contender: the cycle of an uncontended lock.

Costs are per acquire. With a full queue every acquire is a hand-over. One of few contenders may
acquire twice in a row, so costs per acquire then include cycles without a hand-over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from statistics import median

from lockfast.cli.bench_messages import WorkerResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one round, or their medians over several. Times in µs; NaN means unknown."""

    handovers: float  # per second
    p50: float  # release → next holder
    p99: float
    fairness: float  # Jain's index of the contenders' acquires
    requests: float  # to the store, as lockfast counts them, per acquire
    cpu: float  # of the worker processes, per acquire
    server_cpu: float  # of the server, per acquire
    overlaps: float  # times that two contenders held the lock at once
    timeouts: float  # acquires that timed out

    def as_json(self) -> dict[str, float | None]:
        """Fields for JSON, which has no NaN: unknown is null."""
        return {key: None if math.isnan(value) else value for key, value in asdict(self).items()}


def outcome(
    workers: Sequence[WorkerResult], begin: float, end: float, server_cpu: float | None
) -> Outcome:
    """Compute the figures from ``begin`` to ``end``."""
    contenders = [one for worker in workers for one in worker.visits]
    visits = [zip(one.fences, one.acquired, one.released, strict=False) for one in contenders]
    merged = hand_overs(visits, begin, end)
    gaps, shares = merged.gaps, merged.shares
    acquires = sum(shares) or math.nan
    return Outcome(
        handovers=len(gaps) / (end - begin),
        p50=percentile(gaps, 0.5),
        p99=percentile(gaps, 0.99),
        fairness=jain(shares),
        requests=sum(worker.requests for worker in workers) / acquires,
        cpu=sum(worker.cpu for worker in workers) * 1e6 / acquires,
        server_cpu=math.nan if server_cpu is None else server_cpu * 1e6 / acquires,
        overlaps=merged.overlaps,
        timeouts=sum(one.timeouts for one in contenders),
    )


@dataclass(frozen=True, slots=True)
class HandOvers:
    """The merged visits of all contenders."""

    gaps: list[float]  # µs from a release to the next contender's acquire
    shares: list[int]  # acquires of each contender
    overlaps: int


def hand_overs(
    contenders: Sequence[Iterable[tuple[int, float, float]]], begin: float, end: float
) -> HandOvers:
    """Merge visits (fence, acquired, released); compute the hand-overs from ``begin`` to ``end``.

    Visits are ordered by fence, or by time where a lock has no fences (0). A visit that began
    before the one before it had ended is an overlap.
    """
    merged = sorted(
        (*visit, contender) for contender, visits in enumerate(contenders) for visit in visits
    )
    gaps, overlaps = [], 0
    shares = [0] * len(contenders)
    for _, acquired, _, contender in merged:
        shares[contender] += begin <= acquired < end
    for (_, _, released, before), (_, acquired, _, after) in pairwise(merged):
        overlaps += acquired < released
        if begin <= acquired < end and (before != after or len(contenders) == 1):
            gaps.append((acquired - released) * 1e6)
    return HandOvers(gaps, shares, overlaps)


def medians(rounds: Sequence[Outcome]) -> Outcome:
    """Median of each figure over the rounds; overlaps and time-outs are added up.

    Figures are rounded here, once, so that the table, the chart and the JSON agree.
    """

    def of(field: str) -> float:
        values: list[float] = [getattr(outcome, field) for outcome in rounds]
        if field in ("overlaps", "timeouts"):
            return sum(values)
        known = [value for value in values if not math.isnan(value)]
        return round(median(known), 4) if known else math.nan

    return Outcome(**{field.name: of(field.name) for field in fields(Outcome)})


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that this share of the values does not exceed; NaN if there are none."""
    if not values:
        return math.nan
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one contender got everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else math.nan
