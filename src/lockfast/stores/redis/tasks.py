"""The channel of tasks: one connection for all tasks of a loop (`task_connection`), opened when it
is first needed, and again after it broke."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.connections import LEAST, Decode
from lockfast.stores.redis.errors import Unreachable
from lockfast.stores.redis.redis_py import ServerAddress
from lockfast.stores.redis.scripts import Script
from lockfast.stores.redis.task_connection import (
    NEVER,
    SUBSCRIBE_BUDGET,
    TaskConnection,
    quietly,
    seen,
)
from lockfast.stores.wakeups import Wakeups

TO_CONNECT = 1.0


class TaskChannel:
    """The way of all tasks of one client to one server."""

    suspends = True

    def __init__(
        self, address: ServerAddress, wake_address: str, connected: Callable[[TaskConnection], None]
    ) -> None:
        self.wakeups = Wakeups()
        self._address = address
        self._own_wake_address = wake_address
        self.wake_address = "."
        self._listening_since = NEVER
        self._connected = connected
        self._connection: TaskConnection | None = None
        self._connecting: asyncio.Task[TaskConnection] | None = None
        self._listening = False

    # ---- requests ----------------------------------------------------------------------------

    def send(self, command: bytes, budget: float) -> Awaitable[Any]:
        connection = self._connection
        if connection is not None and connection.serves(self._address.generation):
            return connection.ask(command, budget)
        return self._send_when_ready(command, budget)

    def join(
        self, script: Script, claim: Claim, arguments: bytes, budget: float, decode: Decode
    ) -> Awaitable[Any]:
        connection = self._connection
        if connection is not None and connection.serves(self._address.generation):
            return connection.join(script, claim, arguments, budget, decode)
        return self._join_when_ready(script, claim, arguments, budget, decode)

    async def _send_when_ready(self, command: bytes, budget: float) -> Any:
        connection, rest = await self._ready(budget)
        return await connection.ask(command, rest)

    async def _join_when_ready(
        self, script: Script, claim: Claim, arguments: bytes, budget: float, decode: Decode
    ) -> Any:
        connection, rest = await self._ready(budget)
        if connection.lost is not None:
            raise connection.lost
        return await connection.join(script, claim, arguments, rest, decode)

    async def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        connection, rest = await self._ready(budget)
        replies: list[Awaitable[Any]] = [connection.ask(command, rest) for command in commands]
        if wait is not None:
            # Shielded, since other callers wait for the same WAIT.
            replies.append(asyncio.shield(connection.acknowledged(*wait, rest)))
        return await asyncio.gather(*replies)  # which retrieves all exceptions

    async def _ready(self, budget: float) -> tuple[TaskConnection, float]:
        """The connection, opened by one task for all callers, and what is left of the budget. That
        task goes on when their budgets are over: with a short lease, or over a slow network, a
        budget may be too short to connect, and each retry would start from scratch."""
        loop = get_running_loop()
        connection = self._connection
        if connection is not None and connection.lost is None and connection.loop is loop:
            if connection.generation == self._address.generation:
                return connection, budget
            self._check_generation(connection)
        began = loop.time()
        limit = max(budget, self._address.least)
        connecting = self._connecting
        if connecting is None or connecting.done() or connecting.get_loop() is not loop:
            connecting = loop.create_task(self._connect(max(limit, TO_CONNECT)))
            self._connecting = connecting
            connecting.add_done_callback(seen)
        try:
            async with asyncio.timeout(limit):
                connection = await asyncio.shield(connecting)
        except TimeoutError as error:
            raise self._address.failed(error) from None
        return connection, max(began + budget - loop.time(), LEAST)

    async def _connect(self, budget: float) -> TaskConnection:
        theirs, generation = await self._address.connect_task(budget)
        old, self._connection = self._connection, None
        if old is not None and old.lost is None:
            old.close("the event loop of this connection has ended")
        connection = TaskConnection(
            theirs, self._address.where, self.wakeups, self._stopped_listening
        )
        connection.generation = generation
        self._connection = connection
        await connection.live()
        if self._listening:
            await connection.subscribe(self._own_wake_address)
            self._now_listening()
            # Claims sent in the meantime had no wake address: their waiters claim again.
            self.wakeups.wake_all()
        self._connected(connection)
        return connection

    async def subscribe(self, since: float) -> bool:
        """Make this client listen. True: a claim sent at ``since`` had no wake address yet."""
        self._listening = True
        try:
            connection, _ = await self._ready(SUBSCRIBE_BUDGET)
            await connection.subscribe(self._own_wake_address)
            self._now_listening()
            return self._listening_since > since
        except BackendError as error:
            if not error.transient:  # subscribing is not allowed, say: do not try it again
                self._listening = False
                raise
            return True

    def _now_listening(self) -> None:
        if self.wake_address == ".":
            self.wake_address, self._listening_since = self._own_wake_address, clock.now()

    def _stopped_listening(self) -> None:
        self.wake_address = "."

    def signal(self, listens: bool) -> None:
        """Nothing: tasks wait with the runtime's signals."""

    async def listen(self, timeout: float | None) -> None:
        raise AssertionError("an asyncio client's keeper is a thread, which has its own channel")

    def interrupt(self) -> None:
        """Nothing to do: nobody listens through this channel."""

    def moved(self) -> None:
        """Make waiters claim again: the server has changed. Called on any thread."""
        connection = self._connection
        if connection is not None and connection.lost is None:
            quietly(connection.loop.call_soon_threadsafe, self._check_generation, connection)

    def _check_generation(self, connection: TaskConnection) -> None:
        if connection.generation != self._address.generation:
            connection.abort(Unreachable(f"{self._address.where} is another server now"))

    def distrust(self, why: str) -> None:
        if self._connection is not None:
            self._connection.abort(Unreachable(f"{self._address.where} {why}"))

    def close(self) -> None:
        """Close the connection. The loop may have ended before."""
        self._listening = False
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        self.wake_address = "."
        if connecting is not None and not connecting.done():
            quietly(connecting.cancel)
        if connection is not None:
            connection.close("this client was closed")

    def after_fork_in_child(self) -> None:
        """Discard the parent's connection without closing it: the loop's selector is shared with
        the parent, and unregistering the socket would stop the parent from receiving."""
        self._connection = None
        self.wake_address = "."
        self._connecting = None
        self._listening = False
        self.wakeups.clear()
