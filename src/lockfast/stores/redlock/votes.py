"""What votes make: granted, busy, or unknown. No I/O, no clock: the simulator and the exhaustive
model run these lines.

The rules, for N nodes of which M = N // 2 + 1 are a majority:

1. A claim is granted when M nodes granted it. Two majorities have a node in common, and that node's
   law of slots lets no two in that exclude each other. This is all that exclusion stands on, for a
   lock as for a reader and a writer. (It does not carry a semaphore: with three nodes and two
   permits A may have nodes 1 and 2, B 2 and 3, C 3 and 1. No node sees three.)
2. Its fence F is settled when M nodes keep the hold under F. A node takes a fence over only if it
   is above all that it gave before. So no two claims settle the same F (their majorities share a
   node, which gave it once), and whoever claims later is granted by a node that has settled F,
   under a fence above F. The greatest fence that nodes happened to grant under is not enough: the
   next majority may not contain the node that gave it.
3. What is less than granted is taken back everywhere, also where no answer came.
4. A node without a mark of birth has forgotten what it granted, and does not vote until the longest
   lease has passed. If all N nodes have none, they are new: there is nothing to protect but the
   fence, and that has the clocks as its floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.model import Busy, Differs, Gone, Granted
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.replies import MOST_FENCE, NONSENSE, busy, granted

# What came of one node: its answer, why there is none, or None: it may still come.
Reply = Any
Enough = Callable[[Sequence[Reply]], bool]
Answer = Granted | Busy | Differs | Gone
GONE = Gone()
NEW, LATE, TOO_LONG = 4, 5, 6  # why a node does not vote
SOON = 0.001


def majority_of(size: int) -> int:
    return size // 2 + 1


def is_pending(reply: Reply) -> bool:
    """It may still vote: not answered, or it only has to be told the script."""
    return reply is None or (type(reply) is ServerError and str(reply).startswith("NOSCRIPT"))


def votes_in(reply: Reply, leases: Sequence[float]) -> list[Answer]:
    """What one node says to each claim, as far as it went. Raises one of `NONSENSE`."""
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
    """Why a node that answered does not vote; None: it does."""
    if type(reply) is list and reply and reply[0] in (NEW, LATE, TOO_LONG) and len(reply) < 3:
        return reply[0], reply[1] if len(reply) > 1 and type(reply[1]) is int else 0
    return None


class Tally:
    """The votes of all nodes on some claims, as far as they came."""

    def __init__(self, size: int, leases: Sequence[float]) -> None:
        self.size = size
        self.majority = majority_of(size)
        self.leases = leases
        self.votes: list[list[Answer] | None] = [None] * size
        self.pending = set(range(size))
        self.failed: dict[int, BackendError] = {}
        self.new: set[int] = set()
        self.late: dict[int, float] = {}
        self.too_long = 0.0
        self.nonsense: list[int] = []

    def count(self, replies: Sequence[Reply]) -> None:
        """Take in what came since the last time."""
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
                elif why[0] == LATE:
                    self.late[node] = why[1] / 1e6
                else:
                    self.too_long = why[1] / 1e6
            else:
                try:
                    self.votes[node] = votes_in(reply, self.leases)
                except NONSENSE:
                    self.nonsense.append(node)

    def of(self, number: int) -> dict[int, Answer]:
        """Who voted what on that claim. A node that stopped before it has not."""
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
        """More votes cannot change what becomes of that claim: it is granted, or cannot be and so
        many voted that this is known to be so for no other reason than others' holds. Nodes that
        tell of different fences do not say that somebody has it: a node that was late may have
        given the same holder another one. So the others are waited for, or who waits would ask
        again and again."""
        given = len(self.grants(number))
        if given >= self.majority:
            return True
        if given + len(self.pending) >= self.majority:
            return False
        return not self.pending or (self.voters >= self.majority and self._is_agreed(number))

    def _is_agreed(self, number: int) -> bool:
        """Do those who refuse it say the same? (Who stopped before it says nothing.)"""
        refused = [vote for vote in self.of(number).values() if not isinstance(vote, Granted)]
        reasons = [vote.fence if isinstance(vote, Busy) else type(vote) for vote in refused]
        return not reasons or Counter(reasons).most_common(1)[0][1] >= self.majority

    def enough(self, replies: Sequence[Reply]) -> bool:
        self.count(replies)
        return not self.pending or all(self.decided(number) for number in range(len(self.leases)))

    def is_granted(self, number: int) -> bool:
        return len(self.grants(number)) >= self.majority

    def fence(self, number: int) -> tuple[int, bool]:
        """Under which fence it can be granted, and whether that is settled already (rule 2)."""
        fences = [vote.fence for vote in self.grants(number).values()]
        commonest, times = Counter(fences).most_common(1)[0]
        if times >= self.majority:
            return commonest, True
        return max(fences), False

    def refusal(self, number: int, pause: float) -> Busy | Differs | Gone:
        """What to say to a claim that is not granted though a majority voted. ``pause`` is when to
        ask again if nobody has it: votes were split between several who asked at once."""
        votes = self.of(number)
        sizes = Counter(vote.slots for vote in votes.values() if isinstance(vote, Differs))
        if sizes and (sizes.total() >= self.majority or sizes.total() == len(votes)):
            return Differs(sizes.most_common(1)[0][0])
        gone = sum(isinstance(vote, Gone) for vote in votes.values())
        if gone >= self.majority:
            return GONE
        waits = [vote for vote in votes.values() if isinstance(vote, Busy)]
        lasts = sorted((vote.fence for vote in waits), reverse=True)
        # Any majority has a node among those that told of so much, or more.
        known = lasts[self.majority - 1] if len(lasts) >= self.majority else 0
        fences = Counter(lasts)
        if lasts and fences.most_common(1)[0][1] >= self.majority:
            # One fence at a majority: somebody has it, and will ring. Or its lease ends, at enough
            # nodes to make ours a majority.
            afters = sorted(vote.retry_after for vote in waits)
            needed = self.majority - len(self.grants(number))
            return Busy(afters[min(needed, len(afters)) - 1], known)
        return Busy(pause, known)


class Poll:
    """Yes or no of every node, to each of some holds: 1 and negative numbers say that it is there,
    0 that it is not."""

    def __init__(self, size: int, length: int, *, exact: bool = False) -> None:
        self.size = size
        self.majority = majority_of(size)
        self.length = length
        self.exact = exact  # only 1 is yes; a negative number is neither
        self.answers: dict[int, list[int]] = {}
        self.failed: dict[int, BackendError] = {}
        self.nonsense: list[int] = []
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
            said = reply if type(reply) is list else [reply]
            if len(said) == self.length and all(
                type(one) is int and -MOST_FENCE < one <= 1 for one in said
            ):
                self.answers[node] = said
            else:
                self.nonsense.append(node)

    def yes(self, number: int) -> int:
        return sum(
            said[number] == 1 if self.exact else said[number] != 0 for said in self.answers.values()
        )

    def no(self, number: int) -> int:
        return sum(
            said[number] != 1 if self.exact else said[number] == 0 for said in self.answers.values()
        )

    def verdict(self, number: int) -> bool | None:
        """Was it so at a majority? None: that is unknown, or not known yet."""
        if self.yes(number) >= self.majority:
            return True
        return False if self.no(number) > self.size - self.majority else None

    def enough(self, replies: Sequence[Reply]) -> bool:
        self.count(replies)
        return not self.pending or all(
            self.verdict(number) is not None for number in range(self.length)
        )

    def greatest(self, number: int) -> int:
        """The last fence of a node that could not take ours over; 0 if all could."""
        return max((-said[number] for said in self.answers.values()), default=0)
