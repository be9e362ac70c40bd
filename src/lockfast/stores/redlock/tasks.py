"""Redlock for the async API: one connection per node, shared by all tasks of an event loop.

Each call is written to all connections and its replies are futures; the task is woken as soon as
there are enough of them. The other futures run on until the node's time-out: then the connection is
closed, and the node is skipped for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.redis_py import Address
from lockfast.stores.redis.task_connection import TaskConnection
from lockfast.stores.redlock.nodes import (
    CONNECTING,
    GRACE,
    HANG_TIMEOUT,
    Ask,
    Nodes,
    NodeWakeups,
    encoded,
)
from lockfast.stores.redlock.votes import NodeReply, lacks_script

CLOSING = 0.05


class TaskNodes(Nodes):
    """Connections of one event loop to all nodes."""

    suspends = True

    def __init__(self, addresses: Sequence[Address], *settings: Any) -> None:
        self._addresses = addresses
        super().__init__([address.where for address in addresses], *settings)

    def forget(self) -> None:
        """Forget the connections without closing the sockets: after a fork the loop's selector is
        shared with the parent, and removing them from it would stop the parent from receiving."""
        super().forget()
        self._connections: list[TaskConnection | None] = [None] * self.size
        self._known: list[set[str]] = [set() for _ in self.wheres]  # SHAs of scripts
        self._connecting: list[asyncio.Task[None] | None] = [None] * self.size
        self._timer: asyncio.TimerHandle | None = None

    # ---- asking ------------------------------------------------------------------------------

    async def ask(self, ask: Ask) -> list[NodeReply]:
        loop = asyncio.get_running_loop()
        await self._ready(loop, ask.budget, ask.called)
        self.post(ask)
        if not ask.is_answered():
            waiter = ask.waiter = loop.create_future()
            timer = loop.call_later(ask.budget, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                ask.waiter = None
        for node in ask.count.malformed:
            if (connection := self._connections[node]) is not None:
                connection.abort(self.malformed(node))
        return ask.replies

    def post(self, ask: Ask) -> None:
        for node in ask.called:
            self._send(node, ask)

    def _send(self, node: int, ask: Ask) -> None:
        connection, call = self._connections[node], ask.calls[node]
        if connection is None or connection.lost is not None or not connection.loop.is_running():
            return self.failed(node, ask, connection.lost if connection is not None else None)
        assert call is not None
        future = connection.ask(encoded(call, self._known[node]), HANG_TIMEOUT)
        future.add_done_callback(partial(self._done, node, ask))

    def _done(self, node: int, ask: Ask, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        reply = future.exception() or future.result()
        if isinstance(reply, BackendError):
            self.health[node].failed(clock.now(), reply)
            self.failed(node, ask, reply)
        else:
            if lacks_script(reply):
                self._known[node].clear()
            ask.received(node, reply)
        if ask.waiter is not None and ask.is_answered():
            _wake(ask.waiter)

    # ---- connecting --------------------------------------------------------------------------

    def _is_connected(self, loop: asyncio.AbstractEventLoop, node: int) -> bool:
        connection = self._connections[node]
        return connection is not None and connection.lost is None and connection.loop is loop

    async def _ready(
        self, loop: asyncio.AbstractEventLoop, budget: float, called: Sequence[int]
    ) -> None:
        """Connect to missing nodes, and wait for as many as `connecting` says."""
        is_connected = partial(self._is_connected, loop)
        missing = [node for node in range(self.size) if not is_connected(node)]
        tasks = {self._connection_task(loop, node) for node in missing} - {None}
        for rest in self.connecting(budget, called, is_connected) if tasks else ():
            if rest <= 0 or not tasks:
                return
            done, tasks = await asyncio.wait(  # type: ignore[type-var]
                tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return

    def _connection_task(
        self, loop: asyncio.AbstractEventLoop, node: int
    ) -> asyncio.Task[None] | None:
        """Return the task that connects to a node; None if it is skipped for now."""
        task = self._connecting[node]
        if task is None or task.done() or task.get_loop() is not loop:
            if self.health[node].is_skipped(clock.now()):
                return None
            task = self._connecting[node] = loop.create_task(self._connect(node))
        return task

    async def _connect(self, node: int) -> None:
        address, health = self._addresses[node], self.health[node]
        old, connection = self._connections[node], None
        try:
            opened, _ = await address.connect_task(CONNECTING)
            if old is not None and old.lost is None:
                old.close("its event loop has ended")
            wakeups = NodeWakeups(self, node)
            connection = TaskConnection(
                opened, address.where, wakeups, lambda: self._lost(node, connection)
            )
            await connection.live()
            if self._listening:
                await connection.subscribe(self._wake_address)
                self.listener_opened(node)
                self.wakeups.wake_all()  # claims sent meanwhile carried no wake address
        except BackendError as error:
            if connection is not None:
                connection.close(str(error))
            health.failed(clock.now(), error)
            return
        self._connections[node], self._known[node] = connection, set()
        health.recovered()
        for ask in self.first_asks(node):
            self._send(node, ask)

    def _lost(self, node: int, connection: TaskConnection | None) -> None:
        if connection is not None and self._connections[node] is connection:
            # No failure of the node: perhaps the loop has ended, or the server closed an idle
            # connection. A call that was lost with the connection is one.
            self.listener_lost(node)

    # ---- wake-ups ----------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        loop = asyncio.get_running_loop()
        missed = any(time > since for time in self._subscribed_since)
        await self._ready(loop, 2 * HANG_TIMEOUT, range(self.size))
        tasks = [
            loop.create_task(self._subscribe(node, connection))
            for node, connection in enumerate(self._connections)
            if connection is not None and self._is_connected(loop, node) and not connection.listens
        ]
        waiting = set(tasks)
        while waiting and self.size - self.wake_addresses.count(".") < self._majority:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=5 * GRACE)
        self.refuse_listeners(task.result() for task in tasks if task.done())
        return missed

    async def _subscribe(self, node: int, connection: TaskConnection) -> BackendError | None:
        try:
            await connection.subscribe(self._wake_address)
        except BackendError as error:
            return error
        if self._connections[node] is connection:
            self.listener_opened(node)
        return None

    def wakeup_received(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self.merged.flush(clock.now())
        if (due := self.merged.due()) is not None:
            wait = max(due - clock.now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._flush)

    def listen(self, timeout: float | None) -> None:
        raise AssertionError("the keeper of an async client is a thread with its own listeners")

    def interrupt(self) -> None:
        """Do nothing: nobody listens with this store."""

    def close(self) -> None:
        """Close all connections. The event loop may have ended already."""
        connections, connecting = self._connections, self._connecting
        self.forget()
        for task in connecting:
            if task is not None and not task.done():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    task.cancel()
        for connection in connections:
            if connection is None:
                continue
            if connection.lost is None and connection._pending and connection.loop.is_running():
                # Calls that the node has not answered might be lost with the connection.
                connection.loop.call_later(CLOSING, connection.close, "this client was closed")
            else:
                connection.close("this client was closed")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
