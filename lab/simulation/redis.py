"""Redis in the simulator: the production Lua and store on a small Redis, behind the network.

The scripts run in Lua 5.1 on `lab.miniredis`, which is checked against the real server.
`SimChannel` has the duties of production's channels: it provides the wake address, loses its
subscription when the server restarts, and subscribes again from `listen`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis

from lab.miniredis import MiniError, MiniRedis
from lab.simulation.network import Seen, Server, Weather, ask, wakeup_arrived
from lab.simulation.world import Node, SimSignal, World
from lockfast.core.law import Row
from lockfast.core.ports import Answer, Reply, Store
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.commands import channel_of, deliver, key_of, keys_of, name_of
from lockfast.stores.redis.connections import Decode, Unfinished
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.scripts import Script
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.redis.task_connection import single_command
from lockfast.stores.steps import perform_soon
from lockfast.stores.wakeups import Wakeups

SUBSCRIBE_BUDGET = 1.0


class RedisServer(Server):
    """One Redis server. The wall clock is the only clock it has."""

    leases_by_wall = True

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        super().__init__(world, rate, weather)
        self.fair: dict[str, bool] = {}  # by claim id; a hold's row does not tell
        self._listeners: dict[str, SimChannel] = {}
        self._redis = self._new()

    def _new(self) -> MiniRedis:
        return MiniRedis(lambda: int(self.wall() * 1e6), self._published, self._listening)

    def amnesia(self) -> None:
        self._redis = self._new()

    def restarted(self) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.listener_lost()

    def store(self, node: Node, asked: Callable[[Claim], None]) -> Store:
        return SimRedisStore(SimChannel(node, self), self, node, asked)

    def subscribe(self, channel: str, listener: SimChannel) -> None:
        self._listeners[channel] = listener

    def _listening(self, channel: str) -> int:
        listener = self._listeners.get(channel)
        return 0 if listener is None or listener.node.dead else 1

    def _published(self, channel: str, message: bytes) -> int:
        if not self._listening(channel):
            return 0
        listener = self._listeners[channel]
        push = [b"message", channel.encode(), message]
        self.travel_slowly(
            listener.node, wakeup_arrived, listener.node, deliver, push, listener.wakeups
        )
        return 1

    def execute(self, command: bytes) -> Any:
        reader = hiredis.Reader()
        reader.feed(command)
        parts = reader.gets()
        try:
            answer: Any = self._redis.call(*parts)
        except MiniError as error:
            answer = ServerError(str(error))
        for name in {name_of(part) for part in parts if part.startswith(b"lf:{")}:
            self.observe(name)
        return answer

    def seen(self, name: str) -> Seen:
        key = key_of(name)
        ask: Callable[..., Any] = self._redis.call
        pairs = ask("HGETALL", key)
        holds = [
            self._row(claim_id, text, hold=True)
            for claim_id, text in zip(pairs[::2], pairs[1::2], strict=True)
            if claim_id != b".f"
        ]
        order = ask("ZRANGE", f"{key}:q", 0, -1)
        waiters = [
            self._row(claim_id, text, hold=False)
            for claim_id in order
            if (text := ask("HGET", f"{key}:w", claim_id)) is not None
        ]
        now = self.now()
        living = [waiter for waiter in waiters if waiter.ends > now]
        return Seen(
            [hold for hold in holds if hold.ends > now],
            [waiter for waiter in living if waiter.fair],
            [waiter for waiter in living if not waiter.fair],
        )

    def _row(self, claim_id: bytes, text: bytes, *, hold: bool) -> Row:
        first, ends, since, lease, take, slots, wake_address, who = text.decode().split(" ", 7)
        return Row(
            claim_id.decode(),
            who,
            int(take),
            int(slots),
            int(lease) / 1e6,
            self.fair[claim_id.decode()] if hold else first == "1",
            int(first) if hold else 0,
            int(since) / 1e6,
            int(ends) / 1e6 - self.wall_offset,
            wake_address,
        )


class SimChannel:
    """The channel of a node's commands, through the simulated network."""

    suspends = True

    def __init__(self, node: Node, server: RedisServer) -> None:
        self.wakeups = Wakeups()
        self.node = node
        self.wake_address = "."
        self._own_wake_address = f"{node.name}{server.world.dice.random()}"
        self._server = server
        self._signal = SimSignal(node)
        self._listening = False

    def send(self, command: bytes, budget: float) -> Awaitable[Any]:
        return ask(self._server, self.node, budget, lambda: self._server.execute(command))

    async def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        assert wait is None, "this server has no replicas"

        def execute() -> list[Any]:
            return [self._server.execute(command) for command in commands]

        answers: list[Any] = await ask(self._server, self.node, budget, execute)
        return answers

    async def join(
        self, script: Script, claim: Claim, arguments: bytes, budget: float, decode: Decode
    ) -> Any:
        keys = keys_of(claim.name)[2]
        reply = await self.send(single_command(script, keys, arguments), budget)
        try:
            return decode(reply, claim, budget)
        except Unfinished as unfinished:
            return await perform_soon(unfinished.steps, lambda request: request[0](*request[1:]))

    def signal(self, listens: bool) -> None:
        """Nothing: nodes wait with the world's signals."""

    def interrupt(self) -> None:
        self._signal.set()

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        if self.wake_address != ".":
            return False
        try:
            await self._subscribe()
        except BackendError:
            pass
        return True

    async def _subscribe(self) -> None:
        def subscribe() -> bool:
            self._server.subscribe(channel_of(self._own_wake_address), self)
            return True

        await ask(self._server, self.node, SUBSCRIBE_BUDGET, subscribe)
        self.wake_address = self._own_wake_address

    def listener_lost(self) -> None:
        """Handle a broken connection: noticed at once; the next `listen` subscribes again."""
        self.wake_address = "."
        self.wakeups.wake_all()
        self._signal.set()

    async def listen(self, timeout: float | None) -> None:
        if self._listening and self.wake_address == "." and self.wakeups:
            try:
                await self._subscribe()
                self.wakeups.wake_all()
            except BackendError:
                timeout = min(1.0 if timeout is None else timeout, 1.0)
        await self._signal.wait(timeout)

    def distrust(self, why: str) -> None:
        raise AssertionError("the simulated Redis sent a malformed reply")

    def close(self) -> None:
        """Do nothing: there are no sockets."""


class SimRedisStore(RedisStore):
    """The production store, which reports its claims to the scenario."""

    def __init__(
        self, channel: SimChannel, server: RedisServer, node: Node, asked: Callable[[Claim], None]
    ) -> None:
        super().__init__(channel, "the simulated Redis")
        self._server = server
        self._node = node
        self._asked = asked

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[list[Answer]]:
        for claim in claims:
            self._asked(claim)
            self._server.nodes[claim.id] = self._node
            self._server.fair[claim.id] = claim.fair
        return super().claim(claims, budget)
