"""What may not have happened in a storm, found in what its workers told the witness.

F and G are holds of one name, F's fence the lower one. Times are read so that each finding is a
proof, however late a line or a process was: ``got`` and ``ended`` after the fact, ``asked``,
``checked``, ``believed`` and ``began`` before it.

- P1, P2  F is believed in after G was got. (Believed: `check` or `is_held` or `remaining` said so.)
- P3      A fence was given twice, or G was got before F was even asked for.
- P5      F's release said "released" although G had been got before it was called, or although
          F's own belief was over; F was told lost while it still had time; or told more than once.

One thing excuses: the server restarted empty. Of a hold granted before that it cannot know, so F
and G may both be believed in, and only the fence saves the resource. But F cannot be renewed by
a server that forgot it, so belief in it ends one lease after the restart began, at the latest. And
nothing excuses a breach of P3.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Amnesia:
    """The server was killed after ``began``, and was there again, empty, at ``ended``. ``fence`` is
    the wall clock in µs while it was dead: every fence given before is lower, because none is given
    ahead of the clock here, and every one given later is higher."""

    began: float
    ended: float
    fence: int


@dataclass(frozen=True)
class Hold:
    name: str
    fence: int
    pid: int
    turn: str
    asked: float
    got: float

    @property
    def who(self) -> str:
        return f"{self.pid}-{self.turn.partition('-')[0]}"


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    # In leases, from when the server was there again, until who stayed knew that it forgot him.
    told: list[float] = field(default_factory=list)


def judge(records: list[list[Any]], leases: dict[str, float], amnesias: list[Amnesia]) -> Verdict:
    verdict = Verdict()
    holds: dict[str, list[Hold]] = defaultdict(list)
    for kind, *said in records:
        verdict.counts[kind] += 1
        if kind == "hold":
            holds[said[0]].append(Hold(*said))
        elif kind == "raised":
            verdict.violations.append(f"a worker raised: {said}")
    for name, of_name in holds.items():
        court = Court(name, leases[name], of_name, amnesias, verdict)
        court.order_of_fences()
        for record in records:
            if record[1] == name:
                court.listen(*record)
    return verdict


class Court:
    """One name."""

    def __init__(
        self,
        name: str,
        lease: float,
        holds: list[Hold],
        amnesias: list[Amnesia],
        verdict: Verdict,
    ) -> None:
        self.name, self.lease, self.amnesias, self.verdict = name, lease, amnesias, verdict
        self.holds = sorted(holds, key=lambda hold: hold.got)
        self.times = [hold.got for hold in self.holds]
        self.by_key = {(hold.fence, hold.pid, hold.turn): hold for hold in holds}
        verdict.counts["hand-overs"] += sum(
            one.who != other.who for one, other in pairwise(self.holds)
        )

    def accuse(self, what: str, *whom: object) -> None:
        self.verdict.violations.append(f"{self.name}: {what}: {whom}")

    def order_of_fences(self) -> None:
        fences = Counter(hold.fence for hold in self.holds)
        for fence, times in fences.items():
            if times > 1:
                twins = [hold for hold in self.holds if hold.fence == fence]
                self.accuse("P3: one fence, granted twice", *twins)
        highest: list[Hold] = []  # of all holds up to this one, in the order of `got`
        for hold in self.holds:
            highest.append(max([*highest[-1:], hold], key=lambda one: one.fence))
        for hold in self.holds:
            before = bisect_left(self.times, hold.asked)
            if before and highest[before - 1].fence >= hold.fence:
                self.accuse("P3: not above a fence granted before", hold, highest[before - 1])

    def successor(self, hold: Hold, moment: float) -> Hold | None:
        """One with a higher fence that was got before this moment."""
        low, high = bisect_right(self.times, hold.got), bisect_left(self.times, moment)
        return next((one for one in self.holds[low:high] if one.fence > hold.fence), None)

    def forgotten(self, hold: Hold, moment: float) -> Amnesia | None:
        """The restart that excuses what was true of the hold at this moment."""
        for amnesia in self.amnesias:
            if hold.fence < amnesia.fence and moment > amnesia.began:
                return amnesia
        return None

    def believed(self, hold: Hold, moment: float, how: str) -> None:
        if amnesia := self.forgotten(hold, moment):
            if moment > amnesia.began + self.lease:
                self.accuse(f"P2: {how} a lease after the server forgot it", hold, moment, amnesia)
        elif rival := self.successor(hold, moment):
            self.accuse(f"P1: {how} when another had it", hold, moment, rival)

    def told_lost(self, hold: Hold, until: float, ended: float) -> None:
        """It was told by ``ended``, and had believed in it until later."""
        if ended < until and not self.forgotten(hold, ended):
            self.accuse("P5: lost before its time", hold, until, ended)

    def listen(self, kind: str, _name: object = 0, *said: Any) -> None:
        if kind not in ("write", "fell", "left"):
            return
        fence, pid, turn, moment, *more = said
        hold = self.by_key[fence, pid, turn]
        counts = self.verdict.counts
        if kind == "write":
            held, accepted = more
            counts["accepted" if accepted else "refused"] += 1
            counts["refused that believed"] += held and not accepted
            if held:
                self.believed(hold, moment, "written")
        elif kind == "fell":
            rest, ended = more
            self.believed(hold, moment, "believed in")
            self.told_lost(hold, moment + rest, ended)
            if amnesia := self.forgotten(hold, ended):
                self.verdict.told.append((ended - amnesia.ended) / self.lease)
        else:
            rest, outcome, ended, told = more
            counts[outcome] += 1
            if rest > 0:
                self.believed(hold, moment, "believed in")
            if told > 1:
                self.accuse("P5: told more than once that it is lost", hold, told)
            if outcome == "lost":
                self.told_lost(hold, moment + rest, ended)
            elif outcome == "released" and not self.forgotten(hold, ended):
                if rest == 0:
                    self.accuse("P5: released although its belief was over", hold, moment)
                elif rival := self.successor(hold, moment):
                    self.accuse("P5: released although another had it", hold, moment, rival)
