"""Voting on claims at all nodes: one phase if a majority grants under one fence, else two; a claim
that fails is withdrawn at every node. See `votes` for the rules.

Two parties of a client may ask for the same claim, on different connections: the waiter when it is
woken, and the keeper when it refreshes the waiter. Their votes must not be mixed up: one may count
a vote that the other withdraws. So the ballots on a claim follow each other (`Ballots`), they are
numbered, and a node withdraws nothing that it granted on a later ballot.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence, Set

from lockfast.core.law import REFRESH
from lockfast.errors import BackendError, QuorumError, Unsupported
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.redis.commands import Call
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redlock.nodes import (
    Ask,
    Nodes,
    mark_call,
    settle_call,
    undo_call,
    vote_call,
)
from lockfast.stores.redlock.votes import (
    NEW,
    Answer,
    Count,
    NodeReply,
    NotConnected,
    Poll,
    Tally,
    abstention,
    lacks_script,
)
from lockfast.stores.steps import Steps

# The part of a lease that must be left when it is granted. With less, the holder could lose the
# lock before its first renewal gets through.
LEAST_VALIDITY = 0.5
SETTLE_ROUNDS = 3
SOON = 0.001
MOST_SPLITS = 10  # the pause grows no more after so many split votes
LEAST = 0.001  # seconds for a request when the others have used up the budget


class Ballots:
    """Ballots of one client, shared by its stores: those under way, and the claims that wait."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.numbers = itertools.count(1)
        self.queued: set[str] = set()  # claims that wait at the nodes, and may be refreshed
        self._splits: dict[str, int] = {}
        self._active: dict[str, object] = {}

    def begin(self, claim_id: str) -> bool:
        """Begin a ballot; False if another one on the claim is under way."""
        mark = object()
        return self._active.setdefault(claim_id, mark) is mark  # atomic between threads

    def end(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._active.pop(claim.id, None)

    def unmark_queued(self, claim_id: str) -> None:
        self.queued.discard(claim_id)
        self._splits.pop(claim_id, None)

    def pause(self, claim: Claim, took: float) -> float:
        """Return when to ask again after a split vote: with jitter, so that contenders do not
        collide again, and later each time."""
        splits = self._splits.get(claim.id, 0)
        if claim.wait:
            self._splits[claim.id] = splits + 1
        chance = zlib.crc32(f"{claim.id} {splits}".encode()) / 2**32
        pause: float = max(SOON, took) * 2.0 ** min(splits, MOST_SPLITS) * (0.5 + chance)
        return min(pause, REFRESH)


class Voting:
    """Two-phase voting on claims."""

    def __init__(self, nodes: Nodes, ballots: Ballots, longest: float) -> None:
        self._nodes = nodes
        self._ballots = ballots
        self._longest = longest
        # µs ahead of our clock at which all nodes can grant under the same proposed fence.
        self._ahead: int | None = None

    # ---- asking all nodes --------------------------------------------------------------------

    def asked(self, ask: Ask) -> Steps[list[NodeReply]]:
        """Ask, and ask again: nodes that lacked the script; and, if the replies of the others are
        not enough, nodes that were not connected yet (but not with ``resend``, which repeats the
        call). Error replies become exceptions that say what to do."""
        nodes = self._nodes
        until = nodes.now() + ask.budget
        replies: list[NodeReply] = yield ask
        again = {n for n, reply in enumerate(replies) if lacks_script(reply)}
        if not ask.resend and not ask.count.enough(replies):
            again |= {n for n, reply in enumerate(replies) if isinstance(reply, NotConnected)}
        if again:
            replies = yield ask.again(again, max(until - nodes.now(), LEAST))
        for node, reply in enumerate(replies):
            if type(reply) is ServerError:
                call = ask.calls[node]
                source = call.script.source if call is not None and call.script else ""
                replies[node] = explained(reply, nodes.wheres[node], "", source)
        return replies

    def everywhere(
        self, call: Call, count: Count, budget: float, *, resend: bool = False
    ) -> Steps[list[NodeReply]]:
        """Ask all nodes the same."""
        ask = Ask([call] * self._nodes.size, count, budget, resend=resend)
        return (yield from self.asked(ask))

    def no_quorum(
        self, replies: Sequence[NodeReply], answered: int, why: Iterable[str] = ()
    ) -> QuorumError:
        """Return an error that names the nodes that did not answer, with the reasons."""
        nodes, size = self._nodes, self._nodes.size
        reasons, final = list(why), 0
        for node, reply in enumerate(replies):
            if isinstance(reply, BackendError):
                reasons.append(str(reply))
                final += not reply.transient
            elif reply is None:
                reasons.append(f"{nodes.wheres[node]} did not answer in time")
        needed = size // 2 + 1
        disagree = f"the {answered} of {size} nodes that answered do not agree"
        too_few = f"{answered} of {size} nodes answered, and {needed} are needed"
        return QuorumError(
            f"{too_few if answered < needed else disagree}: {'; '.join(reasons)}",
            transient=size - final >= needed,
        )

    # ---- a claim -----------------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Steps[list[Answer]]:
        """Return the answers up to the first claim that is not granted."""
        mine = [claim for claim in claims if self._ballots.begin(claim.id)]
        try:
            if len(mine) < len(claims):
                return [Busy(SOON, 0)]  # the keeper has a ballot under way
            return (yield from self._vote(mine, budget, create=True))
        finally:
            self._ballots.end(mine)

    def refresh(self, claims: Sequence[Claim], budget: float) -> Steps[list[Answer]]:
        """Refresh the claims that wait already, and return an answer for each."""
        ballots = self._ballots
        mine = [claim for claim in claims if claim.id in ballots.queued]
        mine = [claim for claim in mine if ballots.begin(claim.id)]
        try:
            answers = (yield from self._vote(mine, budget, create=False)) if mine else []
        finally:
            ballots.end(mine)
        known = {claim.id: answer for claim, answer in zip(mine, answers, strict=True)}
        return [known.get(claim.id, Busy(REFRESH, 0)) for claim in claims]

    def _vote(
        self, claims: Sequence[Claim], budget: float, *, create: bool, initialize: bool = True
    ) -> Steps[list[Answer]]:
        nodes, ballot = self._nodes, next(self._ballots.numbers)
        began = nodes.now()
        tally = Tally(nodes.size, [claim.lease for claim in claims])
        ask = Ask(self._vote_calls(claims, ballot, began, create), tally, budget)
        initialized = settled = False
        try:
            replies = yield from self.asked(ask)
            initialized = initialize and (yield from self._initialize_if_new(tally, budget))
            if tally.answers or tally.recovering:
                self.mark(tally.new)
                ask.late = self._reply_was_late
            rest = max(began + budget - nodes.now(), LEAST)
            if not initialized:
                if len(tally.answers) < tally.majority:
                    raise self.no_quorum(replies, len(tally.answers), self._abstentions(tally))
                answers = yield from self._decide(tally, claims, began, rest, create)
                settled = True
        finally:
            if not settled and not initialized:  # also if the caller is cancelled
                nodes.send([undo_call(claims, ballot, stay=False)] * nodes.size)
        if initialized:
            return (yield from self._vote(claims, rest, create=create, initialize=False))
        self._withdraw(tally, claims, answers, ballot)
        return answers

    def _vote_calls(
        self, claims: Sequence[Claim], ballot: int, began: float, create: bool
    ) -> list[Call]:
        # A copy: listeners may come and go at any moment. A waiter keeps its address.
        addresses = list(self._nodes.wake_addresses)
        if not create:
            addresses = [address.replace(".", "") for address in addresses]
        proposed = 0 if self._ahead is None else int(began * 1e6) + self._ahead
        calls = {
            address: vote_call(claims, ballot, proposed, address, create=create)
            for address in set(addresses)
        }
        return [calls[address] for address in addresses]

    def _decide(
        self, tally: Tally, claims: Sequence[Claim], began: float, rest: float, create: bool
    ) -> Steps[list[Answer]]:
        now = self._nodes.now()
        answers: list[Answer] = []
        unsettled: list[int] = []
        for number, claim in enumerate(claims):
            if not tally.is_granted(number):
                answers.append(tally.refusal(number, self._ballots.pause(claim, now - began)))
                if create:
                    break
                continue
            fence, is_settled = tally.fence(number)
            answers.append(Granted(fence, claim.lease))
            if not is_settled:
                unsettled.append(number)
        if unsettled:
            fences = [vote.fence for n in unsettled for vote in tally.grants(n).values()]
            lag = int((now - began) * 2e6) + 200
            self._ahead = max(fences) - int(began * 1e6) + lag
            yield from self._settle(claims, answers, unsettled, rest)
        taken = self._nodes.now() - began
        for claim, answer in zip(claims, answers, strict=False):
            if isinstance(answer, Granted) and taken > claim.lease * (1 - LEAST_VALIDITY):
                raise QuorumError(
                    f"the vote took {taken:.3g} s, which leaves less than half of the lease of "
                    f"{claim.lease:g} s: the claim was withdrawn"
                )
        return answers

    def _settle(
        self,
        claims: Sequence[Claim],
        answers: list[Answer],
        unsettled: Sequence[int],
        budget: float,
    ) -> Steps[None]:
        """Run the second phase: have a majority keep the hold under one fence."""
        nodes = self._nodes
        until = nodes.now() + budget
        for _ in range(SETTLE_ROUNDS):
            fences = [answers[number].fence for number in unsettled]  # type: ignore[union-attr]
            poll = Poll(nodes.size, len(unsettled), exact=True)
            call = settle_call([claims[number] for number in unsettled], fences)
            replies = yield from self.everywhere(call, poll, max(until - nodes.now(), LEAST))
            again = [at for at in range(len(unsettled)) if poll.verdict(at) is not True]
            for at in again:
                if not (greatest := poll.greatest(at)):
                    why = ["the fence could not be written to a majority"]
                    raise self.no_quorum(replies, len(poll.answers), why)
                number = unsettled[at]
                answers[number] = Granted(max(greatest, fences[at]) + 1, claims[number].lease)
            if not again:
                return
        raise QuorumError(
            f"other claims took higher fences in each of {SETTLE_ROUNDS} rounds: the claim was "
            "withdrawn; try again"
        )

    def _withdraw(
        self, tally: Tally, claims: Sequence[Claim], answers: Sequence[Answer], ballot: int
    ) -> None:
        """Withdraw votes, also possible ones, on claims that were not granted; and waiters of
        granted claims at the nodes that refused them."""
        for claim, answer in zip(claims, answers, strict=False):
            if isinstance(answer, Granted):
                self._ballots.unmark_queued(claim.id)
            elif isinstance(answer, Busy) and claim.wait:
                self._ballots.queued.add(claim.id)
        for each, stay in zip(tally.to_withdraw(claims, answers), (True, False), strict=True):
            if any(each):
                self._nodes.send(
                    [undo_call(some, ballot, stay=stay) if some else None for some in each]
                )

    # ---- marks of the nodes ------------------------------------------------------------------

    def _initialize_if_new(self, tally: Tally, budget: float) -> Steps[bool]:
        """Return True if all nodes were new and this client has initialized them."""
        if tally.too_long:
            raise Unsupported(
                f"this quorum was initialized for leases of at most {tally.too_long:g} s: "
                "configure every client with the same longest_lease"
            )
        if len(tally.new) == tally.size:
            return (yield from self._initialize(budget))
        return False

    def _reply_was_late(self, node: int, reply: NodeReply) -> None:
        if abstention(reply)[0] == NEW:
            self.mark({node})

    def mark(self, nodes: Set[int]) -> None:
        """Have nodes that lack the mark wait for the longest lease before they vote: others have
        marks, so these nodes have lost their data. A node that has its mark keeps it."""
        if nodes:
            call = mark_call("recover", self._ballots.nonce, self._longest)
            self._nodes.send([call if n in nodes else None for n in range(self._nodes.size)])

    def _abstentions(self, tally: Tally) -> list[str]:
        """Say why nodes that answered did not vote."""
        wheres, reasons = self._nodes.wheres, []
        if not tally.answers and not tally.recovering and tally.new:
            return [f"{wheres[node]} is new: all nodes must be up once" for node in tally.new]
        for node in tally.new:
            tally.recovering[node] = self._longest
        for node, rest in sorted(tally.recovering.items()):
            reasons.append(f"{wheres[node]} had lost its data, and votes again in {rest:.1f} s")
        for node in tally.malformed:
            reasons.append(f"{wheres[node]} sent a malformed reply")
        return reasons

    def _initialize(self, budget: float) -> Steps[bool]:
        """Write the marks of new nodes; True if a majority has them.

        Of the clients that find all nodes new, the first one at the first node initializes them. A
        node that restarts meanwhile has forgotten the first step and refuses the last, so a delayed
        initialization cannot make it vote.
        """
        size, nonce = self._nodes.size, self._ballots.nonce
        attempt = mark_call("begin", nonce, self._longest)
        for calls in ([attempt, *[None] * (size - 1)], [None, *[attempt] * (size - 1)]):
            replies = yield from self.asked(Ask(calls, Count(size), budget / 4))
            asked = [reply for reply, call in zip(replies, calls, strict=True) if call]
            if any(reply != 1 for reply in asked):
                return False  # another client initializes them
        done = mark_call("finish", nonce, self._longest)
        replies = yield from self.everywhere(done, Count(size), budget / 4)
        return [reply == 1 for reply in replies].count(True) > size // 2
