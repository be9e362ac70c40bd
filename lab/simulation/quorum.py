"""Redlock in the simulator: the production core, keeper, backend and Lua on N simulated Redis
servers, each behind its own network, which restart, lose their data, and hang.

`SimVoters` replaces the production transports and has their duties: it sends unanswered calls
again, and merges the wake-ups of several nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from lab.simulation.network import Weather
from lab.simulation.redis import RedisServer
from lab.simulation.world import Node, SimSignal, World
from lockfast.errors import BackendError
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.wakeup_messages import channel_of
from lockfast.stores.redlock.backend import QuorumBackend
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.nodes import GRACE, HANG_TIMEOUT, MergedWakeups, NodeWakeups
from lockfast.stores.redlock.votes import Enough, Reply
from lockfast.stores.redlock.voting import Ballots, Calls
from lockfast.stores.wakeups import Wakeups

NOT_ASKED = BackendError("not asked")
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

    def run(self, call: Call | bytes) -> Any:
        if not isinstance(call, Call):
            return self.execute(call)
        answer = self.execute(call.packed(True))
        if isinstance(answer, ServerError) and str(answer).startswith("NOSCRIPT"):
            answer = self.execute(call.packed(False))
        return answer


class QuorumListener:
    """A client's listener at one node."""

    def __init__(self, voters: SimVoters, number: int) -> None:
        self.node = voters.node
        self.wakeups = NodeWakeups(voters.merged, number, voters.node.now, voters.wakeup_received)
        self._voters = voters
        self._number = number

    def listener_lost(self) -> None:
        self._voters.listener_lost(self._number)


class SimVoters:
    """One client's simulated connections to all nodes."""

    suspends = True

    def __init__(self, node: Node, servers: Sequence[QuorumNode]) -> None:
        self.node = node
        self.size = len(servers)
        self.wheres = [f"node {number}" for number in range(self.size)]
        self.wake_addresses = ["."] * self.size
        self.wakeups = Wakeups()
        self.merged = MergedWakeups(self.wakeups, self.size)
        self.now = node.now
        self._wake_address = f"{node.name}{node.world.dice.random()}"
        self._servers = servers
        self._signal = SimSignal(node)
        self._listening = False
        self.interrupt = self._signal.set

    def ask(
        self, calls: Calls, enough: Enough, budget: float, resend: bool = False
    ) -> Awaitable[list[Reply]]:
        return self._ask(calls, enough, budget, resend)

    async def _ask(self, calls: Calls, enough: Enough, budget: float, resend: bool) -> list[Reply]:
        signal, until = SimSignal(self.node), self.node.now() + budget
        replies: list[Reply] = [NOT_ASKED] * self.size

        def replied(number: int, answer: Any) -> None:
            if replies[number] is None:
                replies[number] = answer
                signal.set()

        for number, call in enumerate(calls):
            if call is not None:
                replies[number] = None
                self._send(number, call, replied, resend, MOST_AGAIN)
        while not enough(replies) and None in replies and self.node.now() < until:
            await signal.wait(until - self.node.now())
        return list(replies)

    def send(self, calls: Calls) -> None:
        for number, call in enumerate(calls):
            if call is not None:
                self._send(number, call, lambda *_: None, True, MOST_AGAIN)

    def _send(
        self,
        number: int,
        call: Call | bytes,
        replied: Callable[[int, Any], None],
        resend: bool,
        times: int,
    ) -> None:
        server, node = self._servers[number], self.node
        answered: list[bool] = []

        def back(answer: Any) -> None:
            answered.append(True)
            if not node.dead:
                replied(number, answer)

        def arrived() -> None:
            if server.up:
                server.travel(node, back, server.run(call))

        def again() -> None:
            if not answered and not node.dead:
                self._send(number, call, replied, resend, times - 1)

        if not node.dead:
            server.travel(node, arrived)
            if resend and times:
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
                        self.wake_addresses[number] = self._wake_address
                        self.wakeups.wake_all()

                server.travel(self.node, subscribe)

    def listener_lost(self, number: int) -> None:
        self.wake_addresses[number] = "."
        self.wakeups.wake_all()
        self._signal.set()

    def wakeup_received(self) -> None:
        self.node.world.after(2 * GRACE, self._flush)

    def _flush(self) -> None:
        if not self.node.dead:
            self.merged.flush(self.node.now())

    async def listen(self, timeout: float | None) -> None:
        if self._listening and "." in self.wake_addresses and self.wakeups:
            self._subscribe()
            timeout = min(1.0 if timeout is None else timeout, 1.0)
        await self._signal.wait(timeout)

    def distrust(self, node: int) -> None:
        raise AssertionError("the simulated Redis sent a malformed reply")

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


def quorum_backend(node: Node, servers: Sequence[QuorumNode], longest: float) -> QuorumBackend:
    return QuorumBackend(SimVoters(node, servers), Ballots(f"nonce {node.name}"), longest)
