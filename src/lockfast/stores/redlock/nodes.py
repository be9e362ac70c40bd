"""The nodes of a quorum: the calls to them, their health, their wake-ups, and how they are asked.

`Nodes` holds what both APIs share; `threads` and `tasks` are the two ways of sending to several
nodes and reading until the replies suffice.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lockfast import clock
from lockfast.core.ports import Reply
from lockfast.errors import BackendError
from lockfast.model import Claim, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import Call, keys_of, micros, renewal_payload
from lockfast.stores.redis.errors import Unreachable
from lockfast.stores.redis.scripts import Script, bulk
from lockfast.stores.redlock.votes import Count, NodeReply, NotConnected, majority_of
from lockfast.stores.wakeups import Wakeups

MARK = "lf:born"
# Seconds without a reply after which a node counts as hung and is disconnected.
HANG_TIMEOUT = 0.5
CONNECTING = 1.0  # seconds that connecting may take; callers wait for less
FOR_CONNECTING = 0.8  # of a budget; the nodes that are late are connected for the next call
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
MOST_UNDELIVERED = 256
# Seconds after which a wake-up from fewer nodes than a majority is passed on: the queues of the
# nodes may differ, or the other wake-ups may be a little later.
GRACE = 0.003
NEVER = float("inf")
NOT_ASKED = BackendError("not asked")


# ---- calls ----------------------------------------------------------------------------------


def encoded(call: Call, known: set[str]) -> bytes:
    """Encode a call for a server that has the ``known`` scripts, and will have this one."""
    if call.script is None or call.script.sha in known:
        return call.packed()
    known.add(call.script.sha)
    return call.with_source()


def _called(script: Script, names: Sequence[str], *arguments: str | int) -> Call:
    """Call a script on all three keys of each name."""
    keys = [keys_of(name)[2] for name in names]
    parts = [bulk(str(one).encode()) for one in arguments]
    payload = b"".join((bulk(b"%d" % (3 * len(names))), *keys, *parts))
    return Call(script, payload, 1 + 3 * len(names) + len(parts))


@functools.lru_cache(maxsize=4096)
def _terms(
    lease: float, fair: bool, wait: bool, take: int, slots: int, wake_address: str, who: str
) -> bytes:
    """Encode the arguments of a claim after its id."""
    lease_us, flags = str(micros(lease)), ("1" if fair else "0", "1" if wait else "0")
    arguments = (lease_us, *flags, f"{lease_us} {take} {slots}", wake_address, who)
    return b"".join(bulk(argument.encode()) for argument in arguments)


def vote_call(
    claims: Sequence[Claim], ballot: int, proposed: int, wake_address: str, *, create: bool
) -> Call:
    """Ask a node that wakes us at ``wake_address`` to vote; up to the first claim that it does not
    grant. With ``create`` False, on all claims that it knows."""
    parts = [bulk(b"%d" % (3 * len(claims) + 1))]
    parts += [keys_of(claim[0])[2] for claim in claims]
    parts.append(bulk(MARK.encode()))
    parts.append(b"$1\r\n%d\r\n" % create * 2 + bulk(b"%d" % ballot) + bulk(b"%d" % proposed))
    for _, claim_id, who, lease, slots, take, fair, wait, _ in claims:
        terms = _terms(lease, fair, wait, take, slots, wake_address, who)
        parts.append(b"$%d\r\n%b\r\n%b" % (len(claim_id), claim_id.encode(), terms))
    return Call(scripts.VOTE, b"".join(parts), 2 + 3 * len(claims) + 4 + 7 * len(claims))


def settle_call(claims: Sequence[Claim], fences: Sequence[int]) -> Call:
    return Call(scripts.SETTLE, *renewal_payload(claims, fences))


def undo_call(claims: Sequence[Claim], ballot: int, *, stay: bool) -> Call:
    arguments: list[str | int] = [ballot]
    for claim in claims:
        queued = "-" if not (stay and claim.wait) else "1" if claim.fair else "0"
        arguments += [claim.id, queued]
    return _called(scripts.UNDO, [claim.name for claim in claims], *arguments)


def release_call(claims: Sequence[Claim]) -> Call:
    names, ids = [claim.name for claim in claims], [claim.id for claim in claims]
    return _called(scripts.NODE_RELEASE, names, *ids)


def mark_call(step: str, nonce: str, longest: float) -> Call:
    arguments = (MARK, step, nonce, str(micros(longest)))
    payload = b"$1\r\n1\r\n" + b"".join(bulk(one.encode()) for one in arguments)
    return Call(scripts.MARK_NODE, payload, 5)


# ---- asking ---------------------------------------------------------------------------------

Calls = Sequence[Call | None]


class Ask:
    """Calls for several nodes at once, and their replies as far as they have arrived, which are
    awaited until the ``count`` has enough or the budget is used up. With ``resend``, a call is sent
    again after reconnecting to a node that was unreachable or whose connection broke before it
    answered."""

    __slots__ = ("budget", "called", "calls", "count", "late", "replies", "resend", "waiter")

    def __init__(
        self, calls: Calls, count: Count, budget: float = 0.0, *, resend: bool = False
    ) -> None:
        self.calls = calls
        self.called = [node for node, call in enumerate(calls) if call is not None]
        self.count = count
        self.budget = budget
        self.resend = resend
        self.replies: list[NodeReply] = [NOT_ASKED if call is None else None for call in calls]
        self.late: Callable[[int, NodeReply], None] | None = None  # called with replies from now on
        self.waiter: Any = None  # the future of the task that waits

    def again(self, nodes: Iterable[int], budget: float) -> Ask:
        """Ask only these nodes again, and keep the replies of the others."""
        self.called, self.budget = list(nodes), budget
        for node in self.called:
            self.replies[node] = None
        return self

    def received(self, node: int, reply: NodeReply) -> None:
        self.replies[node] = reply
        if self.late is not None:
            self.late(node, reply)

    def is_answered(self) -> bool:
        return self.count.enough(self.replies) or None not in self.replies


class Health:
    """Health of one node. A node that fails is skipped for a while, longer each time, and does not
    vote meanwhile, so that it costs callers nothing."""

    def __init__(self) -> None:
        self.error: BackendError | None = None
        self.reconnecting = False
        self._pause = 0.0
        self._until = 0.0
        # Releases, withdrawals and marks that the node did not answer, for the next connection.
        self.undelivered: deque[Call | None] = deque(maxlen=MOST_UNDELIVERED)

    def is_skipped(self, now: float) -> bool:
        return self.error is not None and (now < self._until or self.reconnecting)

    def failed(self, now: float, why: BackendError) -> None:
        if now >= self._until:  # connections that fail together count once
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._until = now + self._pause
        self.error = why

    def recovered(self) -> None:
        self.error = None
        self._pause = 0.0


class Nodes(ABC):
    """The nodes of a quorum, as one API of a client reaches them: all are asked at once."""

    suspends = False

    def __init__(
        self,
        wheres: Sequence[str],
        wake_address: str,
        first_ask: Callable[[int], Ask | None] = lambda node: None,
    ) -> None:
        self.size = len(wheres)
        self.wheres = wheres
        self.wakeups = Wakeups()
        self.merged = MergedWakeups(self.wakeups, self.size)
        self.health = [Health() for _ in wheres]
        self._majority = majority_of(self.size)
        self._wake_address = wake_address
        self._first_ask = first_ask
        self.forget()

    def forget(self) -> None:
        """Forget all connections."""
        self.wake_addresses = ["."] * self.size  # '.' while nobody listens to the node
        self._listening = False
        self._subscribed_since = [NEVER] * self.size
        self.merged.clear()

    def after_fork_in_child(self) -> None:
        self.forget()
        self.health = [Health() for _ in self.wheres]
        self.wakeups.clear()

    def now(self) -> float:
        return clock.now()

    @abstractmethod
    def ask(self, ask: Ask) -> Reply[list[NodeReply]]:
        """Return for each node its reply, its error, or None if it has not answered in time."""

    @abstractmethod
    def post(self, ask: Ask) -> None:
        """Ask without waiting for the replies."""

    def send(self, calls: Calls) -> None:
        """Send the calls with ``resend``, without waiting for the replies."""
        self.post(Ask(calls, Count(self.size), resend=True))

    @abstractmethod
    def subscribe(self, since: float) -> Reply[bool]:
        """Receive wake-ups. Return True if one may have been missed after ``since``."""

    @abstractmethod
    def listen(self, timeout: float | None) -> Reply[None]: ...

    @abstractmethod
    def interrupt(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # ---- for the two ways of sending ---------------------------------------------------------

    def connecting(
        self, budget: float, called: Sequence[int], is_connected: Callable[[int], bool]
    ) -> Iterator[float]:
        """Yield how long to wait for the next node to connect: until a majority has, or all nodes
        that are ``called`` if they are fewer, and as long again for the others."""
        began, patient = self.now(), True
        until = began + FOR_CONNECTING * budget
        needed = min(self._majority, len(called))
        while True:
            now = self.now()
            if patient and sum(map(is_connected, called)) >= needed:
                patient = False
                missing = (node for node in range(self.size) if not is_connected(node))
                if all(self.health[node].error for node in missing):
                    until = now
                until = min(until, now + max(now - began, 5 * GRACE))
            yield max(until - now, 0.0)

    def first_asks(self, node: int) -> Iterator[Ask]:
        """Yield what to send on a new connection, such as the calls that were not delivered."""
        if (ask := self._first_ask(node)) is not None:
            yield ask
        undelivered = self.health[node].undelivered
        for _ in range(len(undelivered)):
            with contextlib.suppress(IndexError):  # another thread sends it
                call = undelivered.popleft()
                calls = [call if n == node else None for n in range(self.size)]
                yield Ask(calls, Count(self.size), resend=True)

    def failed(self, node: int, ask: Ask, error: BackendError | None) -> None:
        """Note that a node will not answer a question."""
        call, undelivered = ask.calls[node], self.health[node].undelivered
        if ask.resend and call not in undelivered:  # a repeated call, such as a mark, is sent once
            undelivered.append(call)
        error = error or self.health[node].error
        ask.received(node, error or NotConnected(f"{self.wheres[node]} is not connected"))

    def malformed(self, node: int) -> BackendError:
        return Unreachable(f"{self.wheres[node]} sent a malformed reply")

    def listener_opened(self, node: int) -> None:
        if self.wake_addresses[node] == ".":
            self.wake_addresses[node] = self._wake_address
            self._subscribed_since[node] = self.now()

    def listener_lost(self, node: int) -> None:
        self.wake_addresses[node] = "."
        self._subscribed_since[node] = NEVER

    def refuse_listeners(self, errors: Iterable[BackendError | None]) -> None:
        """Raise if a majority refuses to wake us, since the user lacks the right to subscribe, for
        example; do not try again and again."""
        final = [error for error in errors if error is not None and not error.transient]
        if len(final) > self.size - self._majority:
            self._listening = False
            raise final[0]

    def wakeup_received(self) -> None:
        """Pass on merged wake-ups when their grace ends. Here `listen` does it."""
        return


# ---- wake-ups -------------------------------------------------------------------------------


class MergedWakeups:
    """Merge the wake-ups of all nodes. A release sends one from every node; the waiter is woken
    once, by a majority of them, or by fewer after `GRACE`."""

    def __init__(self, wakeups: Wakeups, size: int) -> None:
        self._wakeups = wakeups
        self._majority = majority_of(size)
        self._nodes: dict[str, set[int]] = {}
        self._since: dict[str, float] = {}

    def deliver(self, node: int, claim_id: str, now: float) -> None:
        nodes = self._nodes.get(claim_id)
        if nodes is None or node in nodes:  # the second from one node: another release
            nodes = self._nodes[claim_id] = set()
            self._since[claim_id] = now
        nodes.add(node)
        if len(nodes) == self._majority:
            self._wakeups.deliver(claim_id, None)

    def due(self) -> float | None:
        """Return when the grace of the oldest wake-up ends; None if there is none."""
        return min(self._since.values()) + GRACE if self._since else None

    def flush(self, now: float) -> None:
        """Pass on wake-ups of fewer nodes than a majority whose grace has ended."""
        for claim_id, since in list(self._since.items()):
            if now >= since + GRACE:
                del self._since[claim_id]
                if len(self._nodes.pop(claim_id, ())) < self._majority:
                    self._wakeups.deliver(claim_id, None)

    def clear(self) -> None:
        self._nodes.clear()
        self._since.clear()


class NodeWakeups(Wakeups):
    """Wake-ups of one node, passed to the merged ones."""

    def __init__(self, nodes: Nodes, node: int) -> None:
        super().__init__()
        self._of = nodes
        self._node = node

    def deliver(self, claim_id: str, grant: Granted | None) -> None:
        self._of.merged.deliver(self._node, claim_id, self._of.now())
        self._of.wakeup_received()

    def wake_all(self) -> None:
        self._of.wakeups.wake_all()
