"""Redlock in the simulator: the production core, keeper, store and Lua on N simulated Redis
servers, each behind its own network, which restart, lose their data, and hang.

`SimNodes` replaces the two production ways of sending: it sends unanswered calls again, and merges
the wake-ups of several nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lab.simulation.network import Weather
from lab.simulation.redis import RedisServer
from lab.simulation.world import Node, SimSignal, World
from lockfast.stores.redis.commands import Call, channel_of, key_of
from lockfast.stores.redlock.nodes import (
    GRACE,
    HANG_TIMEOUT,
    Ask,
    Nodes,
    NodeWakeups,
)
from lockfast.stores.redlock.store import QuorumStore
from lockfast.stores.redlock.votes import NodeReply, lacks_script
from lockfast.stores.redlock.voting import Ballots

MOST_AGAIN = 12


class Row(NamedTuple):
    """A hold, or a waiter (fence 0), at one node."""

    id: str
    fence: int


class QuorumNode(RedisServer):
    """One server of the quorum."""

    def rows(self, name: str) -> list[Row]:
        """Return the live holds and waiters of a name."""
        key, now, seen = key_of(name), int(self.wall() * 1e6), []
        for kind in (key, f"{key}:w"):
            fields: Any = self._redis.call("HGETALL", kind)
            for claim_id, text in zip(fields[::2], fields[1::2], strict=True):
                if not claim_id.startswith(b"."):
                    first, ends = text.split()[:2]
                    if int(ends) > now:
                        fence = int(first) if kind == key else 0
                        seen.append(Row(claim_id.decode(), fence))
        return seen

    def run(self, call: Call) -> Any:
        answer = self.execute(call.packed())
        if lacks_script(answer):
            answer = self.execute(call.with_source())
        return answer


class QuorumListener:
    """A client's listener at one node."""

    def __init__(self, nodes: SimNodes, number: int) -> None:
        self.node = nodes.node
        self.wakeups = NodeWakeups(nodes, number)
        self._nodes = nodes
        self._number = number

    def listener_lost(self) -> None:
        self._nodes.listener_lost(self._number)


class SimNodes(Nodes):
    """One client's simulated connections to all nodes."""

    suspends = True

    def __init__(self, node: Node, servers: Sequence[QuorumNode]) -> None:
        wheres = [f"node {number}" for number in range(len(servers))]
        super().__init__(wheres, f"{node.name}{node.world.dice.random()}")
        self.node = node
        self._servers = servers
        self._signal = SimSignal(node)

    def now(self) -> float:
        return self.node.now()

    async def ask(self, ask: Ask) -> list[NodeReply]:
        signal, until = SimSignal(self.node), self.now() + ask.budget
        ask.waiter = signal
        self.post(ask)
        while not ask.is_answered() and self.now() < until:
            await signal.wait(until - self.now())
        ask.waiter = None
        assert not ask.count.malformed, "the simulated Redis sent a malformed reply"
        return list(ask.replies)

    def post(self, ask: Ask) -> None:
        for number in ask.called:
            self._send(number, ask, MOST_AGAIN)

    def _send(self, number: int, ask: Ask, times: int) -> None:
        server, node, call = self._servers[number], self.node, ask.calls[number]
        answered: list[bool] = []

        def back(answer: Any) -> None:
            answered.append(True)
            if not node.dead and ask.replies[number] is None:
                ask.received(number, answer)
                if ask.waiter is not None:
                    ask.waiter.set()

        def arrived() -> None:
            if server.up and call is not None:
                server.travel(node, back, server.run(call))

        def again() -> None:
            if not answered and not node.dead:
                self._send(number, ask, times - 1)

        if not node.dead:
            server.travel(node, arrived)
            if ask.resend and times:
                node.world.after(HANG_TIMEOUT, again)

    # ---- wake-ups ----------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        missed = "." in self.wake_addresses
        if missed:
            self._subscribe()
        return missed

    def _subscribe(self) -> None:
        for number, server in enumerate(self._servers):
            if self.wake_addresses[number] == ".":

                def subscribe(number: int = number, server: QuorumNode = server) -> None:
                    if server.up and not self.node.dead:
                        listener: Any = QuorumListener(self, number)
                        server.subscribe(channel_of(self._wake_address), listener)
                        self.listener_opened(number)
                        self.wakeups.wake_all()

                server.travel(self.node, subscribe)

    def listener_lost(self, node: int) -> None:
        super().listener_lost(node)
        self.wakeups.wake_all()
        self.interrupt()

    def wakeup_received(self) -> None:
        self.node.world.after(2 * GRACE, self._flush)

    def _flush(self) -> None:
        if not self.node.dead:
            self.merged.flush(self.now())

    async def listen(self, timeout: float | None) -> None:
        if self._listening and "." in self.wake_addresses and self.wakeups:
            self._subscribe()
            timeout = min(1.0 if timeout is None else timeout, 1.0)
        await self._signal.wait(timeout)

    def interrupt(self) -> None:
        self._signal.set()

    def close(self) -> None:
        """Do nothing: there are no sockets."""


def quorum_of(world: World, size: int, drift: float, weather: Weather) -> list[QuorumNode]:
    """Make servers whose clocks differ by up to six seconds."""
    servers = []
    for _ in range(size):
        server = QuorumNode(world, 1 + world.dice.uniform(-drift, drift), weather)
        server.wall_offset += world.dice.uniform(-3.0, 3.0)
        servers.append(server)
    return servers


def quorum_store(node: Node, servers: Sequence[QuorumNode], longest: float) -> QuorumStore:
    return QuorumStore(SimNodes(node, servers), Ballots(f"nonce {node.name}"), longest)
