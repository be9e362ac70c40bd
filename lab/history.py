"""A linearizability check for lock histories: could one correct store have given these answers?

A simulation records the calls of the clients of ONE name: when each began, when it was answered,
and the answer, in true time. ``History.check`` decides whether every call can be assigned one
instant inside its interval so that the calls, run one by one in that order, obey this law:

* a claim is granted when its take fits into the slots beside the live holds, under a fence greater
  than every fence before; one claim id is granted at most once, and repeating it is harmless;
* a release of a live hold ends it and returns True; any other release returns False;
* a hold ends by itself, silently, only at an instant from its ``may_expire`` or ``broken`` on;
* a claim answered None holds nothing once it is answered, and needs no justification;
* a call without an answer took effect at some instant after it began, or never.

Instants may coincide and then count in whatever order helps: a tie is never a violation.

Why no search is needed (in general, checking linearizability is NP-complete): every answered grant
carries a unique fence and fences rise, so the order of the grants is known. Unknown are the instant
g of each grant and e >= g of the end of its hold. For one claim id:

* lo <= g <= hi: the first request, and the first answer that proves the hold: a fence or a True
  release.
* e >= ends: the beginning of the True release, which alone can have ended the hold, or else the
  first instant at which lease, operator or an unanswered release can have. A claim that was
  answered with the fence found the hold alive, so ``ends`` is no earlier than the beginning of any
  such call.
* A False release lies before g or after e. If ``ends`` <= its answer, one of the two is always
  possible, by e = max(g, ends). If not, e is too late, and g must follow its beginning: raise lo.

So g and e have lower bounds, but only g has upper ones (if g <= the True release's answer, so is
e = max(g, ends)), and an earlier instant never harms. By induction over the fences: the earliest g
that fits is no later than in any valid schedule; nor is e = max(g, ends); so the live holds beside
the next grant are a subset of that schedule's. If the earliest g is after hi, there is no schedule.
With a heap of ends this is O(n log n).

Secret grants: a claim never answered may have been granted. That only takes room from others, so
we ignore it, unless a release of it returned True. Then it was granted, under a fence that no
client saw (we assume that a number was left for it), at an unknown position in the order. Granted
and released at one instant it blocks nobody: it only needs an instant with room. If there is one
before the next grant's earliest, it costs nothing. If not, we go on without it and record the
alternative, in which that grant waits for it, to be tried when the current path fails. Only this
part can explode, so it is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal

# Steps beyond one per grant before we give up: usually 30 ms. Ordinary histories need a few.
EXTRA_STEPS = 10_000
NEVER = math.inf
Verb = Literal["claim", "release"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: True (an order exists), False (none does), None (too many to try)."""

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
    """The calls of the clients of one name; ``check`` decides whether they fit a correct store.

    Record one claim per acquisition, from before its first request until its last answer. Claims
    with the same id count as one claim, which exists since the first. Not thread-safe.
    """

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self._lives: defaultdict[str, _Life] = defaultdict(_Life)

    def invoke(self, client: str, verb: Verb, claim_id: str, at: float, take: int = 1) -> Operation:
        """Record an open operation, which may take effect at any time from ``at`` on, or never."""
        op = Operation(client, verb, claim_id, at, take)
        life = self._lives[claim_id]
        (life.claims if verb == "claim" else life.releases).append(op)
        return op

    def answer(self, op: Operation, at: float, result: int | bool | None) -> None:
        """Close ``op``. The result of a claim is its fence, or None (not acquired); that of a
        release is True, or False (not held). Leave an operation open if its outcome is unknown."""
        if op.answered != NEVER:
            raise ValueError(f"{op}: answered twice, now {result!r} at {at!r}")
        if not op.invoked <= at < NEVER:
            raise ValueError(f"{op}: cannot be answered at {at!r}")
        if isinstance(result, bool) is not (op.verb == "release"):
            raise TypeError(f"{op}: {result!r} is no answer to a {op.verb}")
        op.answered, op.result = at, result

    def may_expire(self, claim_id: str, after: float) -> None:
        """Record that the store may end the lease from ``after`` on; the latest call counts."""
        self._lives[claim_id].expires = after

    def broken(self, claim_id: str, at: float) -> None:
        """Record that the hold may have ended from ``at`` on: broken by an operator, or lost."""
        life = self._lives[claim_id]
        life.broken = min(life.broken, at)

    def check(self, *, extra_steps: int = EXTRA_STEPS) -> Verdict:
        """Return whether the calls can be ordered, and if not, which of them cannot."""
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
    """All records of one claim id."""

    claims: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    expires: float = NEVER
    broken: float = NEVER

    def hold(self) -> _Hold | str | None:
        """Return the bounds of its hold, a contradiction, or None if it need not have existed."""
        granted = [op for op in self.claims if op.result is not None]
        freed = [op for op in self.releases if op.result]
        if len(freed) > 1:
            return f"{freed[0].claim_id} was released twice: {freed[0]}; {freed[1]}"
        if not granted:
            return self._secret(freed[0]) if freed else None
        if len(fences := {op.result for op in granted}) > 1:
            return f"{granted[0].claim_id} was granted under more than one fence: {fences}"
        lo = min([op.invoked for op in self.claims])
        hi = min([op.answered for op in granted])
        found = max([op.invoked for op in granted])
        hold = _Hold(self, granted[0], granted[0].result, lo, hi, found)
        if freed:
            if hold.ends > freed[0].answered:
                return f"{hold} was answered with its fence after its {freed[0]}, result True"
            hold.hi = min(hold.hi, freed[0].answered)
            hold.ends = max(hold.ends, freed[0].invoked)
        else:
            lost = [op.invoked for op in self.releases if op.answered == NEVER]
            hold.ends = max(hold.ends, min(self.expires, self.broken, *lost, NEVER))
        for op in self.releases:
            if op.result is False and hold.ends > op.answered:
                hold.lo = max(hold.lo, op.invoked)
                if hold.lo > hold.hi:
                    return f"its {op}, result False, but {hold} {hold.until()}"
        return hold

    def _secret(self, freed: Operation) -> _Hold | str:
        """Return a hold that only its release proves, or why it cannot have existed."""
        if not self.claims:
            return f"{freed.claim_id}, never claimed: its {freed}, result True"
        # None means that nothing was kept: any grant was withdrawn before that answer.
        kept = max(op.answered for op in self.claims)
        lo = max(freed.invoked, min(op.invoked for op in self.claims))
        hold = _Hold(self, self.claims[0], None, lo, min(freed.answered, kept), lo)
        return hold if lo <= hold.hi else f"{hold} held nothing, yet its {freed}, result True"


@dataclass(slots=True, eq=False)
class _Hold:
    """A hold that must have existed: granted in [lo, hi], ended not before ``ends``."""

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
        """Explain why the hold cannot have ended earlier."""
        freed = next((op for op in self.life.releases if op.result), None)
        if self.ends == NEVER:
            return "was never released and could not expire"
        why = f"its {freed}, result True" if freed else "no release, lease or operator was sooner"
        return f"cannot have ended before {self.ends:.9g} ({why})"


class _Room:
    """The free slots and, as a heap, the earliest ends of the holds in the others."""

    __slots__ = ("ends", "free")

    def __init__(self, free: int, ends: list[tuple[float, int]]) -> None:
        self.free, self.ends = free, ends

    def copy(self) -> _Room:
        return _Room(self.free, self.ends[:])

    def fit(self, take: int, at: float) -> float:
        """Return the first instant from ``at`` on with room; remove the holds ended by then."""
        while self.ends and (self.ends[0][0] <= at or self.free < take):
            end, freed = heappop(self.ends)
            self.free += freed
            at = max(at, end)
        return at if self.free >= take else NEVER


# The start of a walk: the next grant, the instant reached, the room then, the pending secrets.
_Path = tuple[int, float, _Room, tuple[_Hold, ...]]


def _order(grants: list[_Hold], secrets: tuple[_Hold, ...], slots: int, steps: int) -> Verdict:
    """Try the paths until one reaches the end; report the first failure, the most useful one."""
    paths: list[_Path] = [(0, -NEVER, _Room(slots, []), secrets)]
    tried: dict[tuple[int, tuple[_Hold, ...]], float] = {}
    reason = ""
    while paths:
        index, now, _, pending = path = paths.pop()
        if now >= tried.get((index, pending), NEVER):
            continue  # A path that failed from an earlier instant fails from a later one.
        tried[index, pending] = now
        failure, steps = _walk(grants, path, paths, steps)
        if not failure:
            return Verdict(True, f"{len(grants) + len(secrets)} grants can be ordered")
        reason = reason or failure
        if steps <= 0:
            return Verdict(None, f"undecided, too many orders to try; the first failed: {reason}")
    return Verdict(False, reason)


def _walk(grants: list[_Hold], path: _Path, paths: list[_Path], steps: int) -> tuple[str, int]:
    """Assign each grant its earliest instant and each secret one that costs nothing.

    Return why that failed ("" if it did not) and how many steps are left. Alternatives are added to
    ``paths``.
    """
    start, now, room, pending = path
    known = len(paths)
    for index in range(start, len(grants)):
        grant = grants[index]
        steps -= 1
        before = room.copy() if pending and pending[0].lo <= grant.hi else None
        at = room.fit(grant.claim.take, max(now, grant.lo))
        if at > grant.hi:
            del paths[known:]  # They start later, so they are too late as well.
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
                    paths.append((index, moment, trial, rest))
            if steps <= 0:
                return f"{grant} was the last to be tried", steps
        room.free -= grant.claim.take
        heappush(room.ends, (grant.ends, grant.claim.take))  # fit uses max(at, ends).
        now = at
    for secret in pending:
        if room.copy().fit(secret.claim.take, max(now, secret.lo)) > secret.hi:
            return _refusal(secret, grants), steps
    return "", steps


def _refusal(hold: _Hold, before: list[_Hold]) -> str:
    """Explain why ``hold`` cannot be granted after the grants ``before`` it."""
    late = [other for other in before if other.lo > hold.hi]
    if late and hold.fence is not None:
        return f"{hold} has a higher fence than {late[0]}, which cannot have come so early"
    concurrent = [other for other in before if other.ends > (hold.lo if late else hold.hi)][-4:]
    held = "; ".join(f"{other} {other.until()}" for other in concurrent) or "nobody else held it"
    return f"{hold} finds no room by {hold.hi:.9g}: {held}"
