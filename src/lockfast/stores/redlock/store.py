"""The verbs on a quorum of Redis servers. Claims are decided in `votes` and `voting`; this module
defines how the nodes' replies to the other verbs combine.

- **renew**: a hold is extended if a majority extended it, lost if so many nodes do not have it that
  no majority can be left, and otherwise unknown, which is not a loss. A node that lost the hold
  does not get it back: a late renewal would restore a hold that was released.
- **release, break_hold**: done if a majority did it; "not held" if no majority had the hold. Nodes
  that did not answer a release are sent it again when they are connected.
- **leave, inspect**: the merged views of a majority.
- **transfer, shrink**: as renew.
- **names**: the names that a majority has, or may have, counting nodes that did not answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from lockfast.core.ports import Reply, Store, Wake
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
from lockfast.stores.redis.commands import (
    MALFORMED,
    Call,
    key_of,
    name_call,
    name_of,
    names_call,
    transfer_call,
)
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redlock.nodes import (
    Ask,
    Nodes,
    release_call,
    settle_call,
)
from lockfast.stores.redlock.votes import (
    GONE,
    Changes,
    Count,
    NodeReply,
    Poll,
    Views,
    majority_of,
    merge_snapshots,
)
from lockfast.stores.redlock.voting import Ballots, Voting
from lockfast.stores.steps import Steps, perform, perform_soon

T = TypeVar("T")
Renewed = Granted | Busy | Gone | BackendError
MOST_SHOWN = 1000  # waiters in the message of a time-out
EVERYBODY = 10**9
SCAN_COUNT = 1000
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


class QuorumStore(Store):
    """A quorum of N servers, for the API of its nodes."""

    def __init__(self, nodes: Nodes, ballots: Ballots, longest: float) -> None:
        self.suspends = nodes.suspends
        self._nodes = nodes
        self._size = nodes.size
        self._ballots = ballots
        self._voting = Voting(nodes, ballots, longest)
        self._longest = longest
        self._capabilities = Capabilities(
            store="redlock",
            across="network",
            fair=False,  # nearly: the queues of the nodes may differ
            wakes="ask",
            longest_lease=longest,
            refuses=REFUSES,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _run(self, steps: Steps[T]) -> Reply[T]:
        if self.suspends:
            return perform_soon(steps, self._nodes.ask)  # type: ignore[arg-type]
        return perform(steps, self._nodes.ask)

    # ---- claim and release -------------------------------------------------------------------

    def claim(
        self, claims: Sequence[Claim], budget: float
    ) -> Reply[Sequence[Granted | Busy | Differs]]:
        return self._run(self._claim(claims, budget))

    def _claim(
        self, claims: Sequence[Claim], budget: float
    ) -> Steps[Sequence[Granted | Busy | Differs]]:
        for claim in claims:
            if claim.slots not in (1, ALL_SLOTS):
                raise Unsupported(_WHY.format(kind_of(claim.slots)))
            self._check_lease(claim)
            if claim.take > claim.slots:
                return [Differs(claim.slots)]
        answers = yield from self._voting.claim(claims, budget)
        return [answer if not isinstance(answer, Gone) else Busy(0.0, 0) for answer in answers]

    def _check_lease(self, claim: Claim) -> None:
        if claim.lease > self._longest:
            raise Unsupported(
                f"lease={claim.lease:g} is longer than longest_lease={self._longest:g} s, for "
                "which a node that lost its data must not vote; change it for all clients together"
            )

    def release(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[bool]]:
        for claim in claims:
            self._ballots.unmark_queued(claim.id)
        return self._run(self._polled(release_call(claims), len(claims), budget, resend=True))

    def break_hold(self, name: str, fence: int, budget: float) -> Reply[bool]:
        return self._run(self._broken(name_call(scripts.BREAK, name, fence), budget))

    def _broken(self, call: Call, budget: float) -> Steps[bool]:
        return (yield from self._polled(call, 1, budget))[0]

    def _polled(
        self, call: Call, length: int, budget: float, *, resend: bool = False
    ) -> Steps[list[bool]]:
        """Return whether a majority had each of the holds."""
        poll = Poll(self._size, length)
        replies = yield from self._voting.everywhere(call, poll, budget, resend=resend)
        verdicts = [poll.verdict(number) for number in range(length)]
        if None in verdicts:
            raise self._voting.no_quorum(replies, len(poll.answers))
        return [verdict is True for verdict in verdicts]

    # ---- for the keeper ----------------------------------------------------------------------

    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Reply[Sequence[Renewed]]:
        return self._run(self._renew(claims, fences, budget))

    def _renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Steps[Sequence[Renewed]]:
        held = [number for number, fence in enumerate(fences) if fence]
        waits = [number for number, fence in enumerate(fences) if not fence]
        answers: dict[int, Renewed] = {}
        if held:
            mine, theirs = [claims[n] for n in held], [fences[n] for n in held]
            answers |= zip(held, (yield from self._extend(mine, theirs, budget)), strict=True)
        if waits:
            waiting = [claims[n] for n in waits]
            answers |= zip(waits, (yield from self._refresh(waiting, budget)), strict=True)
        errors = [one for one in answers.values() if isinstance(one, BackendError)]
        if len(errors) == len(claims):
            raise errors[-1]
        return [answers[number] for number in range(len(claims))]

    def _extend(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Steps[list[Renewed]]:
        for claim in claims:
            self._check_lease(claim)
        poll = Poll(self._size, len(claims))
        answers: list[Renewed] = []
        replies = yield from self._voting.everywhere(settle_call(claims, fences), poll, budget)
        for number, (claim, fence) in enumerate(zip(claims, fences, strict=True)):
            verdict = poll.verdict(number)
            if verdict is None:
                answers.append(self._voting.no_quorum(replies, len(poll.answers)))
            else:
                answers.append(Granted(fence, claim.lease) if verdict else GONE)
        if any(isinstance(answer, Granted) for answer in answers):
            # Nodes that lack a hold, or have not answered yet, may have lost their data.
            self._voting.mark({n for n in range(self._size) if 0 in poll.answers.get(n, (0,))})
        return answers

    def _refresh(self, claims: Sequence[Claim], budget: float) -> Steps[list[Renewed]]:
        try:
            answers = yield from self._voting.refresh(claims, budget)
        except QuorumError as error:
            return [error] * len(claims)
        # If the name has another size now, the waiter asks again, which raises the error.
        return [GONE if isinstance(answer, Differs) else answer for answer in answers]

    def leave(self, claim: Claim, budget: float) -> Reply[Snapshot]:
        self._ballots.unmark_queued(claim.id)
        call = name_call(scripts.LEAVE, claim.name, claim.id, MOST_SHOWN)
        return self._run(self._seen(claim.name, call, budget, resend=True))

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Reply[Granted | Gone]:
        self._check_lease(claim)
        return self._run(self._changed(transfer_call(claim, attached), claim.lease, budget))

    def shrink(self, claim: Claim, budget: float) -> Reply[Granted | Gone]:
        call = name_call(scripts.SHRINK, claim.name, claim.id, claim.take)
        return self._run(self._changed(call, claim.lease, budget))

    def _changed(self, call: Call, lease: float, budget: float) -> Steps[Granted | Gone]:
        """Make a call that changes a hold; return what a majority of the nodes did."""
        changes = Changes(self._size, lease)
        replies = yield from self._voting.everywhere(call, changes, budget)
        answer = changes.verdict(final=None not in replies)
        if answer is None:
            raise self._voting.no_quorum(replies, len(changes.answers))
        return answer

    def resize(self, name: str, expected: int, slots: int, budget: float) -> Reply[int]:
        raise Unsupported(REFUSES["semaphore"])

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        self._nodes.wakeups.watch(claim.id, wake)
        return self._nodes.subscribe(since)

    def unwatch(self, claim: Claim) -> None:
        self._ballots.unmark_queued(claim.id)
        self._nodes.wakeups.unwatch(claim.id)

    def listen(self, timeout: float | None) -> Reply[None]:
        return self._nodes.listen(timeout)

    def interrupt(self) -> None:
        self._nodes.interrupt()

    def close(self) -> None:
        self._nodes.close()

    # ---- for operators -----------------------------------------------------------------------

    def inspect(self, name: str, budget: float, layout: str = "") -> Reply[Snapshot]:
        return self._run(self._seen(name, name_call(scripts.INSPECT, name, EVERYBODY), budget))

    def _seen(
        self, name: str, call: Call, budget: float, *, resend: bool = False
    ) -> Steps[Snapshot]:
        views, voting = Views(name, self._size), self._voting
        # Wait briefly for all nodes, since a majority may not see everything.
        replies = yield from voting.everywhere(call, views, budget / 4, resend=resend)
        views.needed = views.majority
        if not views.decided(0):
            views.pending = set(range(self._size)) - views.answers.keys()
            replies = yield from voting.everywhere(call, views, budget / 2, resend=resend)
        if not views.decided(0):
            raise voting.no_quorum(replies, len(views.answers))
        return merge_snapshots(name, list(views.answers.values()), self._size)

    def names(self, prefix: str, budget: float) -> Reply[list[str]]:
        return self._run(self._names(prefix, budget))

    def _names(self, prefix: str, budget: float) -> Steps[list[str]]:
        """Scan all nodes side by side, one step of each at a time."""
        scans = [_scan(prefix) for _ in range(self._size)]
        calls: list[Call | None] = [next(scan) for scan in scans]
        found: Counter[str] = Counter()
        failed: dict[int, NodeReply] = {}
        while any(calls):
            replies = yield from self._voting.asked(Ask(calls, Count(self._size), budget))
            asked, calls = calls, [None] * self._size
            for node in [node for node, call in enumerate(asked) if call is not None]:
                try:
                    calls[node] = scans[node].send(replies[node])
                except StopIteration as end:
                    found.update(end.value)
                except MALFORMED:
                    failed[node] = replies[node]
        answered = self._size - len(failed)
        if answered < majority_of(self._size):
            errors = [failed.get(node, ()) for node in range(self._size)]
            raise self._voting.no_quorum(errors, answered)
        needed = majority_of(self._size) - len(failed)
        return sorted(name for name, nodes in found.items() if nodes >= needed)


def _scan(prefix: str) -> Steps[list[str]]:
    """Scan one node in small steps; names that exist throughout are found."""
    start = key_of(prefix)[:-1]
    pattern = re.sub(r"([*?\[\]^\\-])", r"\\\1", start) + "*"
    found: set[str] = set()
    cursor = b"0"
    while True:
        scan = packed("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        cursor, keys = yield Call(None, scan, 0)
        fresh = sorted({name for key in keys if (name := name_of(key))} - found)
        if fresh:
            in_use = yield names_call(fresh)
            found.update(name for name, yes in zip(fresh, in_use, strict=True) if yes)
        if cursor in (b"0", 0):
            return sorted(found)
