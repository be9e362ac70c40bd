"""The verbs on a quorum of Redis servers. Claims are decided in `votes` and `voting`; this module
defines how the nodes' replies to the other verbs combine.

- **renew**: a hold is extended if a majority extended it, lost if so many nodes do not have it that
  no majority can be left, and otherwise unknown, which is not a loss. A node that lost the hold
  does not get it back: a late renewal would restore a hold that was released.
- **release, break_hold**: done if a majority did it; "not held" if no majority had the hold. Nodes
  that did not answer a release are sent it again when they are connected.
- **leave, inspect**: the merged views of a majority (`inspection`).
- **transfer, shrink**: as renew.
- **names**: the names that a majority has, or may have, counting nodes that did not answer.
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
from lockfast.stores.redis.replies import MALFORMED, gone, granted, seen
from lockfast.stores.redlock.commands import (
    Call,
    name_call,
    release_call,
    settle_call,
    transfer_call,
)
from lockfast.stores.redlock.inspection import merge_snapshots
from lockfast.stores.redlock.votes import Poll, Reply, majority_of
from lockfast.stores.redlock.voting import Ballots, Voters, Voting

GONE = Gone()
_WHY = (
    "a quorum cannot provide {}: each node sees only its own votes, and when three claims have two "
    "of three nodes each, no node sees more than two of them"
)
REFUSES = {
    "semaphore": _WHY.format("a semaphore"),
    "permits": _WHY.format("permits"),
    "latch": _WHY.format("a latch") + "; nor does a node that was away learn the count",
    "barrier": _WHY.format("a barrier") + "; nor do the nodes agree on which party came last",
    "once_every": (
        "a quorum cannot run something once per period: a majority would have to keep the record "
        "of the run until the period ends, and one node after another may lose it"
    ),
}


def capabilities_of(longest: float) -> Capabilities:
    return Capabilities(
        store="redlock",
        across="network",
        fair=False,  # nearly: the queues of the nodes may differ
        wakes="ask",
        longest_lease=longest,
        refuses=REFUSES,
    )


class QuorumBackend:
    """A quorum of N servers, for the API of its voters."""

    def __init__(self, voters: Voters, ballots: Ballots, longest: float) -> None:
        self._voters = voters
        self._ballots = ballots
        self._voting = Voting(voters, ballots, longest)
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
        answers = await self._voting.claim(claims, budget)
        return [answer if not isinstance(answer, Gone) else Busy(0.0, 0) for answer in answers]

    def _check(self, claim: Claim) -> None:
        if claim.slots not in (1, ALL_SLOTS):
            raise Unsupported(_WHY.format(kind_of(claim.slots)))
        self._check_lease(claim.lease)

    def _check_lease(self, lease: float) -> None:
        if lease > self._longest:
            raise Unsupported(
                f"lease={lease:g} is longer than longest_lease={self._longest:g} s, for which a "
                "node that lost its data must not vote; change it for all clients together"
            )

    async def release(self, claim: Claim, budget: float) -> bool:
        return (await self.release_batch([claim], budget))[0]

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        for claim in claims:
            self._ballots.unmark_queued(claim.id)
        poll = Poll(self._size, len(claims))
        replies = await self._polled(poll, release_call(claims), budget, resend=True)
        return self._known(poll, replies)

    async def _polled(self, poll: Poll, call: Call, budget: float, resend: bool = False) -> Any:
        replies = await self._voting.ask([call] * self._size, poll.enough, budget, resend)
        poll.count(replies)
        for node in poll.malformed:
            self._voters.distrust(node)
        return replies

    def _known(self, poll: Poll, replies: Sequence[Reply]) -> list[bool]:
        verdicts = [poll.verdict(number) for number in range(poll.length)]
        if None in verdicts:
            raise self._voting.no_quorum(replies, len(poll.answers))
        return [verdict is True for verdict in verdicts]

    # ---- for the keeper ----------------------------------------------------------------------

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
            call = settle_call([claims[n] for n in held], [fences[n] for n in held])
            replies = await self._polled(poll, call, budget)
            for at, number in enumerate(held):
                verdict = poll.verdict(at)
                if verdict is None:
                    error = answers[number] = self._voting.no_quorum(replies, len(poll.answers))
                else:
                    lease = claims[number].lease
                    answers[number] = Granted(fences[number], lease) if verdict else GONE
        waits = [number for number, fence in enumerate(fences) if not fence]
        if waits:
            try:
                waiting = [claims[n] for n in waits]
                refreshed = await self._voting.claim(waiting, budget, create=False)
                for number, answer in zip(waits, refreshed, strict=True):
                    # The name has another size now: the waiter asks again, which raises the error.
                    answers[number] = GONE if isinstance(answer, Differs) else answer
            except QuorumError as no_quorum:
                error = no_quorum
                for number in waits:
                    answers[number] = error
        if error is not None and all(isinstance(one, BackendError) for one in answers):
            raise error
        return answers

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        self._ballots.unmark_queued(claim.id)
        call = name_call(scripts.LEAVE, claim.name, claim.id, MOST_SHOWN)
        return await self._seen(claim.name, call, budget, resend=True)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        self._check_lease(claim.lease)
        return await self._done(transfer_call(claim, attached), claim.lease, budget)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        call = name_call(scripts.SHRINK, claim.name, claim.id, claim.take)
        return await self._done(call, claim.lease, budget)

    async def _done(self, call: Call, lease: float, budget: float) -> Granted | Gone:
        """Run a call that changes a hold; return what a majority of the nodes did."""
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
                except MALFORMED:
                    self._voters.distrust(node)
            return answers

        def verdict(replies: Sequence[Reply]) -> Granted | Gone | None:
            answers = known(replies)
            yes = [answer for answer in answers if isinstance(answer, Granted)]
            if len(yes) >= majority:
                # Nodes where the fence was not settled report another one.
                fences = Counter(sorted((answer.fence for answer in yes), reverse=True))
                fence, times = fences.most_common(1)[0]
                if times >= majority or None not in replies:
                    return Granted(fence, min(answer.lease for answer in yes))
                return None
            return GONE if len(answers) - len(yes) > size - majority else None

        replies = await self._voting.ask([call] * size, lambda r: bool(verdict(r)), budget)
        answer = verdict(replies)
        if answer is None:
            raise self._voting.no_quorum(replies, len(known(replies)))
        return answer

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        raise Unsupported(REFUSES["semaphore"])

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self._voters.wakeups.watch(claim.id, wake)
        return await self._voters.subscribe(since)

    def unwatch(self, claim: Claim) -> None:
        self._ballots.unmark_queued(claim.id)
        self._voters.wakeups.unwatch(claim.id)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._seen(name, name_call(scripts.INSPECT, name, EVERYBODY), budget)

    async def _seen(self, name: str, call: Call, budget: float, resend: bool = False) -> Snapshot:
        views: dict[int, Snapshot] = {}
        # Wait briefly for all nodes, since a majority may not see everything.
        needed = self._size

        def enough(replies: Sequence[Reply]) -> bool:
            for node, reply in enumerate(replies):
                if type(reply) is list and node not in views:
                    try:
                        views[node] = seen(name, *reply)
                    except MALFORMED:
                        self._voters.distrust(node)
            return len(views) >= needed

        replies = await self._voting.ask([call] * self._size, enough, budget / 4, resend)
        needed = self._majority
        if not enough(replies):
            replies = await self._voting.ask([call] * self._size, enough, budget / 2, resend)
        if not enough(replies):
            raise self._voting.no_quorum(replies, len(views))
        return merge_snapshots(name, list(views.values()), self._size)

    async def names(self, prefix: str, budget: float) -> list[str]:
        found: Counter[str] = Counter()
        errors: list[Reply] = []
        for node in range(self._size):
            try:
                transport: Any = NodeTransport(self._voters, node)
                backend = RedisBackend(transport, self._voters.wheres[node])
                found.update(await backend.names(prefix, budget))
            except BackendError as error:
                errors.append(error)
        if self._size - len(errors) < self._majority:
            raise self._voting.no_quorum(errors, self._size - len(errors))
        return sorted(n for n, nodes in found.items() if nodes + len(errors) >= self._majority)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        poll = Poll(self._size, 1)
        replies = await self._polled(poll, name_call(scripts.BREAK, name, fence), budget)
        return self._known(poll, replies)[0]


class NodeTransport:
    """A transport to a single node, for verbs that scan a server."""

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
