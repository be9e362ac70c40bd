"""How a claim is put to all nodes: one phase if a majority grants under one fence, else two; and
taken back everywhere if it came to nothing. See `votes` for the rules.

Two of a client may ask for one claim: who waits, when it is rung, and the keeper, when it refreshes
the place, each on connections of its own. Their votes must not be mixed up: what one takes back the
other may have counted. So askings of a claim follow each other (`Asks`), they are numbered, and a
node takes nothing back that it granted to a later one.
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
from lockfast.stores.redlock.commands import Call, founding, settling, undoing, voting
from lockfast.stores.redlock.votes import (
    SOON,
    Answer,
    Enough,
    Poll,
    Reply,
    Tally,
    is_pending,
)
from lockfast.stores.wakeups import Wakeups

# So much of a lease must be left when it is granted. Less is of no use: whoever works under it
# would lose it before its first renewal came through.
LEAST_VALIDITY = 0.5
MOST_SPLITS = 10  # after so many askings in vain the pause grows no more
SETTLINGS = 3
Calls = Sequence[Call | bytes | None]


class Voters(Protocol):
    """How the nodes are spoken to, all at once; one colour."""

    size: int
    suspends: bool
    wheres: list[str]
    wake_addresses: list[str]  # at each node: where our bells are heard; '.' while nobody listens
    wakeups: Wakeups

    def now(self) -> float: ...

    def ask(self, calls: Calls, enough: Enough, budget: float, owed: bool = False) -> Any:
        """Send each node what is for it, and hear the answers until they are ``enough`` or time is
        over. Of each node its answer, or the error that kept it from answering, or None. If this
        colour ``suspends``, what to await for that. What is ``owed`` is said again to a node whose
        connection broke before it answered, and to one that is out of reach, later."""

    def tell(self, calls: Calls) -> None:
        """Send, and do not wait for the answers. It is owed."""

    def distrust(self, node: int) -> None:
        """It answered what makes no sense."""

    async def subscribe(self, since: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Asks:
    """What the backends of one client share: who is asking for what just now, and what waits."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.numbers = itertools.count(1)
        self.standing: set[str] = set()  # claims that have places, and may be refreshed
        self.splits: dict[str, int] = {}
        self._active: dict[str, object] = {}

    def begin(self, claim_id: str) -> bool:
        mark = object()
        return self._active.setdefault(claim_id, mark) is mark  # one step, for threads too

    def end(self, claim_id: str) -> None:
        self._active.pop(claim_id, None)

    def stands(self, claim_id: str) -> None:
        self.standing.add(claim_id)

    def stands_no_more(self, claim_id: str) -> None:
        self.standing.discard(claim_id)
        self.splits.pop(claim_id, None)


class Asking:
    def __init__(self, voters: Voters, asks: Asks, longest: float) -> None:
        self._voters = voters
        self._asks = asks
        self._longest = longest
        self._ahead: int | None = (
            None  # of our clock, in µs: a fence that all nodes can grant under
        )

    # ---- speaking to all ---------------------------------------------------------------------

    async def ask(self, calls: Calls, enough: Enough, budget: float, owed: bool = False) -> Any:
        """`Voters.ask`, and again to those that only did not know the script; every refusal made an
        error that says what to do."""
        voters = self._voters
        until = voters.now() + budget
        replies = voters.ask(calls, enough, budget, owed)
        if voters.suspends:
            replies = await replies
        forgot = [node for node, reply in enumerate(replies) if is_pending(reply) and reply]
        if forgot:
            again: Calls = [call if node in forgot else None for node, call in enumerate(calls)]
            known = replies

            def both(later: Sequence[Reply]) -> bool:
                return enough(
                    [
                        b if a in forgot else k
                        for a, (k, b) in enumerate(zip(known, later, strict=True))
                    ]
                )

            rest = max(until - voters.now(), 0.001)
            later = voters.ask(again, both, rest, owed)
            if voters.suspends:
                later = await later
            replies = [
                later[node] if node in forgot else known[node] for node in range(voters.size)
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
        """Which nodes are missing, and why."""
        size = self._voters.size
        reasons, final = list(why), 0
        for node, reply in enumerate(replies):
            if isinstance(reply, BackendError):
                reasons.append(str(reply))
                final += not reply.transient
            elif reply is None:
                reasons.append(f"{self._voters.wheres[node]} did not answer in time")
        needed = size // 2 + 1
        return QuorumError(
            f"{voters} of {size} nodes answered, and {needed} are needed: {'; '.join(reasons)}",
            transient=size - final >= needed,
        )

    # ---- a claim -----------------------------------------------------------------------------

    async def claim(
        self, claims: Sequence[Claim], budget: float, *, make: bool = True
    ) -> list[Answer]:
        """Answers up to and with the first that is not granted; or, of places that exist already
        (``make`` False), of each."""
        asks = self._asks
        mine = [claim for claim in claims if (make or claim.id in asks.standing)]
        mine = [claim for claim in mine if asks.begin(claim.id)]
        try:
            if make and len(mine) < len(claims):
                return [Busy(SOON, 0)]  # the keeper is asking for it
            answers = await self._ask(mine, budget, make) if mine else []
        finally:
            for claim in mine:
                asks.end(claim.id)
        if make:
            return answers
        known = {claim.id: answer for claim, answer in zip(mine, answers, strict=True)}
        return [known.get(claim.id, Busy(REFRESH, 0)) for claim in claims]

    async def _ask(
        self, claims: Sequence[Claim], budget: float, make: bool, founded: bool = False
    ) -> list[Answer]:
        voters, asking = self._voters, next(self._asks.numbers)
        began = voters.now()
        tally = Tally(voters.size, [claim.lease for claim in claims])
        wake_addresses = list(
            voters.wake_addresses
        )  # once: who listens for us may begin or end at any moment
        heard = {
            wake_address: voting(
                claims, asking, self._proposal(began), wake_address if make else wake_address.replace(".", ""),
                make=make, stop=make,
            )
            for wake_address in set(wake_addresses)
        }  # fmt: skip
        settled = False
        try:
            calls = [heard[wake_address] for wake_address in wake_addresses]
            replies = await self.ask(calls, tally.enough, budget)
            tally.count(replies)
            if await self._are_new(tally, budget) and not founded:
                rest = max(began + budget - voters.now(), 0.001)
                return await self._ask(claims, rest, make, founded=True)
            if tally.voters < tally.majority:
                raise self.no_quorum(replies, tally.voters, self._silent(tally))
            rest = began + budget - voters.now()
            answers = await self._decide(tally, claims, began, rest, make)
            settled = True
        finally:
            if not settled:  # also if we are cancelled
                voters.tell([undoing(claims, asking, stay=False)] * voters.size)
        self._take_back(tally, claims, answers, asking)
        return answers

    async def _decide(
        self, tally: Tally, claims: Sequence[Claim], began: float, rest: float, make: bool
    ) -> list[Answer]:
        now = self._voters.now()
        answers: list[Answer] = []
        loose: list[int] = []
        for number, claim in enumerate(claims):
            if not tally.is_granted(number):
                answers.append(tally.refusal(number, self._pause(claim, now - began)))
                if make:
                    break
                continue
            fence, is_settled = tally.fence(number)
            answers.append(Granted(fence, claim.lease))
            if not is_settled:
                loose.append(number)
        if loose:
            fences = [vote.fence for n in loose for vote in tally.grants(n).values()]
            lag = int((now - began) * 2e6) + 200
            self._ahead = max(fences) - int(began * 1e6) + lag
            await self._settle(claims, answers, loose, max(rest, 0.001))
        taken = self._voters.now() - began
        for number, answer in enumerate(answers):
            lease = claims[number].lease
            if isinstance(answer, Granted) and taken > lease * (1 - LEAST_VALIDITY):
                raise QuorumError(
                    f"asking took {taken:.3g} s, and less than half of the lease of {lease:g} s "
                    "would be left: it was given back"
                )
        return answers

    async def _settle(
        self, claims: Sequence[Claim], answers: list[Answer], loose: Sequence[int], budget: float
    ) -> None:
        """The second phase: a majority keeps the hold under one fence."""
        voters = self._voters
        until = voters.now() + budget
        for _ in range(SETTLINGS):
            fences = [answers[number].fence for number in loose]  # type: ignore[union-attr]
            poll = Poll(voters.size, len(loose), exact=True)
            call = settling([claims[number] for number in loose], fences)
            rest = max(until - voters.now(), 0.001)
            replies = await self.ask([call] * voters.size, poll.enough, rest)
            poll.count(replies)
            self._distrust(poll.nonsense)
            again = False
            for at, number in enumerate(loose):
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
        raise QuorumError("others were given fences all the while: asked again")

    def _take_back(
        self, tally: Tally, claims: Sequence[Claim], answers: Sequence[Answer], asking: int
    ) -> None:
        """What nodes gave, or may have given, to what was not granted; and places that are left
        where the others were a majority."""
        asks, size = self._asks, self._voters.size
        stay: list[list[Claim]] = [[] for _ in range(size)]
        leave: list[list[Claim]] = [[] for _ in range(size)]
        unknown = [node for node in range(size) if tally.votes[node] is None]
        unknown = [n for n in unknown if n not in tally.new and n not in tally.late]
        for number, claim in enumerate(claims):
            votes = tally.of(number)
            answer = answers[number] if number < len(answers) else None
            if isinstance(answer, Granted):
                asks.stands_no_more(claim.id)
                for node, vote in votes.items():
                    if isinstance(vote, Busy) and claim.wait:
                        leave[node].append(claim)
                continue
            if isinstance(answer, Busy) and claim.wait:
                asks.stands(claim.id)
            lists = stay if isinstance(answer, Busy) else leave
            for node in (*(n for n, vote in votes.items() if isinstance(vote, Granted)), *unknown):
                lists[node].append(claim)
        for lists, stays in ((stay, True), (leave, False)):
            if any(lists):
                self._voters.tell(
                    [undoing(some, asking, stay=stays) if some else None for some in lists]
                )

    def _pause(self, claim: Claim, took: float) -> float:
        """When to ask again after votes were split: at random, so that the others do not ask at the
        same time again, and later each time."""
        splits = self._asks.splits.get(claim.id, 0)
        if claim.wait:
            self._asks.splits[claim.id] = splits + 1
        chance = zlib.crc32(f"{claim.id} {splits}".encode()) / 2**32
        pause: float = max(SOON, took) * 2.0 ** min(splits, MOST_SPLITS) * (0.5 + chance)
        return min(pause, REFRESH)

    def _proposal(self, now: float) -> int:
        return 0 if self._ahead is None else int(now * 1e6) + self._ahead

    def _distrust(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._voters.distrust(node)

    # ---- marks of birth ----------------------------------------------------------------------

    async def _are_new(self, tally: Tally, budget: float) -> bool:
        """Were all nodes new, and have we given them their marks?"""
        self._distrust(tally.nonsense)
        if tally.too_long:
            raise Unsupported(
                f"this quorum was founded for leases of at most {tally.too_long:g} s: every client "
                "must be given the same longest_lease"
            )
        if len(tally.new) == self._voters.size:
            return await self._found(budget)
        if tally.new and (tally.voters or tally.late):
            late = founding("late", self._asks.nonce, self._longest)
            self._voters.tell([late if n in tally.new else None for n in range(tally.size)])
        return False

    def _silent(self, tally: Tally) -> list[str]:
        wheres, said = self._voters.wheres, []
        if not tally.voters and not tally.late and tally.new:
            return [f"{wheres[node]} is new: all nodes are needed once" for node in tally.new]
        for node in tally.new:
            tally.late[node] = self._longest
        for node, rest in sorted(tally.late.items()):
            said.append(f"{wheres[node]} had lost its data, and votes again in {rest:.1f} s")
        for node in tally.nonsense:
            said.append(f"{wheres[node]} answered what makes no sense")
        return said

    async def _found(self, budget: float) -> bool:
        """All nodes are new. One of the clients that see this gives them their marks: whoever is
        first at the first node. A node that restarts meanwhile has forgotten that it was being
        founded, and is not: so no founding that comes late makes it vote."""
        size, nonce = self._voters.size, self._asks.nonce
        attempt = founding("try", nonce, self._longest)
        for calls in ([attempt, *[None] * (size - 1)], [None, *[attempt] * (size - 1)]):
            replies = await self.ask(calls, lambda _: False, budget / 4)
            asked = [reply for reply, call in zip(replies, calls, strict=True) if call]
            if any(reply != 1 for reply in asked):
                return False  # somebody else does it
        done = founding("done", nonce, self._longest)
        replies = await self.ask([done] * size, lambda _: False, budget / 4)
        return bool(sum(reply == 1 for reply in replies) > size // 2)
