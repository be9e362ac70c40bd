"""Could one honest store have given these answers? A linearizability check for lock histories.

A simulation records what the clients of ONE name saw: when each call began, when it was answered,
and what the answer said, in true time. ``History.check`` asks whether every call can be given one
instant inside its interval so that the calls, run one by one in that order, obey this law:

* a claim is granted when its take fits into the slots beside the live holds, under a fence greater
  than every fence before; one claim id is granted at most once, and asking again is harmless;
* a release says True of a live hold, and ends it; it says False of what is not live;
* a hold ends by itself, silently, only at an instant from its ``may_expire`` or ``broken`` on;
* a claim answered None holds nothing once it is answered, and needs no justification;
* a call without an answer took effect at some instant after it began, or never.

Instants may coincide and then stand in whatever order helps: a tie is never a violation.

Why no search is needed (in general, checking linearizability is NP-complete): every answered grant
carries a unique fence and fences rise, so the order of the grants is known. Unknown are the instant
g of each grant and e >= g of the end of its hold. For one claim id:

* lo <= g <= hi: first asked, and first answer that knows of the hold: a fence or a True release.
* e >= ends: the beginning of the True release, which alone can have ended the hold, or else the
  first instant at which lease, operator or an unanswered release can have. Who was told the fence
  found the hold alive, so ``ends`` is no earlier than the beginning of any such call.
* A False release lies before g or after e. If ``ends`` <= its answer, one of the two is always
  possible, by e = max(g, ends). If not, e is too late, and g must follow its beginning: raise lo.

So g and e have lower bounds, but only g has upper ones (g <= the True release's answer is enough
for e = max(g, ends) to be so), and early never harms. By induction over the fences: the earliest
g that fits is no later than in any valid schedule, so e = max(g, ends) neither, so the live holds
beside the next grant are a subset of that schedule's. If the earliest g is after hi, there is no
schedule. With a heap of ends this is O(n log n).

Secret grants: a claim never answered may have been granted. That only takes room from others, so
we drop it, unless a release said True of it. Then it was granted, under a fence nobody saw (we
suppose that a number was left for it), at an unknown place in the order. Granted and released at
one instant it is in nobody's way: it only needs an instant with room. If there is one before the
next grant's earliest, it costs nothing. If not, we go on without it and note the alternative, to
make that grant wait for it, taken up when the road ends. This alone can explode, so it is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal

# Tries beyond one per grant before we give up: 30 ms as a rule. Ordinary histories need a few.
EXTRA_STEPS = 10_000
NEVER = math.inf
Verb = Literal["claim", "release"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok`` is True (an order exists), False (none does) or None (undecided: too much to try)."""

    ok: bool | None
    reason: str


@dataclass(slots=True, eq=False)
class Operation:
    """One call of one client; ``answered`` is NEVER while it is open."""

    client: str
    verb: Verb
    claim_id: str
    invoked: float
    take: int
    answered: float = NEVER
    result: int | bool | None = None

    def __str__(self) -> str:
        until = "never answered" if self.answered == NEVER else f"answered {self.answered:.9g}"
        return f"{self.verb} by {self.client} asked {self.invoked:.9g}, {until}"


class History:
    """What the clients of one name saw; ``check`` says whether a correct store can have done it.

    Record one claim per acquisition, from before its first request until its last answer; several
    with one id are understood as one claim that stands since the first. Not safe across threads.
    """

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self._lives: defaultdict[str, _Life] = defaultdict(_Life)

    def invoke(self, client: str, verb: Verb, claim_id: str, at: float, take: int = 1) -> Operation:
        """An open operation. It may have taken effect at any time from ``at`` on, or never."""
        op = Operation(client, verb, claim_id, at, take)
        life = self._lives[claim_id]
        (life.claims if verb == "claim" else life.releases).append(op)
        return op

    def answer(self, op: Operation, at: float, result: int | bool | None) -> None:
        """Close ``op``. A claim: its fence, or None (not acquired). A release: True, or False (it
        was not ours any more). What cannot be known for sure must stay open instead."""
        if op.answered != NEVER:
            raise ValueError(f"{op}: answered twice, now {result!r} at {at!r}")
        if not op.invoked <= at < NEVER:
            raise ValueError(f"{op}: cannot be answered at {at!r}")
        if isinstance(result, bool) is not (op.verb == "release"):
            raise TypeError(f"{op}: {result!r} is no answer to a {op.verb}")
        op.answered, op.result = at, result

    def may_expire(self, claim_id: str, after: float) -> None:
        """The lease may run out from ``after`` on, by the store's clock; the latest call counts."""
        self._lives[claim_id].expires = after

    def broken(self, claim_id: str, at: float) -> None:
        """An operator broke the hold or the store forgot it: it may have ended from ``at`` on."""
        life = self._lives[claim_id]
        life.broken = min(life.broken, at)

    def check(self, *, extra_steps: int = EXTRA_STEPS) -> Verdict:
        """Whether the calls can be ordered, and if not, which of them cannot. Changes nothing."""
        grants: list[_Hold] = []
        secrets: list[_Hold] = []
        for life in self._lives.values():
            match life.hold():
                case str() as contradiction:
                    return Verdict(False, contradiction)
                case _Hold() as hold:
                    (secrets if hold.fence is None else grants).append(hold)
        grants.sort(key=lambda hold: hold.fence or 0)
        secrets.sort(key=lambda hold: hold.lo)
        for one, other in pairwise(grants):
            if one.fence == other.fence:
                return Verdict(False, f"{one} and {other} have the same fence")
        return _order(grants, tuple(secrets), self.slots, len(grants) + extra_steps)


@dataclass(slots=True, eq=False)
class _Life:
    """All that was recorded about one claim id."""

    claims: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    expires: float = NEVER
    broken: float = NEVER

    def hold(self) -> _Hold | str | None:
        """The bounds of its hold, or why there are none, or None when it need not have existed."""
        told = [op for op in self.claims if op.result is not None]
        freed = [op for op in self.releases if op.result]
        if len(freed) > 1:
            return f"{freed[0].claim_id} was released twice: {freed[0]}; {freed[1]}"
        if not told:
            return self._secret(freed[0]) if freed else None
        if len(fences := {op.result for op in told}) > 1:
            return f"{told[0].claim_id} was granted under several fences: {fences}"
        lo = min([op.invoked for op in self.claims])
        hi = min([op.answered for op in told])
        hold = _Hold(self, told[0], told[0].result, lo, hi, max([op.invoked for op in told]))
        if freed:
            if hold.ends > freed[0].answered:
                return f"{hold} was told its fence after its {freed[0]}, said released"
            hold.hi = min(hold.hi, freed[0].answered)
            hold.ends = max(hold.ends, freed[0].invoked)
        else:
            lost = [op.invoked for op in self.releases if op.answered == NEVER]
            hold.ends = max(hold.ends, min(self.expires, self.broken, *lost, NEVER))
        for op in self.releases:
            if op.result is False and hold.ends > op.answered:
                hold.lo = max(hold.lo, op.invoked)
                if hold.lo > hold.hi:
                    return f"its {op}, said not held, but {hold} {hold.until()}"
        return hold

    def _secret(self, freed: Operation) -> _Hold | str:
        """A hold that only its release tells of, or why it cannot have existed."""
        if not self.claims:
            return f"{freed.claim_id}, never claimed: its {freed}, said released"
        # None means that nothing was kept: a grant was taken back before that answer, if ever.
        kept = max(op.answered for op in self.claims)
        lo = max(freed.invoked, min(op.invoked for op in self.claims))
        hold = _Hold(self, self.claims[0], None, lo, min(freed.answered, kept), lo)
        return hold if lo <= hold.hi else f"{hold} held nothing, yet its {freed}, said released"


@dataclass(slots=True, eq=False)
class _Hold:
    """A hold that must have existed: granted in [lo, hi], over not before ``ends``."""

    life: _Life
    claim: Operation
    fence: int | None
    lo: float
    hi: float
    ends: float

    def __str__(self) -> str:
        fence = "fence unknown" if self.fence is None else f"fence {self.fence}"
        return f"{self.claim.claim_id} ({fence}, take {self.claim.take}, {self.claim})"

    def until(self) -> str:
        """Why it cannot have ended earlier, for people."""
        freed = next((op for op in self.life.releases if op.result), None)
        if self.ends == NEVER:
            return "was never released and could not expire"
        why = f"its {freed}, said released" if freed else "no release, lease or operator was sooner"
        return f"cannot have ended before {self.ends:.9g} ({why})"


class _Room:
    """The free slots and, as a heap, the earliest ends of the holds in the others."""

    __slots__ = ("ends", "free")

    def __init__(self, free: int, ends: list[tuple[float, int]]) -> None:
        self.free, self.ends = free, ends

    def copy(self) -> _Room:
        return _Room(self.free, self.ends[:])

    def fit(self, take: int, at: float) -> float:
        """The first instant from ``at`` on with room for ``take``; whoever ended by then is out."""
        while self.ends and (self.ends[0][0] <= at or self.free < take):
            end, freed = heappop(self.ends)
            self.free += freed
            at = max(at, end)
        return at if self.free >= take else NEVER


# Where a walk begins: the next grant, the instant reached, the room then, the secrets to place.
_Road = tuple[int, float, _Room, tuple[_Hold, ...]]


def _order(grants: list[_Hold], secrets: tuple[_Hold, ...], slots: int, steps: int) -> Verdict:
    """Walk the roads until one reaches the end; the first failure is the one worth reading."""
    roads: list[_Road] = [(0, -NEVER, _Room(slots, []), secrets)]
    tried: dict[tuple[int, tuple[_Hold, ...]], float] = {}
    reason = ""
    while roads:
        index, now, _, pending = road = roads.pop()
        if now >= tried.get((index, pending), NEVER):
            continue  # What failed from an earlier instant fails from a later one.
        tried[index, pending] = now
        failure, steps = _walk(grants, road, roads, steps)
        if not failure:
            return Verdict(True, f"{len(grants) + len(secrets)} grants can be ordered")
        reason = reason or failure
        if steps <= 0:
            return Verdict(None, f"undecided, too many orders to try; the first failed: {reason}")
    return Verdict(False, reason)


def _walk(grants: list[_Hold], road: _Road, roads: list[_Road], steps: int) -> tuple[str, int]:
    """Place each grant at its earliest instant and each secret where it costs nothing; say why that
    failed ("" if not), and how many steps are left. Alternatives passed by are added to ``roads``.
    """
    start, now, room, pending = road
    passed = len(roads)
    for index in range(start, len(grants)):
        grant = grants[index]
        steps -= 1
        before = room.copy() if pending and pending[0].lo <= grant.hi else None
        at = room.fit(grant.claim.take, max(now, grant.lo))
        if at > grant.hi:
            del roads[passed:]  # They only come later, and are too late as well.
            return _refusal(grant, grants[:index]), steps
        if before is not None:
            for secret in pending:
                if secret.lo > grant.hi:
                    break
                steps -= 1
                trial = before.copy()
                moment = trial.fit(secret.claim.take, max(now, secret.lo))
                if moment > secret.hi:
                    return _refusal(secret, grants[:index]), steps
                rest = tuple(other for other in pending if other is not secret)
                if moment <= at:
                    pending = rest
                elif moment <= grant.hi:
                    roads.append((index, moment, trial, rest))
            if steps <= 0:
                return f"{grant} was the last to be tried", steps
        room.free -= grant.claim.take
        heappush(room.ends, (grant.ends, grant.claim.take))  # e = max(at, ends): fit sees to it.
        now = at
    for secret in pending:
        if room.copy().fit(secret.claim.take, max(now, secret.lo)) > secret.hi:
            return _refusal(secret, grants), steps
    return "", steps


def _refusal(hold: _Hold, before: list[_Hold]) -> str:
    """Why ``hold`` cannot be granted after the grants ``before`` it, for people."""
    late = [other for other in before if other.lo > hold.hi]
    if late and hold.fence is not None:
        return f"{hold} has a higher fence than {late[0]}, which cannot have come so early"
    concurrency = [other for other in before if other.ends > (hold.lo if late else hold.hi)][-4:]
    held = "; ".join(f"{other} {other.until()}" for other in concurrency) or "nobody else held it"
    return f"{hold} finds no room by {hold.hi:.9g}: {held}"
