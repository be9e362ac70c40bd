"""Counting the replies of the nodes. No I/O and no clock: the simulator and the exhaustive model
run this code.

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
   the fences start from the clocks. So whoever learns that a majority has marks (by its votes, or
   because it renewed a hold) has the others marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Differs, Gone, Granted, Holder, Snapshot, Waiter
from lockfast.stores.redis.commands import MALFORMED, MOST_FENCE, busy, gone, granted, seen
from lockfast.stores.redis.errors import ServerError, Unreachable

# One node's reply, the error that replaced it, or None while it may still arrive.
NodeReply = Any
Answer = Granted | Busy | Differs | Gone
GONE = Gone()
NEW, RECOVERING, TOO_LONG = 4, 5, 6  # why a node does not vote


def majority_of(size: int) -> int:
    return size // 2 + 1


class NotConnected(Unreachable):
    """A node without known errors to which the connection was not open in time."""


def lacks_script(reply: NodeReply) -> bool:
    return type(reply) is ServerError and str(reply).startswith("NOSCRIPT")


def is_pending(reply: NodeReply) -> bool:
    """Return True if the node can be asked again, since it lacks the script or was not connected
    yet."""
    return isinstance(reply, NotConnected) or lacks_script(reply)


class Count:
    """The nodes' answers to one question, as far as they have arrived."""

    def __init__(self, size: int, length: int = 1) -> None:
        self.size = size
        self.majority = majority_of(size)
        self.length = length  # how many claims the question is about
        self.answers: dict[int, Any] = {}
        self.pending = set(range(size))
        self.malformed: list[int] = []

    def count(self, replies: Sequence[NodeReply]) -> None:
        """Count the replies that have arrived since the last call."""
        for node, reply in enumerate(replies):
            if reply is None or node not in self.pending:
                continue
            if type(reply) is not list and is_pending(reply):
                continue
            self.pending.discard(node)
            if not isinstance(reply, BackendError | ServerError):
                try:
                    self._count_one(node, reply)
                except MALFORMED:
                    self.malformed.append(node)

    def enough(self, replies: Sequence[NodeReply]) -> bool:
        self.count(replies)
        return not self.pending or all(map(self.decided, range(self.length)))

    def _count_one(self, node: int, reply: NodeReply) -> None:
        """Note a node's answer, or raise one of `MALFORMED`."""
        self.answers[node] = reply

    def decided(self, number: int) -> bool:
        """Return True if more answers cannot change the result for a claim; as here, never: all
        nodes are waited for."""
        return False


class Tally(Count):
    """The votes of all nodes on a batch of claims. A node that stopped before a claim did not vote
    on it."""

    def __init__(self, size: int, leases: Sequence[float]) -> None:
        super().__init__(size, len(leases))
        self.leases = leases
        self.answers: dict[int, list[Answer]] = {}
        self.new: set[int] = set()
        self.recovering: dict[int, float] = {}
        self.too_long = 0.0

    def _count_one(self, node: int, reply: NodeReply) -> None:
        why, micros = abstention(reply)
        if why == NEW:
            self.new.add(node)
        elif why == RECOVERING:
            self.recovering[node] = micros / 1e6
        elif why == TOO_LONG:
            self.too_long = micros / 1e6
        else:
            self.answers[node] = votes_in(reply, self.leases)

    def of(self, number: int) -> dict[int, Answer]:
        """Return the vote of each node on a claim."""
        return {node: votes[number] for node, votes in self.answers.items() if number < len(votes)}

    def grants(self, number: int) -> dict[int, Granted]:
        return {node: vote for node, vote in self.of(number).items() if isinstance(vote, Granted)}

    def decided(self, number: int) -> bool:
        """Return True if the claim is granted, or a majority voted and it is refused because of
        other holds.

        Nodes that report different fences do not prove that there is a holder: a node whose vote
        was late may have given the same holder another fence. So the other nodes are waited for;
        otherwise the waiter would ask again and again.
        """
        grants = len(self.grants(number))
        if grants >= self.majority:
            return True
        if grants + len(self.pending) >= self.majority:
            return False
        return not self.pending or (len(self.answers) >= self.majority and self._is_agreed(number))

    def _is_agreed(self, number: int) -> bool:
        """True if a majority refuses the claim for the same reason, or no node refuses it."""
        refused = [vote for vote in self.of(number).values() if not isinstance(vote, Granted)]
        reasons = [vote.fence if isinstance(vote, Busy) else type(vote) for vote in refused]
        return not reasons or Counter(reasons).most_common(1)[0][1] >= self.majority

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
        if sum(isinstance(vote, Gone) for vote in votes.values()) >= self.majority:
            return GONE
        waits = [vote for vote in votes.values() if isinstance(vote, Busy)]
        lasts = sorted((vote.fence for vote in waits), reverse=True)
        # Any majority contains a node that reported this fence or a greater one.
        known = lasts[self.majority - 1] if len(lasts) >= self.majority else 0
        if lasts and Counter(lasts).most_common(1)[0][1] >= self.majority:
            # One fence at a majority: there is a holder, whose release wakes us. Or its lease ends
            # at enough nodes to give us a majority.
            afters = sorted(vote.retry_after for vote in waits)
            needed = self.majority - len(self.grants(number))
            return Busy(afters[min(needed, len(afters)) - 1], known)
        return Busy(pause, known)

    def to_withdraw(
        self, claims: Sequence[Claim], answers: Sequence[Answer]
    ) -> tuple[list[list[Claim]], list[list[Claim]]]:
        """Return for each node the claims to withdraw there, also where a vote is only possible:
        those that go on waiting, and those that leave. A claim that was granted leaves the queues
        of the nodes that refused it."""
        stay: list[list[Claim]] = [[] for _ in range(self.size)]
        leave: list[list[Claim]] = [[] for _ in range(self.size)]
        for number, claim in enumerate(claims):
            votes = self.of(number)
            answer = answers[number] if number < len(answers) else None
            if isinstance(answer, Granted):
                nodes = {n for n, vote in votes.items() if isinstance(vote, Busy) and claim.wait}
            else:
                nodes = set(range(self.size)) - self.answers.keys() | self.grants(number).keys()
                nodes -= self.new | self.recovering.keys()
            for node in nodes:
                (stay if isinstance(answer, Busy) else leave)[node].append(claim)
        return stay, leave


def votes_in(reply: NodeReply, leases: Sequence[float]) -> list[Answer]:
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
        else:
            votes.append(gone(kind))
    return votes


def abstention(reply: NodeReply) -> tuple[int, int]:
    """Return why a node that answered does not vote, with a number of µs; zeros if it votes."""
    if type(reply) is list and reply and reply[0] in (NEW, RECOVERING, TOO_LONG) and len(reply) < 3:
        return reply[0], reply[1] if len(reply) > 1 and type(reply[1]) is int else 0
    return 0, 0


class Poll(Count):
    """Every node's yes or no on each of some holds: 1 and negative numbers mean that the node has
    the hold, 0 that it has not."""

    def __init__(self, size: int, length: int, *, exact: bool = False) -> None:
        super().__init__(size, length)
        self.exact = exact  # only 1 is yes
        self.answers: dict[int, list[int]] = {}

    def _count_one(self, node: int, reply: NodeReply) -> None:
        answers = reply if type(reply) is list else [reply]
        if len(answers) != self.length:
            raise ValueError
        if not all(type(one) is int and -MOST_FENCE < one <= 1 for one in answers):
            raise ValueError
        self.answers[node] = answers

    def verdict(self, number: int) -> bool | None:
        """Return the majority's answer; None if it is unknown, or not known yet."""
        answers = [answers[number] for answers in self.answers.values()]
        yes = sum(one == 1 if self.exact else one != 0 for one in answers)
        if yes >= self.majority:
            return True
        return False if len(answers) - yes > self.size - self.majority else None

    def decided(self, number: int) -> bool:
        return self.verdict(number) is not None

    def greatest(self, number: int) -> int:
        """Return the greatest last fence of the nodes that could not adopt ours; 0 if all could."""
        return max((-answers[number] for answers in self.answers.values()), default=0)


class Changes(Count):
    """The nodes' answers to a change of one hold: the hold after it, or that it is gone."""

    def __init__(self, size: int, lease: float) -> None:
        super().__init__(size)
        self._lease = lease

    def _count_one(self, node: int, reply: NodeReply) -> None:
        changed = reply[0] == 1
        self.answers[node] = granted(reply[1], reply[2], self._lease) if changed else gone(reply[0])

    def decided(self, number: int) -> bool:
        return self.verdict() is not None

    def verdict(self, *, final: bool = False) -> Granted | Gone | None:
        """Return what a majority did; None if it is unknown. The nodes where the fence was not
        settled report another one: if that leaves no majority, ``final`` takes the commonest."""
        done = [answer for answer in self.answers.values() if isinstance(answer, Granted)]
        if len(done) >= self.majority:
            fences = Counter(sorted((answer.fence for answer in done), reverse=True))
            fence, times = fences.most_common(1)[0]
            if times < self.majority and not final:
                return None
            return Granted(fence, min(answer.lease for answer in done))
        return GONE if len(self.answers) - len(done) > self.size - self.majority else None


class Views(Count):
    """The nodes' views of a name."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(size)
        self._name = name
        self.needed = size
        self.answers: dict[int, Snapshot] = {}

    def _count_one(self, node: int, reply: NodeReply) -> None:
        self.answers[node] = seen(self._name, *reply)

    def decided(self, number: int) -> bool:
        return len(self.answers) >= self.needed


def merge_snapshots(name: str, views: Sequence[Snapshot], size: int) -> Snapshot:
    """Merge the views of the nodes that answered, out of ``size``.

    A hold is shown if a majority has it, or may have it, counting nodes that did not answer; it
    lasts as long as it does at a majority. Waiters are shown by the same rule, in the order of the
    node with the longest queue: the queues of the nodes may differ.
    """
    majority = majority_of(size)
    holders = []
    for rows in _holds(views, majority, size - len(views)):
        remaining = sorted((row.remaining for row in rows), reverse=True)
        rest = remaining[min(majority, len(remaining)) - 1]
        fence, since = max(row.fence for row in rows), min(row.since for row in rows)
        holders.append(replace(rows[0], fence=fence, remaining=rest, since=since))
    holders.sort(key=lambda holder: holder.fence)
    waiters = tuple(_waiters(views, majority - (size - len(views))))
    slots = max((view.slots for view in views), default=0)
    crossed = sum(view.crossed for view in views) >= majority
    now = sorted(view.now for view in views)[len(views) // 2]
    return Snapshot(name, slots, tuple(holders), waiters, now, crossed)


def _waiters(views: Sequence[Snapshot], least: int) -> Iterator[Waiter]:
    """Yield the waiters that at least ``least`` nodes know. A new holder may still be in the queue
    of a node that its claim has not reached."""
    queues = [Counter(map(_request, view.waiters)) for view in views]
    rest = {
        request: sorted((queue[request] for queue in queues), reverse=True)[least - 1]
        for request in set().union(*queues)
    }
    for view in sorted(views, key=lambda view: -len(view.waiters)):
        for waiter in view.waiters:
            if rest[_request(waiter)] > 0:
                rest[_request(waiter)] -= 1
                yield waiter


def _request(waiter: Waiter) -> tuple[object, int, bool]:
    return waiter.who, waiter.take, waiter.fair


def _holds(views: Sequence[Snapshot], majority: int, silent: int) -> Iterator[list[Holder]]:
    """Yield the rows of each hold. Its rows have one fence at a majority once the fence is settled;
    until then they only have the owner in common."""
    fences: dict[tuple[object, int], list[Holder]] = {}
    for view in views:
        for row in view.holders:
            fences.setdefault((row.who, row.fence), []).append(row)
    unsettled: dict[object, list[Holder]] = {}
    settled = set()
    for (who, _), rows in sorted(fences.items(), key=lambda item: -len(item[1])):
        if len(rows) >= majority:
            settled.add(who)
            yield rows
        else:
            unsettled.setdefault(who, []).extend(rows)
    for who, rows in unsettled.items():
        if len(rows) + silent >= majority and who not in settled:
            yield rows
