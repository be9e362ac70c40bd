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
from collections.abc import Sequence
from typing import Any, Protocol

from lockfast.core.law import REFRESH
from lockfast.errors import BackendError, QuorumError, Unsupported
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redlock.commands import Call, mark_call, settle_call, undo_call, vote_call
from lockfast.stores.redlock.votes import (
    SOON,
    Answer,
    Enough,
    NotConnected,
    Poll,
    Reply,
    Tally,
    lacks_script,
)
from lockfast.stores.wakeups import Wakeups

# The part of a lease that must be left when it is granted. With less, the holder could lose the
# lock before its first renewal gets through.
LEAST_VALIDITY = 0.5
MOST_SPLITS = 10  # the pause grows no more after so many split votes
SETTLE_ROUNDS = 3
Calls = Sequence[Call | bytes | None]


class Voters(Protocol):
    """The connections of one API to all nodes, which are asked at once."""

    size: int
    suspends: bool
    wheres: list[str]
    wake_addresses: list[str]  # for each node; '.' while nobody listens to it
    wakeups: Wakeups

    def now(self) -> float: ...

    def ask(self, calls: Calls, enough: Enough, budget: float, resend: bool = False) -> Any:
        """Send each node its call, and collect replies until they are ``enough`` or the budget is
        used up. Return for each node its reply, its error, or None if it has not answered; an
        awaitable of these if this API ``suspends``. With ``resend``, a call is sent again after
        reconnecting to a node that was unreachable or whose connection broke before it answered."""

    def send(self, calls: Calls) -> None:
        """Send the calls with ``resend``, without waiting for the replies."""

    def distrust(self, node: int) -> None:
        """Close the connection to a node that sent a malformed reply."""

    async def subscribe(self, since: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Ballots:
    """Ballots of one client, shared by its backends: those under way, and the claims that wait."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.numbers = itertools.count(1)
        self.queued: set[str] = set()  # claims that wait at the nodes, and may be refreshed
        self.splits: dict[str, int] = {}
        self._active: dict[str, object] = {}

    def begin(self, claim_id: str) -> bool:
        """Begin a ballot; False if another one on the claim is under way."""
        mark = object()
        return self._active.setdefault(claim_id, mark) is mark  # atomic between threads

    def end(self, claim_id: str) -> None:
        self._active.pop(claim_id, None)

    def mark_queued(self, claim_id: str) -> None:
        self.queued.add(claim_id)

    def unmark_queued(self, claim_id: str) -> None:
        self.queued.discard(claim_id)
        self.splits.pop(claim_id, None)


class Voting:
    """Two-phase voting on claims, for one API."""

    def __init__(self, voters: Voters, ballots: Ballots, longest: float) -> None:
        self._voters = voters
        self._ballots = ballots
        self._longest = longest
        # µs ahead of our clock at which all nodes can grant under the same proposed fence.
        self._ahead: int | None = None

    # ---- asking all nodes --------------------------------------------------------------------

    async def ask(self, calls: Calls, enough: Enough, budget: float, resend: bool = False) -> Any:
        """Ask as `Voters.ask` does, and then again: nodes that lacked the script; and, if the other
        nodes' replies are not ``enough``, nodes that were not connected yet (but not with
        ``resend``, which repeats the call). Error replies become exceptions that say what to do."""
        voters = self._voters
        until = voters.now() + budget
        replies = voters.ask(calls, enough, budget, resend)
        if voters.suspends:
            replies = await replies
        lacking = [node for node, reply in enumerate(replies) if lacks_script(reply)]
        if not resend and not enough(replies):
            lacking += [n for n, reply in enumerate(replies) if isinstance(reply, NotConnected)]
        if lacking:
            again: Calls = [call if node in lacking else None for node, call in enumerate(calls)]
            known = replies

            def both(later: Sequence[Reply]) -> bool:
                return enough(
                    [
                        second if node in lacking else first
                        for node, (first, second) in enumerate(zip(known, later, strict=True))
                    ]
                )

            rest = max(until - voters.now(), 0.001)
            later = voters.ask(again, both, rest, resend)
            if voters.suspends:
                later = await later
            replies = [
                later[node] if node in lacking else known[node] for node in range(voters.size)
            ]
        for node, reply in enumerate(replies):
            if type(reply) is ServerError:
                call = calls[node]
                source = call.script.source if isinstance(call, Call) else ""
                replies[node] = explained(reply, voters.wheres[node], "", source)
        return replies

    def no_quorum(
        self, replies: Sequence[Reply], voters: int, why: Sequence[str] = ()
    ) -> QuorumError:
        """Return an error that names the nodes that did not vote, with the reasons."""
        size = self._voters.size
        reasons, final = list(why), 0
        for node, reply in enumerate(replies):
            if isinstance(reply, BackendError):
                reasons.append(str(reply))
                final += not reply.transient
            elif reply is None:
                reasons.append(f"{self._voters.wheres[node]} did not answer in time")
        needed = size // 2 + 1
        disagree = f"the {voters} of {size} nodes that answered do not agree"
        too_few = f"{voters} of {size} nodes answered, and {needed} are needed"
        return QuorumError(
            f"{too_few if voters < needed else disagree}: {'; '.join(reasons)}",
            transient=size - final >= needed,
        )

    # ---- a claim -----------------------------------------------------------------------------

    async def claim(
        self, claims: Sequence[Claim], budget: float, *, create: bool = True
    ) -> list[Answer]:
        """Return the answers up to the first claim that is not granted. With ``create`` False,
        refresh claims that wait already, and return an answer for each."""
        ballots = self._ballots
        mine = [claim for claim in claims if (create or claim.id in ballots.queued)]
        mine = [claim for claim in mine if ballots.begin(claim.id)]
        try:
            if create and len(mine) < len(claims):
                return [Busy(SOON, 0)]  # the keeper has a ballot under way
            answers = await self._ask(mine, budget, create) if mine else []
        finally:
            for claim in mine:
                ballots.end(claim.id)
        if create:
            return answers
        known = {claim.id: answer for claim, answer in zip(mine, answers, strict=True)}
        return [known.get(claim.id, Busy(REFRESH, 0)) for claim in claims]

    async def _ask(
        self, claims: Sequence[Claim], budget: float, create: bool, initialized: bool = False
    ) -> list[Answer]:
        voters, ballot = self._voters, next(self._ballots.numbers)
        began = voters.now()
        tally = Tally(voters.size, [claim.lease for claim in claims])
        # A copy: listeners may come and go at any moment.
        addresses, proposed = list(voters.wake_addresses), self._proposal(began)
        calls_by_address = {
            address: vote_call(
                claims, ballot, proposed, address if create else address.replace(".", ""),
                create=create, stop=create,
            )
            for address in set(addresses)
        }  # fmt: skip
        settled = False
        try:
            calls = [calls_by_address[address] for address in addresses]
            replies = await self.ask(calls, tally.enough, budget)
            tally.count(replies)
            if await self._initialize_if_new(tally, budget) and not initialized:
                rest = max(began + budget - voters.now(), 0.001)
                return await self._ask(claims, rest, create, initialized=True)
            if tally.voters < tally.majority:
                raise self.no_quorum(replies, tally.voters, self._abstentions(tally))
            rest = began + budget - voters.now()
            answers = await self._decide(tally, claims, began, rest, create)
            settled = True
        finally:
            if not settled:  # also if the caller is cancelled
                voters.send([undo_call(claims, ballot, stay=False)] * voters.size)
        self._withdraw(tally, claims, answers, ballot)
        return answers

    async def _decide(
        self, tally: Tally, claims: Sequence[Claim], began: float, rest: float, create: bool
    ) -> list[Answer]:
        now = self._voters.now()
        answers: list[Answer] = []
        unsettled: list[int] = []
        for number, claim in enumerate(claims):
            if not tally.is_granted(number):
                answers.append(tally.refusal(number, self._pause(claim, now - began)))
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
            await self._settle(claims, answers, unsettled, max(rest, 0.001))
        taken = self._voters.now() - began
        for number, answer in enumerate(answers):
            lease = claims[number].lease
            if isinstance(answer, Granted) and taken > lease * (1 - LEAST_VALIDITY):
                raise QuorumError(
                    f"the vote took {taken:.3g} s, which leaves less than half of the lease of "
                    f"{lease:g} s: the claim was withdrawn"
                )
        return answers

    async def _settle(
        self,
        claims: Sequence[Claim],
        answers: list[Answer],
        unsettled: Sequence[int],
        budget: float,
    ) -> None:
        """Run the second phase: have a majority keep the hold under one fence."""
        voters = self._voters
        until = voters.now() + budget
        for _ in range(SETTLE_ROUNDS):
            fences = [answers[number].fence for number in unsettled]  # type: ignore[union-attr]
            poll = Poll(voters.size, len(unsettled), exact=True)
            call = settle_call([claims[number] for number in unsettled], fences)
            rest = max(until - voters.now(), 0.001)
            replies = await self.ask([call] * voters.size, poll.enough, rest)
            poll.count(replies)
            self._distrust(poll.malformed)
            again = False
            for at, number in enumerate(unsettled):
                if poll.verdict(at) is not True:
                    again = True
                    greatest = poll.greatest(at)
                    if not greatest:
                        raise self.no_quorum(replies, len(poll.answers), [
                            "the fence could not be written to a majority"
                        ])  # fmt: skip
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
        ballots, size = self._ballots, self._voters.size
        stay: list[list[Claim]] = [[] for _ in range(size)]
        leave: list[list[Claim]] = [[] for _ in range(size)]
        unknown = [node for node in range(size) if tally.votes[node] is None]
        unknown = [n for n in unknown if n not in tally.new and n not in tally.recovering]
        for number, claim in enumerate(claims):
            votes = tally.of(number)
            answer = answers[number] if number < len(answers) else None
            if isinstance(answer, Granted):
                ballots.unmark_queued(claim.id)
                for node, vote in votes.items():
                    if isinstance(vote, Busy) and claim.wait:
                        leave[node].append(claim)
                continue
            if isinstance(answer, Busy) and claim.wait:
                ballots.mark_queued(claim.id)
            lists = stay if isinstance(answer, Busy) else leave
            for node in (*(n for n, vote in votes.items() if isinstance(vote, Granted)), *unknown):
                lists[node].append(claim)
        for lists, stays in ((stay, True), (leave, False)):
            if any(lists):
                self._voters.send(
                    [undo_call(some, ballot, stay=stays) if some else None for some in lists]
                )

    def _pause(self, claim: Claim, took: float) -> float:
        """Return when to ask again after a split vote: with jitter, so that contenders do not
        collide again, and later each time."""
        splits = self._ballots.splits.get(claim.id, 0)
        if claim.wait:
            self._ballots.splits[claim.id] = splits + 1
        chance = zlib.crc32(f"{claim.id} {splits}".encode()) / 2**32
        pause: float = max(SOON, took) * 2.0 ** min(splits, MOST_SPLITS) * (0.5 + chance)
        return min(pause, REFRESH)

    def _proposal(self, now: float) -> int:
        return 0 if self._ahead is None else int(now * 1e6) + self._ahead

    def _distrust(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._voters.distrust(node)

    # ---- marks of the nodes ------------------------------------------------------------------

    async def _initialize_if_new(self, tally: Tally, budget: float) -> bool:
        """Return True if all nodes were new and this client has initialized them."""
        self._distrust(tally.malformed)
        if tally.too_long:
            raise Unsupported(
                f"this quorum was initialized for leases of at most {tally.too_long:g} s: "
                "configure every client with the same longest_lease"
            )
        if len(tally.new) == self._voters.size:
            return await self._initialize(budget)
        if tally.new and (tally.voters or tally.recovering):
            recover = mark_call("recover", self._ballots.nonce, self._longest)
            self._voters.send([recover if n in tally.new else None for n in range(tally.size)])
        return False

    def _abstentions(self, tally: Tally) -> list[str]:
        """Say why nodes that answered did not vote."""
        wheres, reasons = self._voters.wheres, []
        if not tally.voters and not tally.recovering and tally.new:
            return [f"{wheres[node]} is new: all nodes must be up once" for node in tally.new]
        for node in tally.new:
            tally.recovering[node] = self._longest
        for node, rest in sorted(tally.recovering.items()):
            reasons.append(f"{wheres[node]} had lost its data, and votes again in {rest:.1f} s")
        for node in tally.malformed:
            reasons.append(f"{wheres[node]} sent a malformed reply")
        return reasons

    async def _initialize(self, budget: float) -> bool:
        """Write the marks of new nodes; True if a majority has them.

        Of the clients that find all nodes new, the first one at the first node initializes them. A
        node that restarts meanwhile has forgotten the first step and refuses the last, so a delayed
        initialization cannot make it vote.
        """
        size, nonce = self._voters.size, self._ballots.nonce
        attempt = mark_call("begin", nonce, self._longest)
        for calls in ([attempt, *[None] * (size - 1)], [None, *[attempt] * (size - 1)]):
            replies = await self.ask(calls, lambda _: False, budget / 4)
            asked = [reply for reply, call in zip(replies, calls, strict=True) if call]
            if any(reply != 1 for reply in asked):
                return False  # another client initializes them
        done = mark_call("finish", nonce, self._longest)
        replies = await self.ask([done] * size, lambda _: False, budget / 4)
        return bool(sum(reply == 1 for reply in replies) > size // 2)
