"""The fence rule of a quorum, explored exhaustively: a few claims on three nodes, with the
production Lua and the production tally, in every order in which requests may arrive, with every
loss of one.

A claimer asks all nodes to vote. It proceeds as soon as a majority has granted: it holds the lock
at once if these votes agree on a fence, else when a majority has settled one; then it releases. The
explorer chooses which request arrives when, which requests or replies are lost, and whether a node
loses its data meanwhile. Time does not pass: no lease ends.

Checked at every grant: no other holder excludes it; no other claim got the same fence; and its
fence is above all fences that were granted before the claimer asked.

``naive`` takes the greatest fence of the votes without writing it back, the obvious first idea: the
explorer finds a fence that was given twice, or that fell. With ``marks`` False, a node that lost
its data votes at once: the explorer finds the same violations, or two holders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import hiredis

from lab.miniredis import MiniRedis
from lockfast.model import ALL_SLOTS, Claim
from lockfast.stores.redis.commands import Call
from lockfast.stores.redlock.nodes import MARK, release_call, settle_call, vote_call
from lockfast.stores.redlock.votes import Poll, Tally

NODES, MAJORITY = 3, 2
LEASE = 30.0
# The clocks of the nodes, in µs: different, so that their fences differ, yet close, so that they
# collide.
CLOCKS = (1_000_000_000_000, 1_000_000_000_002, 1_000_000_000_001)
FOUNDED = "0 60000000"


class Message(NamedTuple):
    claimer: int
    phase: str  # vote, settle, release
    node: int


@dataclass(frozen=True, slots=True)
class Claimer:
    """A claimer's stage and the replies so far. ``before`` is the greatest fence that was granted
    when it began."""

    stage: str = "idle"  # → voting → settling → held → over
    answers: tuple[Any, ...] = (None,) * NODES
    fence: int = 0
    before: int = 0


class State(NamedTuple):
    nodes: tuple[Any, ...]  # the data of each
    flying: frozenset[Message]
    claimers: tuple[Claimer, ...]
    granted: tuple[int, ...]
    losses: int
    forgets: int


class Found(NamedTuple):
    states: int
    grants: int
    violation: str


class Model:
    def __init__(
        self, claimers: int = 2, *, readers: bool = False, losses: int = 0, forgets: int = 0,
        naive: bool = False, marks: bool = True,
    ) -> None:  # fmt: skip
        self._naive, self._marks, self._readers = naive, marks, readers
        slots = ALL_SLOTS if readers else 1
        self._claims = [
            Claim("sim:a", f"claim-{n}", "host 1 main", LEASE, slots, wait=False)
            for n in range(claimers)
        ]
        self._known: dict[Any, tuple[Any, Any]] = {}  # step of a node → reply and data
        self._redis = [MiniRedis(lambda at=at: at, lambda *_: 0) for at in CLOCKS]  # type: ignore[misc]
        for node in self._redis:
            node.call("SET", MARK, FOUNDED)
        nodes = tuple(self._kept(node) for node in range(NODES))
        self._start = State(nodes, frozenset(), (Claimer(),) * claimers, (), losses, forgets)

    def explore(self, most: int = 10**6) -> Found:
        """Visit all reachable states, up to the first violation."""
        seen: set[State] = set()
        todo, grants = [self._start], 0
        while todo and len(seen) < most:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            for following, violation in self._steps(state):
                if violation:
                    return Found(len(seen), grants, violation)
                grants += len(following.granted) > len(state.granted)
                todo.append(following)
        return Found(len(seen), grants, "")

    # ---- steps -----------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[State, str]]:
        for number, claimer in enumerate(state.claimers):
            if claimer.stage in ("voting", "settling"):
                decided = list(self._decide(state, number, claimer))
                if decided:  # at once, as production does: no other claimer can tell
                    yield from decided
                    return
        for number, claimer in enumerate(state.claimers):
            if claimer.stage == "idle":
                begun = replace(claimer, stage="voting", before=max(state.granted, default=0))
                yield self._sent(state, number, begun, "vote"), ""
            elif claimer.stage == "held":
                yield self._sent(state, number, replace(claimer, stage="over"), "release"), ""
        for message in state.flying:
            rest = state._replace(flying=state.flying - {message})
            answer, kept = self._arrives(rest, message)
            nodes = tuple(kept if n == message.node else one for n, one in enumerate(rest.nodes))
            yield self._replied(rest._replace(nodes=nodes), message, answer), ""
            if state.losses:
                fewer = rest._replace(losses=state.losses - 1)
                lost = "lost"
                yield self._replied(fewer, message, lost), ""  # the request
                yield self._replied(fewer._replace(nodes=nodes), message, lost), ""  # the reply
        if state.forgets:
            for node in range(NODES):
                yield self._forgot(state, node), ""

    def _sent(self, state: State, number: int, claimer: Claimer, phase: str) -> State:
        claimer = replace(claimer, answers=(None,) * NODES)
        flying = state.flying | {Message(number, phase, node) for node in range(NODES)}
        return self._with(state._replace(flying=flying), number, claimer)

    def _with(self, state: State, number: int, claimer: Claimer) -> State:
        claimers = list(state.claimers)
        claimers[number] = claimer
        return state._replace(claimers=tuple(claimers))

    def _replied(self, state: State, message: Message, answer: Any) -> State:
        claimer = state.claimers[message.claimer]
        if claimer.stage in ("held", "over"):
            return state
        phases = {"voting": "vote", "settling": "settle"}
        if phases.get(claimer.stage) != message.phase:
            return state
        answers = list(claimer.answers)
        answers[message.node] = answer
        return self._with(state, message.claimer, replace(claimer, answers=tuple(answers)))

    def _forgot(self, state: State, node: int) -> State:
        kept: Any = () if self._marks else ((MARK.encode(), FOUNDED.encode()),)
        nodes = tuple(kept if n == node else one for n, one in enumerate(state.nodes))
        return state._replace(nodes=nodes, forgets=state.forgets - 1)

    def _decide(self, state: State, number: int, claimer: Claimer) -> Iterator[tuple[State, str]]:
        """Yield the claimer's next step, which the production tally decides by the replies so
        far."""
        replies = [None if one in (None, "lost") else list(one) for one in claimer.answers]
        waits = None in claimer.answers
        if claimer.stage == "voting":
            tally = Tally(NODES, [LEASE])
            tally.count(replies)
            if tally.is_granted(0):
                fence, settled = tally.fence(0)
                if settled or self._naive:
                    yield self._granted(state, number, claimer, fence)
                else:
                    settling = replace(claimer, stage="settling", fence=fence)
                    yield self._sent(state, number, settling, "settle"), ""
                return
        else:
            poll = Poll(NODES, 1, exact=True)
            poll.count(replies)
            if poll.verdict(0):
                yield self._granted(state, number, claimer, claimer.fence)
                return
            if not waits and poll.greatest(0):
                above = max(poll.greatest(0), claimer.fence) + 1
                again = replace(claimer, fence=above)
                yield self._sent(state, number, again, "settle"), ""
                return
        if not waits:  # no majority: the claim is withdrawn
            yield self._sent(state, number, replace(claimer, stage="over"), "release"), ""

    def _granted(
        self, state: State, number: int, claimer: Claimer, fence: int
    ) -> tuple[State, str]:
        violation = ""
        if not self._readers and any(one.stage == "held" for one in state.claimers):
            violation = "two hold it"
        elif fence in state.granted:
            violation = f"fence {fence} was given twice"
        elif fence <= claimer.before:
            violation = f"fence {fence} was granted after {claimer.before}"
        held = replace(claimer, stage="held", fence=fence, answers=(None,) * NODES)
        granted = (*state.granted, fence)
        return self._with(state._replace(granted=granted), number, held), violation

    # ---- the nodes -------------------------------------------------------------------------------

    def _arrives(self, state: State, message: Message) -> tuple[Any, Any]:
        fence = state.claimers[message.claimer].fence if message.phase == "settle" else 0
        step = (message, fence, state.nodes[message.node])
        if step not in self._known:
            self._known[step] = self._step(state, message)
        return self._known[step]

    def _step(self, state: State, message: Message) -> tuple[Any, Any]:
        claim = [self._claims[message.claimer]]
        if message.phase == "vote":
            call = vote_call(claim, message.claimer + 1, 0, ".", create=True)
        elif message.phase == "settle":
            call = settle_call(claim, [state.claimers[message.claimer].fence])
        else:
            call = release_call(claim)
        self._restore(message.node, state.nodes[message.node])
        answer = self._call(message.node, call)
        return tuple(answer), self._kept(message.node)

    def _call(self, node: int, call: Call) -> Any:
        reader = hiredis.Reader()
        reader.feed(call.with_source())
        return self._redis[node].call(*reader.gets())

    def _kept(self, node: int) -> Any:
        """Return a node's hashes and strings; there are no queues, since no claimer waits."""
        redis = self._redis[node]
        kept: list[Any] = []
        for key in (MARK.encode(), b"lf:{sim:a}"):
            kind: Any = redis.call("TYPE", key)
            if kind in ("string", b"string"):
                kept.append((key, redis.call("GET", key)))
            elif kind in ("hash", b"hash"):
                fields: Any = redis.call("HGETALL", key)
                pairs = sorted(zip(fields[::2], fields[1::2], strict=True))
                kept.append((key, tuple(pairs)))
        return tuple(kept)

    def _restore(self, node: int, kept: Any) -> None:
        redis = self._redis[node]
        redis.call("DEL", MARK, "lf:{sim:a}")
        for key, value in kept:
            if isinstance(value, bytes):
                redis.call("SET", key, value)
            elif value:
                redis.call("HSET", key, *(part for pair in value for part in pair))
