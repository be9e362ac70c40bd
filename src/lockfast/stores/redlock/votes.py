"""Counting votes: granted, busy, or unknown. No I/O and no clock: the simulator and the exhaustive
model run this code.

The rules, for N nodes of which M = N // 2 + 1 are a majority:

1. A claim is granted when M nodes granted it. Two majorities share a node, and the law of slots at
   that node admits no two claims that exclude each other. Mutual exclusion rests on this alone, for
   a lock as well as for readers and a writer. (It does not extend to a semaphore: with three nodes
   and two permits A may have nodes 1 and 2, B 2 and 3, C 3 and 1. No node sees three holders.)
2. The claim's fence F is settled when M nodes keep the hold under F. A node adopts a fence only if
   it is above every fence that the node gave before. So no two claims settle the same F (their
   majorities share a node, which gives it once), and a later claim is granted by a node that has
   settled F, under a fence above F. The greatest fence among the votes is not enough: the next
   majority may not contain the node that gave it.
3. A claim that is not granted is withdrawn at every node, also at nodes that did not answer.
4. A node without its mark (`lf:born`) has lost its data, and does not vote until the longest lease
   has passed. If none of the N nodes has a mark, they are new: there are no holds to protect, and
   the fences start from the clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.model import Busy, Differs, Gone, Granted
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.replies import MALFORMED, MOST_FENCE, busy, granted

# One node's reply, the error that replaced it, or None while it may still arrive.
Reply = Any
Enough = Callable[[Sequence[Reply]], bool]
Answer = Granted | Busy | Differs | Gone
GONE = Gone()
NEW, RECOVERING, TOO_LONG = 4, 5, 6  # why a node does not vote
SOON = 0.001


def majority_of(size: int) -> int:
    return size // 2 + 1


class NotConnected(Unreachable):
    """A node without known errors to which the connection was not open in time."""


def is_pending(reply: Reply) -> bool:
    """Return True if the node may still vote: it has not answered, or can be asked again because it
    lacks the script or was not connected yet."""
    return reply is None or isinstance(reply, NotConnected) or lacks_script(reply)


def lacks_script(reply: Reply) -> bool:
    return type(reply) is ServerError and str(reply).startswith("NOSCRIPT")


def votes_in(reply: Reply, leases: Sequence[float]) -> list[Answer]:
    """Decode one node's votes, up to the claim at which it stopped. Raises one of `MALFORMED`."""
    votes: list[Answer] = []
    if type(reply) is not list or not reply or len(reply) % 3:
        raise ValueError
    for at, lease in zip(range(0, len(reply), 3), leases, strict=False):
        kind, first, second = reply[at : at + 3]
        if kind == 1:
            votes.append(granted(first, second, lease))
        elif kind == 0:
            votes.append(busy(first, second))
        elif kind == 2 and type(first) is int:
            votes.append(Differs(first))
        elif kind == 3:
            votes.append(GONE)
        else:
            raise ValueError
    return votes


def abstention(reply: Reply) -> tuple[int, int] | None:
    """Return why a node that answered does not vote, with a number of µs; None if it votes."""
    if type(reply) is list and reply and reply[0] in (NEW, RECOVERING, TOO_LONG) and len(reply) < 3:
        return reply[0], reply[1] if len(reply) > 1 and type(reply[1]) is int else 0
    return None


class Tally:
    """The votes of all nodes on a batch of claims, as far as they have arrived."""

    def __init__(self, size: int, leases: Sequence[float]) -> None:
        self.size = size
        self.majority = majority_of(size)
        self.leases = leases
        self.votes: list[list[Answer] | None] = [None] * size
        self.pending = set(range(size))
        self.failed: dict[int, BackendError] = {}
        self.new: set[int] = set()
        self.recovering: dict[int, float] = {}
        self.too_long = 0.0
        self.malformed: list[int] = []

    def count(self, replies: Sequence[Reply]) -> None:
        """Count the replies that have arrived since the last call."""
        for node in list(self.pending):
            reply = replies[node]
            if is_pending(reply):
                continue
            self.pending.discard(node)
            if isinstance(reply, BackendError):
                self.failed[node] = reply
            elif (why := abstention(reply)) is not None:
                if why[0] == NEW:
                    self.new.add(node)
                elif why[0] == RECOVERING:
                    self.recovering[node] = why[1] / 1e6
                else:
                    self.too_long = why[1] / 1e6
            else:
                try:
                    self.votes[node] = votes_in(reply, self.leases)
                except MALFORMED:
                    self.malformed.append(node)

    def of(self, number: int) -> dict[int, Answer]:
        """Return the vote of each node on a claim. A node that stopped before it did not vote."""
        return {
            node: votes[number]
            for node, votes in enumerate(self.votes)
            if votes is not None and number < len(votes)
        }

    def grants(self, number: int) -> dict[int, Granted]:
        return {node: vote for node, vote in self.of(number).items() if isinstance(vote, Granted)}

    @property
    def voters(self) -> int:
        return sum(votes is not None for votes in self.votes)

    def decided(self, number: int) -> bool:
        """Return True if more votes cannot change the result: the claim is granted, or a majority
        voted and it is refused because of other holds.

        Nodes that report different fences do not prove that there is a holder: a node whose vote
        was late may have given the same holder another fence. So the other nodes are waited for;
        otherwise the waiter would ask again and again.
        """
        grants = len(self.grants(number))
        if grants >= self.majority:
            return True
        if grants + len(self.pending) >= self.majority:
            return False
        return not self.pending or (self.voters >= self.majority and self._is_agreed(number))

    def _is_agreed(self, number: int) -> bool:
        """True if a majority refuses the claim for the same reason, or no node refuses it."""
        refused = [vote for vote in self.of(number).values() if not isinstance(vote, Granted)]
        reasons = [vote.fence if isinstance(vote, Busy) else type(vote) for vote in refused]
        return not reasons or Counter(reasons).most_common(1)[0][1] >= self.majority

    def enough(self, replies: Sequence[Reply]) -> bool:
        self.count(replies)
        return not self.pending or all(self.decided(number) for number in range(len(self.leases)))

    def is_granted(self, number: int) -> bool:
        return len(self.grants(number)) >= self.majority

    def fence(self, number: int) -> tuple[int, bool]:
        """Return the fence to grant under, and whether it is settled already (rule 2)."""
        fences = [vote.fence for vote in self.grants(number).values()]
        commonest, times = Counter(fences).most_common(1)[0]
        if times >= self.majority:
            return commonest, True
        return max(fences), False

    def refusal(self, number: int, pause: float) -> Busy | Differs | Gone:
        """Return the answer to a claim that is not granted although a majority voted. ``pause`` is
        when to ask again after a split vote: several claims competed, and none has a majority."""
        votes = self.of(number)
        sizes = Counter(vote.slots for vote in votes.values() if isinstance(vote, Differs))
        if sizes and (sizes.total() >= self.majority or sizes.total() == len(votes)):
            return Differs(sizes.most_common(1)[0][0])
        gone = sum(isinstance(vote, Gone) for vote in votes.values())
        if gone >= self.majority:
            return GONE
        waits = [vote for vote in votes.values() if isinstance(vote, Busy)]
        lasts = sorted((vote.fence for vote in waits), reverse=True)
        # Any majority contains a node that reported this fence or a greater one.
        known = lasts[self.majority - 1] if len(lasts) >= self.majority else 0
        fences = Counter(lasts)
        if lasts and fences.most_common(1)[0][1] >= self.majority:
            # One fence at a majority: there is a holder, whose release wakes us. Or its lease ends
            # at enough nodes to give us a majority.
            afters = sorted(vote.retry_after for vote in waits)
            needed = self.majority - len(self.grants(number))
            return Busy(afters[min(needed, len(afters)) - 1], known)
        return Busy(pause, known)


class Poll:
    """Every node's yes or no on each of some holds: 1 and negative numbers mean that the node has
    the hold, 0 that it has not."""

    def __init__(self, size: int, length: int, *, exact: bool = False) -> None:
        self.size = size
        self.majority = majority_of(size)
        self.length = length
        self.exact = exact  # only 1 is yes
        self.answers: dict[int, list[int]] = {}
        self.failed: dict[int, BackendError] = {}
        self.malformed: list[int] = []
        self.pending = set(range(size))

    def count(self, replies: Sequence[Reply]) -> None:
        for node in list(self.pending):
            reply = replies[node]
            if is_pending(reply):
                continue
            self.pending.discard(node)
            if isinstance(reply, BackendError):
                self.failed[node] = reply
                continue
            answers = reply if type(reply) is list else [reply]
            if len(answers) == self.length and all(
                type(one) is int and -MOST_FENCE < one <= 1 for one in answers
            ):
                self.answers[node] = answers
            else:
                self.malformed.append(node)

    def yes(self, number: int) -> int:
        return sum(
            answers[number] == 1 if self.exact else answers[number] != 0
            for answers in self.answers.values()
        )

    def no(self, number: int) -> int:
        return sum(
            answers[number] != 1 if self.exact else answers[number] == 0
            for answers in self.answers.values()
        )

    def verdict(self, number: int) -> bool | None:
        """Return the majority's answer; None if it is unknown, or not known yet."""
        if self.yes(number) >= self.majority:
            return True
        return False if self.no(number) > self.size - self.majority else None

    def enough(self, replies: Sequence[Reply]) -> bool:
        self.count(replies)
        return not self.pending or all(
            self.verdict(number) is not None for number in range(self.length)
        )

    def greatest(self, number: int) -> int:
        """Return the greatest last fence of the nodes that could not adopt ours; 0 if all could."""
        return max((-answers[number] for answers in self.answers.values()), default=0)
