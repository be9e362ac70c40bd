"""State of the nodes that both APIs keep: health, undelivered calls, and merged wake-ups."""

from __future__ import annotations

from collections import deque

from lockfast.errors import BackendError
from lockfast.model import Granted
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.votes import majority_of
from lockfast.stores.wakeups import Wakeups

# Seconds without a reply after which a node counts as hung and is disconnected.
HANG_TIMEOUT = 0.5
# Seconds that a majority of nodes without known errors gets to connect, however short the budget:
# the next call finds them connected. Validity counts from before, so this costs no safety.
LEAST_CONNECT = 0.25
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
MOST_UNDELIVERED = 256
# Seconds after which a wake-up from fewer nodes than a majority is passed on: the queues of the
# nodes may differ, or the other wake-ups may be a little later.
GRACE = 0.003


class Health:
    """Health of one node. A node that fails is skipped for a while, longer each time, and does not
    vote meanwhile, so that it costs callers nothing."""

    def __init__(self) -> None:
        self.error: BackendError | None = None
        self.reconnecting = False
        self._pause = 0.0
        self._until = 0.0
        # Releases and withdrawals that the node did not answer; sent when it is connected again.
        self.undelivered: deque[Call] = deque(maxlen=MOST_UNDELIVERED)

    def is_skipped(self, now: float) -> bool:
        return self.error is not None and (now < self._until or self.reconnecting)

    @property
    def is_suspect(self) -> bool:
        return self.error is not None

    def failed(self, now: float, why: BackendError) -> None:
        if now >= self._until:  # connections that fail together count once
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._until = now + self._pause
        self.error = why

    def recovered(self) -> None:
        self.error = None
        self._pause = 0.0


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


class NodeWakeups:
    """Wake-ups of one node, passed to the merged ones; ``received`` is called after each."""

    def __init__(self, merged: MergedWakeups, node: int, now: object, received: object) -> None:
        self._merged = merged
        self._node = node
        self._now = now
        self._received = received

    def deliver(self, claim_id: str, grant: Granted | None) -> None:
        self._merged.deliver(self._node, claim_id, self._now())  # type: ignore[operator]
        self._received()  # type: ignore[operator]

    def wake_all(self) -> None:
        self._merged._wakeups.wake_all()
