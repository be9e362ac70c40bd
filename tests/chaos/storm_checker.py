"""Check the history of a storm: find breaches of the promises in the records of its workers.

F and G are holds of one name, F's fence the lower one. Timestamps are taken so that each breach is
proven however late a line or a process was: ``acquired`` and ``ended`` are read after the event,
``asked``, ``checked``, ``seen`` and ``began`` before it.

- P1, P2  F is considered valid after G was acquired (`check`, `is_held` or `remaining` say so).
- P3      A fence was granted twice, or G was acquired before F was even asked for.
- P5      F's release returned "released" although G had been acquired before the call, or although
          F was no longer valid; F was reported lost before it ran out; or reported more than once.

One event excuses a breach: the server restarted empty. The server has forgotten the holds granted
before, so F and G may both be valid, and only the fence protects the resource. But a server that
forgot F cannot renew it, so F is valid for at most one lease after the restart began. Nothing
excuses a breach of P3.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Amnesia:
    """A restart without data: the server was killed after ``began`` and up again at ``ended``.

    ``fence`` is the wall clock in µs while the server was down. Every fence granted before is
    lower, because none is granted ahead of the clock here, and every later fence is higher.
    """

    began: float
    ended: float
    fence: int


@dataclass(frozen=True)
class Hold:
    name: str
    fence: int
    pid: int
    cycle: str
    asked: float
    acquired: float

    @property
    def contender(self) -> str:
        return f"{self.pid}-{self.cycle.partition('-')[0]}"


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    # In leases: from the end of an empty restart until a lingering holder knew of its loss.
    loss_delays: list[float] = field(default_factory=list)


def check_history(
    records: list[list[Any]], leases: dict[str, float], amnesias: list[Amnesia]
) -> Verdict:
    verdict = Verdict()
    holds: dict[str, list[Hold]] = defaultdict(list)
    for kind, *fields in records:
        verdict.counts[kind] += 1
        if kind == "hold":
            holds[fields[0]].append(Hold(*fields))
        elif kind == "raised":
            verdict.violations.append(f"a worker raised: {fields}")
    for name, of_name in holds.items():
        checker = NameChecker(name, leases[name], of_name, amnesias, verdict)
        checker.check_fences()
        for record in records:
            if record[1] == name:
                checker.check_record(*record)
    return verdict


class NameChecker:
    """The checks of one name."""

    def __init__(
        self,
        name: str,
        lease: float,
        holds: list[Hold],
        amnesias: list[Amnesia],
        verdict: Verdict,
    ) -> None:
        self.name, self.lease, self.amnesias, self.verdict = name, lease, amnesias, verdict
        self.holds = sorted(holds, key=lambda hold: hold.acquired)
        self.times = [hold.acquired for hold in self.holds]
        self.by_key = {(hold.fence, hold.pid, hold.cycle): hold for hold in holds}
        verdict.counts["hand-overs"] += sum(
            one.contender != other.contender for one, other in pairwise(self.holds)
        )

    def violation(self, breach: str, *evidence: object) -> None:
        self.verdict.violations.append(f"{self.name}: {breach}: {evidence}")

    def check_fences(self) -> None:
        fences = Counter(hold.fence for hold in self.holds)
        for fence, times in fences.items():
            if times > 1:
                same = [hold for hold in self.holds if hold.fence == fence]
                self.violation("P3: one fence, granted twice", *same)
        highest: list[Hold] = []  # of all holds up to this one, in the order of `acquired`
        for hold in self.holds:
            highest.append(max([*highest[-1:], hold], key=lambda one: one.fence))
        for hold in self.holds:
            before = bisect_left(self.times, hold.asked)
            if before and highest[before - 1].fence >= hold.fence:
                self.violation("P3: not above a fence granted before", hold, highest[before - 1])

    def successor(self, hold: Hold, moment: float) -> Hold | None:
        """Return a hold with a higher fence that was acquired before this moment."""
        low, high = bisect_right(self.times, hold.acquired), bisect_left(self.times, moment)
        return next((one for one in self.holds[low:high] if one.fence > hold.fence), None)

    def excuse(self, hold: Hold, moment: float) -> Amnesia | None:
        """Return the empty restart that excuses the state of the hold at this moment."""
        for amnesia in self.amnesias:
            if hold.fence < amnesia.fence and moment > amnesia.began:
                return amnesia
        return None

    def check_valid(self, hold: Hold, moment: float, use: str) -> None:
        """Check that the hold may have been considered valid at this moment."""
        if amnesia := self.excuse(hold, moment):
            if moment > amnesia.began + self.lease:
                self.violation(f"P2: {use} a lease after a restart", hold, moment, amnesia)
        elif rival := self.successor(hold, moment):
            self.violation(f"P1: {use} when another had it", hold, moment, rival)

    def check_lost(self, hold: Hold, valid_until: float, ended: float) -> None:
        """Check that a loss reported by ``ended`` did not come before the hold ran out."""
        if ended < valid_until and not self.excuse(hold, ended):
            self.violation("P5: lost before its time", hold, valid_until, ended)

    def check_record(self, kind: str, _name: object = 0, *fields: Any) -> None:
        if kind not in ("write", "expired", "release"):
            return
        fence, pid, cycle, moment, *more = fields
        hold = self.by_key[fence, pid, cycle]
        counts = self.verdict.counts
        if kind == "write":
            held, accepted = more
            counts["accepted" if accepted else "refused"] += 1
            counts["refused while valid"] += held and not accepted
            if held:
                self.check_valid(hold, moment, "written")
        elif kind == "expired":
            remaining, ended = more
            self.check_valid(hold, moment, "valid")
            self.check_lost(hold, moment + remaining, ended)
            if amnesia := self.excuse(hold, ended):
                self.verdict.loss_delays.append((ended - amnesia.ended) / self.lease)
        else:
            remaining, outcome, ended, losses = more
            counts[outcome] += 1
            if remaining > 0:
                self.check_valid(hold, moment, "valid")
            if losses > 1:
                self.violation("P5: reported lost more than once", hold, losses)
            if outcome == "lost":
                self.check_lost(hold, moment + remaining, ended)
            elif outcome == "released" and not self.excuse(hold, ended):
                if remaining == 0:
                    self.violation("P5: released although no longer valid", hold, moment)
                elif rival := self.successor(hold, moment):
                    self.violation("P5: released although another had it", hold, moment, rival)
