"""Redis with replicas in the simulator: they lag, and one of them takes over.

The master's keyspace after each step is what travels to its replicas, in order, each with a lag of
its own; what they have they acknowledge, and WAIT counts that. A failover makes one of them the
master, with what it has by then: steps that it had not heard of are forgotten.

Two stores. `Replicated` counts replicas: one must acknowledge, and the one that has most takes
over, as Sentinel means to elect: nothing that a client believes in may be lost. `Forgetful` counts
none, and anyone takes over: beliefs are lost, but fences grow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from lab.simulation.network import Weather
from lab.simulation.redis import RedisServer, SimRedisBackend, SimTransport
from lab.simulation.world import Node, SimSignal, World
from lockfast.core.ports import Backend
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.replicas import ReplicatedBackend

REPLICAS = 2
LAGS = (0.005, 0.1, 0.4, 1.5)  # seconds, on average, that a step takes to a replica
Data = tuple[dict[bytes, Any], dict[bytes, int]]


class Replica:
    """What it has: the data as of a step of the master, and which step that is."""

    def __init__(self, data: Data, step: int, lag: float) -> None:
        self.data, self.step, self.lag = data, step, lag
        self.acknowledged = step
        self.latest = 0.0  # when the last step that is under way arrives


class Forgetful(RedisServer):
    """Nobody waits for replicas, and whichever comes first takes over."""

    fails_over = True
    forgets = True
    kinds = frozenset(("lock", "semaphore", "readwrite", "multi", "election"))

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        super().__init__(world, rate, weather)
        self._step = 0
        self._reign = 0  # what is under way from an earlier master arrives nowhere
        self._replicas: list[Replica] = []
        self._waits: list[Callable[[], None]] = []
        self._follow()

    def _follow(self) -> None:
        """All replicas have what the master has, from now on with a lag."""
        dice = self.world.dice
        self._replicas = [
            Replica(self._data(), self._step, dice.choice(LAGS)) for _ in range(REPLICAS)
        ]

    def _data(self) -> Data:
        values = {key: _copied(value) for key, value in self._redis.values.items()}
        return values, dict(self._redis.expiries)

    def amnesia(self) -> None:
        super().amnesia()
        self._step += 1
        self._reign += 1
        self._follow()

    def execute(self, command: bytes) -> Any:
        answer = super().execute(command)
        self._step += 1
        data = self._data()
        for replica in self._replicas:
            delay = self.world.dice.expovariate(1.0 / replica.lag)
            replica.latest = max(replica.latest, self.world.time + delay)
            self.world.at(replica.latest, self._arrived, replica, data, self._step, self._reign)
        return answer

    def _arrived(self, replica: Replica, data: Data, step: int, reign: int) -> None:
        if reign == self._reign:
            replica.data, replica.step = data, step
            delay = self.world.dice.expovariate(1.0 / replica.lag)
            self.world.after(delay, self._acknowledged, replica, step, reign)

    def _acknowledged(self, replica: Replica, step: int, reign: int) -> None:
        if reign == self._reign:
            replica.acknowledged = max(replica.acknowledged, step)
            for look in list(self._waits):
                look()

    # ---- WAIT ----------------------------------------------------------------------------------

    def acknowledged(self, step: int) -> int:
        return sum(replica.acknowledged >= step for replica in self._replicas)

    def wait(self, replicas: int, wait_ms: int, tell: Callable[[int], None]) -> None:
        """Tell how many have what was written so far, when so many have, or when time is over."""
        step, reign = self._step, self._reign
        told: list[int] = []

        def look() -> None:
            if self.acknowledged(step) >= replicas:
                over()

        def over() -> None:
            if not told:
                told.append(1)
                self._waits.remove(look)
                if reign == self._reign and self.up:
                    tell(self.acknowledged(step))

        self._waits.append(look)
        look()
        self.world.after(wait_ms / 1000, over)

    # ---- failover ------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """The master is no more; the one that takes over has what it has."""
        replica = self.chosen()
        self._reign += 1
        self._redis.values, self._redis.expiries = replica.data
        self._follow()

    def chosen(self) -> Replica:
        return self.world.dice.choice(self._replicas)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else copy.deepcopy(value)


class Replicated(Forgetful):
    """One replica must acknowledge; who has most takes over."""

    forgets = False

    def chosen(self) -> Replica:
        return max(self._replicas, key=lambda replica: replica.step)

    def backend(self, node: Node, asked: Callable[[Claim], None]) -> Backend:
        return SimReplicatedBackend(WaitingTransport(node, self), self, node, asked)


class WaitingTransport(SimTransport):
    """What waits for replicas."""

    def __init__(self, node: Node, server: Forgetful) -> None:
        super().__init__(node, server)
        self._master = server

    async def settled(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        server, node = self._master, self.node
        signal = SimSignal(node)
        answers: list[Any] = []

        def replied(answer: list[Any]) -> None:
            if not answers:
                answers.extend(answer)
                signal.set()

        def arrived() -> None:
            if server.up:
                done = [server.execute(command) for command in commands]
                server.wait(
                    replicas, wait_ms, lambda count: server.travel(node, replied, [*done, count])
                )

        server.travel(node, arrived)
        await signal.wait(budget)
        if not answers:
            raise BackendError("the simulated master did not answer in time")
        return answers


class SimReplicatedBackend(SimRedisBackend, ReplicatedBackend):
    """The production backend that counts replicas, which tells the scenario what it asks for."""

    def __init__(
        self,
        transport: WaitingTransport,
        server: RedisServer,
        node: Node,
        asked: Callable[[Claim], None],
    ) -> None:
        ReplicatedBackend.__init__(self, transport, "the simulated master", 1)
        self._server = server
        self._node = node
        self._asked = asked
