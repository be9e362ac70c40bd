"""The verbs on a quorum of Redis servers. What is asked of all is decided in `votes` and `asking`;
here is what the other verbs mean where there is more than one answer.

- **renew**: a hold is extended if a majority extended it, lost if so many know it no more that no
  majority can be left, and else unknown, which is no loss. A node that lost it is not given it
  anew: a renewal that comes late would bring back what was released.
- **release, break_hold**: done if a majority did it; it "was not there" if no majority had it. The
  nodes that did not answer are told again when they do.
- **leave, inspect**: what a majority of nodes sees, put together (`looking`).
- **transfer, shrink**: as renew.
- **names**: those that a majority knows, or may, counting nodes that did not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockfast.core.ports import Wake
from lockfast.errors import BackendError, QuorumError, Unsupported
from lockfast.model import (
    ALL_SLOTS,
    Busy,
    Capabilities,
    Claim,
    Differs,
    Gone,
    Granted,
    Snapshot,
    kind_of,
)
from lockfast.stores.redis import scripts
from lockfast.stores.redis.backend import EVERYBODY, MOST_SHOWN, RedisBackend
from lockfast.stores.redis.replies import NONSENSE, gone, granted, seen
from lockfast.stores.redlock.commands import (
    Call,
    about,
    giving_back,
    settling,
    transferring,
)
from lockfast.stores.redlock.inspection import together
from lockfast.stores.redlock.votes import Poll, Reply, majority_of
from lockfast.stores.redlock.voting import Asking, Asks, Voters

GONE = Gone()
_WHY = (
    "over a quorum {} cannot be had: each node sees the votes that it gave itself, and of three "
    "that have two nodes of three each, no node sees more than two"
)
REFUSES = {
    "semaphore": _WHY.format("a semaphore"),
    "permits": _WHY.format("permits"),
    "latch": _WHY.format("a latch") + "; nor does a node that was away learn what was counted",
    "barrier": _WHY.format("a barrier") + "; nor do nodes agree on who came last",
    "once_every": (
        "over a quorum nothing can be run once per period: the mark that it ran would have to "
        "stand at a majority to the end of the period, and one node after the other may forget it"
    ),
}


def capabilities_of(longest: float) -> Capabilities:
    return Capabilities(
        store="redlock",
        across="network",
        fair=False,  # nearly: the lines of the nodes need not be the same
        wakes="ask",
        longest_lease=longest,
        refuses=REFUSES,
    )


class QuorumBackend:
    """N servers, one colour (the voters')."""

    def __init__(self, voters: Voters, asks: Asks, longest: float) -> None:
        self._voters = voters
        self._asks = asks
        self._asking = Asking(voters, asks, longest)
        self._size = voters.size
        self._majority = majority_of(voters.size)
        self._longest = longest
        self._capabilities = capabilities_of(longest)
        self.listen = voters.listen
        self.interrupt = voters.interrupt
        self.close = voters.close

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ---- claim and release -------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        return (await self.claim_batch([claim], budget))[0]

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        for claim in claims:
            self._check(claim)
            if claim.take > claim.slots:
                return [Differs(claim.slots)]
        answers = await self._asking.claim(claims, budget)
        return [answer if not isinstance(answer, Gone) else Busy(0.0, 0) for answer in answers]

    def _check(self, claim: Claim) -> None:
        if claim.slots not in (1, ALL_SLOTS):
            raise Unsupported(_WHY.format(kind_of(claim.slots)))
        self._check_lease(claim.lease)

    def _check_lease(self, lease: float) -> None:
        if lease > self._longest:
            raise Unsupported(
                f"lease={lease:g}: at most {self._longest:g} s here, since a node that lost its "
                "data must not vote for so long; longest_lease= is for all clients together"
            )

    async def release(self, claim: Claim, budget: float) -> bool:
        return (await self.release_batch([claim], budget))[0]

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        for claim in claims:
            self._asks.stands_no_more(claim.id)
        poll = Poll(self._size, len(claims))
        return self._known(poll, await self._polled(poll, giving_back(claims), budget, owed=True))

    async def _polled(self, poll: Poll, call: Call, budget: float, owed: bool = False) -> Any:
        replies = await self._asking.ask([call] * self._size, poll.enough, budget, owed)
        poll.count(replies)
        for node in poll.nonsense:
            self._voters.distrust(node)
        return replies

    def _known(self, poll: Poll, replies: Sequence[Reply]) -> list[bool]:
        verdicts = [poll.verdict(number) for number in range(poll.length)]
        if None in verdicts:
            raise self._asking.no_quorum(replies, len(poll.answers))
        return [verdict is True for verdict in verdicts]

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        unknown = BackendError("not asked")
        answers: list[Granted | Busy | Gone | BackendError] = [unknown] * len(claims)
        held = [number for number, fence in enumerate(fences) if fence]
        error: BackendError | None = None
        if held:
            for number in held:
                self._check_lease(claims[number].lease)
            poll = Poll(self._size, len(held))
            call = settling([claims[n] for n in held], [fences[n] for n in held])
            replies = await self._polled(poll, call, budget)
            for at, number in enumerate(held):
                verdict = poll.verdict(at)
                if verdict is None:
                    error = answers[number] = self._asking.no_quorum(replies, len(poll.answers))
                else:
                    lease = claims[number].lease
                    answers[number] = Granted(fences[number], lease) if verdict else GONE
        waits = [number for number, fence in enumerate(fences) if not fence]
        if waits:
            try:
                told = await self._asking.claim([claims[n] for n in waits], budget, make=False)
                for number, answer in zip(waits, told, strict=True):
                    # Of another size now: it asks, and is told.
                    answers[number] = GONE if isinstance(answer, Differs) else answer
            except QuorumError as no_quorum:
                error = no_quorum
                for number in waits:
                    answers[number] = error
        if error is not None and all(isinstance(one, BackendError) for one in answers):
            raise error
        return answers

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        self._asks.stands_no_more(claim.id)
        call = about(scripts.LEAVE, claim.name, claim.id, MOST_SHOWN)
        return await self._seen(claim.name, call, budget, owed=True)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        self._check_lease(claim.lease)
        return await self._done(transferring(claim, attached), claim.lease, budget)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        call = about(scripts.SHRINK, claim.name, claim.id, claim.take)
        return await self._done(call, claim.lease, budget)

    async def _done(self, call: Call, lease: float, budget: float) -> Granted | Gone:
        """What a majority of nodes did to a hold."""
        size, majority = self._size, self._majority

        def known(replies: Sequence[Reply]) -> list[Granted | Gone]:
            answers: list[Granted | Gone] = []
            for node, reply in enumerate(replies):
                try:
                    if type(reply) is list:
                        yes = reply[0] == 1
                        answers.append(
                            granted(reply[1], reply[2], lease) if yes else gone(reply[0])
                        )
                except NONSENSE:
                    self._voters.distrust(node)
            return answers

        def verdict(replies: Sequence[Reply]) -> Granted | Gone | None:
            answers = known(replies)
            yes = [answer for answer in answers if isinstance(answer, Granted)]
            if len(yes) >= majority:
                # Where it was not settled it has another fence.
                fences = Counter(sorted((answer.fence for answer in yes), reverse=True))
                fence, times = fences.most_common(1)[0]
                if times >= majority or None not in replies:
                    return Granted(fence, min(answer.lease for answer in yes))
                return None
            return GONE if len(answers) - len(yes) > size - majority else None

        replies = await self._asking.ask([call] * size, lambda r: bool(verdict(r)), budget)
        answer = verdict(replies)
        if answer is None:
            raise self._asking.no_quorum(replies, len(known(replies)))
        return answer

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        raise Unsupported(REFUSES["semaphore"])

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self._voters.wakeups.watch(claim.id, wake)
        return await self._voters.subscribe(since)

    def unwatch(self, claim: Claim) -> None:
        self._asks.stands_no_more(claim.id)
        self._voters.wakeups.unwatch(claim.id)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._seen(name, about(scripts.INSPECT, name, EVERYBODY), budget)

    async def _seen(self, name: str, call: Call, budget: float, owed: bool = False) -> Snapshot:
        views: dict[int, Snapshot] = {}
        # All are asked for, since a majority sees less than all; but not waited for long.
        needed = self._size

        def enough(replies: Sequence[Reply]) -> bool:
            for node, reply in enumerate(replies):
                if type(reply) is list and node not in views:
                    try:
                        views[node] = seen(name, *reply)
                    except NONSENSE:
                        self._voters.distrust(node)
            return len(views) >= needed

        replies = await self._asking.ask([call] * self._size, enough, budget / 4, owed)
        needed = self._majority
        if not enough(replies):
            replies = await self._asking.ask([call] * self._size, enough, budget / 2, owed)
        if not enough(replies):
            raise self._asking.no_quorum(replies, len(views))
        return together(name, list(views.values()), self._size)

    async def names(self, prefix: str, budget: float) -> list[str]:
        found: Counter[str] = Counter()
        errors: list[Reply] = []
        for node in range(self._size):
            try:
                one = RedisBackend(OneOf(self._voters, node), self._voters.wheres[node])  # type: ignore[arg-type]
                found.update(await one.names(prefix, budget))
            except BackendError as error:
                errors.append(error)
        if self._size - len(errors) < self._majority:
            raise self._asking.no_quorum(errors, self._size - len(errors))
        return sorted(n for n, nodes in found.items() if nodes + len(errors) >= self._majority)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        poll = Poll(self._size, 1)
        replies = await self._polled(poll, about(scripts.BREAK, name, fence), budget)
        return self._known(poll, replies)[0]


class OneOf:
    """One of the nodes alone, as a transport, for what walks through a server."""

    suspends = True
    wake_address = "."

    def __init__(self, voters: Voters, node: int) -> None:
        self._voters = voters
        self._node = node
        self.listen = voters.listen
        self.interrupt = voters.interrupt
        self.close = voters.close

    async def send(self, command: bytes, budget: float) -> Any:
        voters, node = self._voters, self._node
        calls = [command if number == node else None for number in range(voters.size)]
        replies = voters.ask(calls, lambda replies: replies[node] is not None, budget)
        if voters.suspends:
            replies = await replies
        if replies[node] is None:
            raise BackendError(f"{voters.wheres[node]} did not answer within {budget:.3g} s")
        if isinstance(replies[node], BackendError):
            raise replies[node]
        return replies[node]

    def distrust(self) -> None:
        self._voters.distrust(self._node)
