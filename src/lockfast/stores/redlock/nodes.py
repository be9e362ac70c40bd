"""What transports of both colours know of the nodes: who is well, what is owed, who was rung."""

from __future__ import annotations

from collections import deque

from lockfast.errors import BackendError
from lockfast.model import Granted
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.votes import majority_of
from lockfast.stores.wakeups import Wakeups

# A node that did not answer for so long hangs: its connection is closed. Nobody waited for it.
HANGS = 0.5
# However short a budget is, a majority that nothing is known against is given so long to connect: a
# call that follows finds it connected. Belief counts from before, so this can cost no safety.
LEAST_CONNECT = 0.25
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
MOST_OWED = 256
# A ring of fewer nodes than a majority is believed after so long: their lines differ, or the others
# are a little later.
GRACE = 0.003


class Health:
    """One node's. A node that is out of reach is left alone for a while, longer each time, and does
    not vote meanwhile: it must cost nothing."""

    def __init__(self) -> None:
        self.why: BackendError | None = None
        self.trying = False
        self._pause = 0.0
        self._until = 0.0
        # What it must still be told: give-backs that it did not answer.
        self.owed: deque[Call] = deque(maxlen=MOST_OWED)

    def is_out(self, now: float) -> bool:
        return self.why is not None and (now < self._until or self.trying)

    @property
    def is_doubtful(self) -> bool:
        return self.why is not None

    def failed(self, now: float, why: BackendError) -> None:
        if now >= self._until:  # of those who failed together only the first counts
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._until = now + self._pause
        self.why = why

    def well(self) -> None:
        self.why = None
        self._pause = 0.0


class Chorus:
    """A release rings at every node. Whoever hears a majority of these bells, or one and then no
    more for a moment, asks once."""

    def __init__(self, wakeups: Wakeups, size: int) -> None:
        self._wakeups = wakeups
        self._majority = majority_of(size)
        self._heard: dict[str, set[int]] = {}
        self._since: dict[str, float] = {}

    def wake(self, node: int, claim_id: str, now: float) -> None:
        nodes = self._heard.get(claim_id)
        if nodes is None or node in nodes:  # twice from one node: another release
            nodes = self._heard[claim_id] = set()
            self._since[claim_id] = now
        nodes.add(node)
        if len(nodes) == self._majority:
            self._wakeups.wake(claim_id, None)

    def due(self) -> float | None:
        """When the first of them should be believed, or forgotten."""
        return min(self._since.values()) + GRACE if self._since else None

    def settle(self, now: float) -> None:
        for claim_id, since in list(self._since.items()):
            if now >= since + GRACE:
                del self._since[claim_id]
                if len(self._heard.pop(claim_id, ())) < self._majority:
                    self._wakeups.wake(claim_id, None)

    def clear(self) -> None:
        self._heard.clear()
        self._since.clear()


class Ringer:
    """What one node's pushes ring."""

    def __init__(self, chorus: Chorus, node: int, now: object, woken: object) -> None:
        self._chorus = chorus
        self._node = node
        self._now = now
        self._woken = woken

    def wake(self, claim_id: str, grant: Granted | None) -> None:
        self._chorus.wake(self._node, claim_id, self._now())  # type: ignore[operator]
        self._woken()  # type: ignore[operator]

    def wake_all(self) -> None:
        self._chorus._wakeups.wake_all()
