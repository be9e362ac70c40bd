"""Redlock for the async API: one connection per node, shared by all tasks of an event loop.

Each call is written to all connections and its replies are futures; the task is woken as soon as
there are enough of them. The other futures run on until the node's time-out: then the connection is
closed, and the node is skipped for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.task_connection import TaskConnection
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.nodes import (
    GRACE,
    HANG_TIMEOUT,
    LEAST_CONNECT,
    Health,
    MergedWakeups,
    NodeWakeups,
)
from lockfast.stores.redlock.votes import Enough, NotConnected, Reply, majority_of
from lockfast.stores.redlock.voting import Calls
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

CONNECTING = 1.0
CLOSING = 0.05
NEVER = float("inf")
NOT_ASKED = BackendError("not asked")


class NodeTaskConnection(TaskConnection):
    """A connection to one node that remembers which scripts the node has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: set[str] = set()

    def call(self, call: Call | bytes, budget: float) -> asyncio.Future[Any]:
        if not isinstance(call, Call):
            return self.ask(call, budget)
        sha = call.script.sha
        future = self.ask(call.packed(sha in self.known), budget)
        self.known.add(sha)
        future.add_done_callback(self._check_noscript)
        return future

    def _check_noscript(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        answer = future.result()
        if type(answer) is ServerError and str(answer).startswith("NOSCRIPT"):
            self.known.clear()


class TaskVoters:
    """Connections of one event loop to all nodes."""

    suspends = True

    def __init__(
        self,
        addresses: Sequence[Address],
        wake_address: str,
        connected: Callable[[int, TaskConnection], None],
    ) -> None:
        self.size = len(addresses)
        self.majority = majority_of(self.size)
        self.wheres = [address.where for address in addresses]
        self.wake_addresses = ["."] * self.size
        self.wakeups = Wakeups()
        self.now = clock.now
        self._addresses = addresses
        self._wake_address = wake_address
        self._connected = connected
        self._merged = MergedWakeups(self.wakeups, self.size)
        self._timer: asyncio.TimerHandle | None = None
        self._health = [Health() for _ in addresses]
        self._connections: list[NodeTaskConnection | None] = [None] * self.size
        self._connecting: list[asyncio.Task[None] | None] = [None] * self.size
        self._listening = False
        self._subscribed_since = [NEVER] * self.size
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt

    # ---- calls -------------------------------------------------------------------------------

    async def ask(
        self, calls: Calls, enough: Enough, budget: float, resend: bool = False
    ) -> list[Reply]:
        loop = asyncio.get_running_loop()
        await self._ready(loop, budget, [n for n, call in enumerate(calls) if call is not None])
        until = loop.time() + budget
        woken = loop.create_future()
        replies: list[Reply] = [NOT_ASKED] * self.size

        def replied(node: int, future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, BackendError):
                replies[node] = error
            elif not future.cancelled():
                replies[node] = future.result()
            if not woken.done() and (enough(replies) or None not in replies):
                woken.set_result(None)

        for node, call in enumerate(calls):
            if call is not None:
                future = self._send(node, call, resend)
                if isinstance(future, BackendError):
                    replies[node] = future
                else:
                    replies[node] = None
                    future.add_done_callback(lambda f, node=node: replied(node, f))  # type: ignore[misc]
        if not enough(replies) and None in replies:
            timer = loop.call_at(until, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
        return list(replies)

    def send(self, calls: Calls) -> None:
        for node, call in enumerate(calls):
            if call is not None:
                self._send(node, call, True)

    def _send(
        self, node: int, call: Call | bytes, resend: bool
    ) -> asyncio.Future[Any] | BackendError:
        health, connection = self._health[node], self._connections[node]
        resent = call if resend and isinstance(call, Call) else None
        if connection is None or connection.lost is not None or not connection.loop.is_running():
            if resent is not None:
                health.undelivered.append(resent)
            lost = connection.lost if connection is not None else None
            return health.error or lost or NotConnected(f"{self.wheres[node]} is not connected")
        future = connection.call(call, HANG_TIMEOUT)

        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is not None and resent is not None:
                health.undelivered.append(resent)

        future.add_done_callback(done)
        return future

    # ---- connecting --------------------------------------------------------------------------

    async def _ready(
        self, loop: asyncio.AbstractEventLoop, budget: float, called: Sequence[int]
    ) -> None:
        """Connect to missing nodes: wait for a majority, or for all nodes that are ``called`` if
        they are fewer, and as long again for the others."""
        began, needed = loop.time(), min(self.majority, len(called))
        connecting: set[asyncio.Task[None]] = set()
        for node in range(self.size):
            task = self._connection_task(node, loop)
            if task is not None:
                connecting.add(task)
        while connecting:
            have = sum(self._is_connected(node, loop) for node in called)
            limit = began + max(budget * 0.8, LEAST_CONNECT) - loop.time()
            if have >= needed:
                expected = any(
                    not self._is_connected(node, loop) and not self._health[node].is_suspect
                    for node in range(self.size)
                )
                limit = min(limit, max(loop.time() - began, 5 * GRACE)) if expected else 0.0
            if limit <= 0:
                return
            done, connecting = await asyncio.wait(
                connecting, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return

    def _is_connected(self, node: int, loop: asyncio.AbstractEventLoop) -> bool:
        connection = self._connections[node]
        return connection is not None and connection.lost is None and connection.loop is loop

    def _connection_task(
        self, node: int, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None] | None:
        """Return the task that connects to a node; None if it is connected or skipped for now."""
        if self._is_connected(node, loop):
            return None
        task = self._connecting[node]
        if task is not None and not task.done() and task.get_loop() is loop:
            return task
        if self._health[node].is_skipped(clock.now()):
            return None
        task = self._connecting[node] = loop.create_task(self._connect(node))
        return task

    async def _connect(self, node: int) -> None:
        address, health = self._addresses[node], self._health[node]
        try:
            opened, _ = await address.connect_task(CONNECTING)
        except BackendError as error:
            health.failed(clock.now(), error)
            return
        old = self._connections[node]
        if old is not None and old.lost is None:
            old.close("its event loop has ended")
        node_wakeups = NodeWakeups(self._merged, node, clock.now, self._wakeup_received)
        connection: NodeTaskConnection
        connection = NodeTaskConnection(
            opened, address.where, node_wakeups, lambda: self._lost(node, connection)
        )
        await connection.live()
        try:
            if self._listening:
                await connection.subscribe(self._wake_address)
                self._subscribed(node)
                self.wakeups.wake_all()  # claims sent meanwhile carried no wake address
        except BackendError as error:
            connection.close(str(error))
            health.failed(clock.now(), error)
            return
        self._connections[node] = connection
        health.recovered()
        self._connected(node, connection)
        while health.undelivered:
            self._send(node, health.undelivered.popleft(), True)

    def _lost(self, node: int, connection: TaskConnection) -> None:
        if self._connections[node] is connection:
            self.wake_addresses[node] = "."
            self._subscribed_since[node] = NEVER
            if connection.lost is not None:
                self._health[node].failed(clock.now(), connection.lost)

    # ---- wake-ups ----------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        loop = asyncio.get_running_loop()
        missed = any(time > since for time in self._subscribed_since)
        await self._ready(loop, 2 * HANG_TIMEOUT, range(self.size))
        subscribing = []
        for node, connection in enumerate(self._connections):
            if connection is not None and self._is_connected(node, loop) and not connection.listens:
                subscribing.append(asyncio.ensure_future(self._subscribe(node, connection)))
        waiting = set(subscribing)
        while waiting and self.size - self.wake_addresses.count(".") < self.majority:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=5 * GRACE)
        final = [
            error
            for task in subscribing
            if task.done() and isinstance(error := task.result(), BackendError)
            if not error.transient
        ]
        if len(final) > self.size - self.majority:
            self._listening = False
            # The user lacks the right to subscribe, for example: do not try again and again.
            raise final[0]
        return missed

    async def _subscribe(self, node: int, connection: NodeTaskConnection) -> BackendError | None:
        try:
            await connection.subscribe(self._wake_address)
        except BackendError as error:
            return error
        if self._connections[node] is connection:
            self._subscribed(node)
        return None

    def _subscribed(self, node: int) -> None:
        if self.wake_addresses[node] == ".":
            self.wake_addresses[node] = self._wake_address
            self._subscribed_since[node] = clock.now()

    def _wakeup_received(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._merged.flush(clock.now())
        due = self._merged.due()
        if due is not None:
            wait = max(due - clock.now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    async def listen(self, timeout: float | None) -> None:
        raise AssertionError("the keeper of an async client is a thread with its own listeners")

    # ---- the end -----------------------------------------------------------------------------

    def distrust(self, node: int) -> None:
        connection = self._connections[node]
        if connection is not None:
            connection.abort(Unreachable(f"{self.wheres[node]} sent a malformed reply"))

    def close(self) -> None:
        """Close all connections. The event loop may have ended already."""
        connections, connecting = self._connections, self._connecting
        self._reset()
        for task in connecting:
            if task is not None and not task.done():
                try:
                    task.cancel()
                except RuntimeError:
                    pass  # the loop is closed
        for connection in connections:
            if connection is None:
                continue
            if connection.lost is None and connection._pending and connection.loop.is_running():
                # Calls that the node has not answered might be lost with the connection.
                connection.loop.call_later(CLOSING, connection.close, "this client was closed")
            else:
                connection.close("this client was closed")

    def _reset(self) -> None:
        self._listening = False
        self._connections = [None] * self.size
        self._connecting = [None] * self.size
        self.wake_addresses = ["."] * self.size
        self._subscribed_since = [NEVER] * self.size
        self._merged.clear()
        self._timer = None

    def after_fork_in_child(self) -> None:
        """Forget the parent's connections without closing the sockets: the loop's selector is
        shared with the parent, and removing them from it would stop the parent from receiving."""
        self._reset()
        self._health = [Health() for _ in self._addresses]
        self.wakeups.clear()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
