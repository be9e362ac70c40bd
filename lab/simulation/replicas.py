"""Redis with replicas in the simulator: they lag, and one of them takes over.

After each step the master's keyspace travels to its replicas, in order, with a lag per replica.
Replicas acknowledge what has arrived, and WAIT counts the acknowledgements. A failover makes one of
them the master, with the data it has by then: later steps are forgotten.

Two stores. `Replicated` counts replicas: one must acknowledge, and the replica with the most steps
takes over, as Sentinel tries to elect: no valid hold may be lost. `Forgetful` counts none, and any
replica takes over: holds are lost, but fences grow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from lab.simulation.network import Weather
from lab.simulation.redis import RedisServer, SimChannel, SimRedisStore
from lab.simulation.world import Node, SimSignal, World
from lockfast.core.ports import Store
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.replicas import ReplicatedStore

REPLICAS = 2
LAGS = (0.005, 0.1, 0.4, 1.5)  # seconds, on average, that a step takes to a replica
Data = tuple[dict[bytes, Any], dict[bytes, int]]


class Replica:
    """A replica's state: the data as of one step of the master, and the number of that step."""

    def __init__(self, data: Data, step: int, lag: float) -> None:
        self.data, self.step, self.lag = data, step, lag
        self.acknowledged = step
        self.latest = 0.0  # when the last step under way arrives


class Forgetful(RedisServer):
    """A master whose clients do not wait for replicas, and of which any replica takes over."""

    fails_over = True
    forgets = True
    kinds = frozenset(("lock", "semaphore", "readwrite", "multi", "election"))

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        super().__init__(world, rate, weather)
        self._step = 0
        self._reign = 0  # steps under way from an earlier master are discarded
        self._replicas: list[Replica] = []
        self._waits: list[Callable[[], None]] = []
        self._follow()

    def _follow(self) -> None:
        """Give all replicas the master's data; from now on they lag."""
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

    def wait(self, replicas: int, wait_ms: int, reply: Callable[[int], None]) -> None:
        """Reply how many replicas have the last step: once ``replicas`` have, or at a time-out."""
        step, reign = self._step, self._reign
        replied: list[int] = []

        def look() -> None:
            if self.acknowledged(step) >= replicas:
                over()

        def over() -> None:
            if not replied:
                replied.append(1)
                self._waits.remove(look)
                if reign == self._reign and self.up:
                    reply(self.acknowledged(step))

        self._waits.append(look)
        look()
        self.world.after(wait_ms / 1000, over)

    # ---- failover ------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """Replace the master by a replica, with the data which that has."""
        replica = self.chosen()
        self._reign += 1
        self._redis.values, self._redis.expiries = replica.data
        self._follow()

    def chosen(self) -> Replica:
        return self.world.dice.choice(self._replicas)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else copy.deepcopy(value)


class Replicated(Forgetful):
    """A master of which one replica must acknowledge; the one with the most steps takes over."""

    forgets = False

    def chosen(self) -> Replica:
        return max(self._replicas, key=lambda replica: replica.step)

    def store(self, node: Node, asked: Callable[[Claim], None]) -> Store:
        return SimReplicatedStore(WaitingChannel(node, self), self, node, asked)


class WaitingChannel(SimChannel):
    """A channel whose commands wait for replicas."""

    def __init__(self, node: Node, server: Forgetful) -> None:
        super().__init__(node, server)
        self._master = server

    async def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        if wait is None:
            return await super().send_all(commands, budget)
        replicas, wait_ms = wait
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


class SimReplicatedStore(SimRedisStore, ReplicatedStore):
    """The production store that counts replicas, which reports its claims to the scenario."""

    def __init__(
        self,
        channel: WaitingChannel,
        server: RedisServer,
        node: Node,
        asked: Callable[[Claim], None],
    ) -> None:
        ReplicatedStore.__init__(self, channel, "the simulated master", 1)
        self._server = server
        self._node = node
        self._asked = asked
