"""How requests travel: a few connections that all threads, or all tasks of a loop, share.

A caller takes a connection for one request and puts it back, so no state of a step stays in it. The
connection used last is taken first, so surplus ones become idle and are closed. Connections belong
to lockfast, never to the user's pool.

Requests that fail for a passing reason (a deadlock, tables that do not exist yet) are retried here,
within the budget. The steps of that are a generator, written once: it yields what an operation of
the channel returned, which is the value in a thread and an awaitable of it in a task.
"""

from __future__ import annotations

import asyncio
import queue
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.book import NoTables, Retry
from lockfast.stores.sql.connections import Connection, Exchange
from lockfast.stores.steps import Steps, perform, perform_soon

MOST_CONNECTIONS = 8  # they are expensive for a database; a statement takes < 1 ms
PROBE_AFTER = 0.05  # a connection idle for longer is probed: the server may have closed it
IDLE = 60.0
# Connecting costs a server more than a statement does, and a short lease has a small budget: so
# connecting gets at least CONNECTING seconds, and the first statement on it at least LEAST.
CONNECTING, LEAST = 0.5, 0.05
# Creating the tables, once in the life of a database, may take longer than a budget allows.
CREATING_TABLES = 5.0


def same(reply: Any) -> Any:
    """Return the reply that a step yielded: the ``send`` of steps whose requests are sent."""
    return reply


class Pool:
    """The connections of one process, or of one loop. ``permits`` limits them."""

    def __init__(self, permits: Any) -> None:
        self.permits = permits
        self.free: list[Connection] = []
        self.all: set[Connection] = set()
        self.closed = False

    def take(self, now: float) -> Connection | None:
        """Return a free connection that the server has not closed; None: connect."""
        try:
            while self.free:
                connection = self.free.pop()
                idle = now - connection.used
                if idle <= PROBE_AFTER:
                    if self.free and now - self.free[0].used > IDLE:
                        self.discard(self.free.pop(0))
                    return connection
                if idle <= IDLE and not connection.is_stale():
                    return connection
                self.discard(connection)
        except IndexError:
            pass  # another thread took it
        return None

    def put_back(self, connection: Connection) -> None:
        if connection.broken or self.closed:
            self.discard(connection)
        else:
            self.free.append(connection)

    def discard(self, connection: Connection) -> None:
        self.all.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close the free connections. One in use is closed by its user when it is put back."""
        self.closed = True
        while self.free:
            try:
                self.discard(self.free.pop())
            except IndexError:
                return

    def after_fork_in_child(self) -> None:
        self.closed = True
        for connection in list(self.all):
            connection.after_fork_in_child()


class Channel(ABC):
    """Sender of requests, for one API. ``connect`` makes a connection within a budget."""

    suspends: bool
    now = staticmethod(clock.now)

    def __init__(self, connect: Callable[[float], Any], where: str) -> None:
        self._connect = connect
        self._where = where
        self._pool: Any = self._new_pool()

    def _new_pool(self) -> Pool | None:
        """Return an empty pool; None: it is made when a loop runs."""
        return None

    @abstractmethod
    def send(self, request: Any, budget: float) -> Any:
        """Return the reply, or an awaitable of it."""

    @abstractmethod
    def pause(self, seconds: float) -> Any: ...

    def close(self) -> None:
        """Close the connections. Later requests connect again."""
        pool, self._pool = self._pool, self._new_pool()
        if pool is not None:
            pool.close()

    def after_fork_in_child(self) -> None:
        pool, self._pool = self._pool, self._new_pool()
        if pool is not None:
            pool.after_fork_in_child()

    # ---- operations of the steps ---------------------------------------------------------------

    @abstractmethod
    def _admitted(self, until: float) -> Any:
        """Return the pool, with one of its permits."""

    @abstractmethod
    def _connected(self, budget: float) -> Any:
        """Return a new connection."""

    @abstractmethod
    def _exchanged(self, connection: Connection, exchange: Exchange, budget: float) -> Any:
        """Run an exchange and return its reply."""

    # ---- the steps -----------------------------------------------------------------------------

    def _sending(self, request: Any, budget: float) -> Steps[Any]:
        until = clock.now() + budget
        attempt = 0
        while True:
            try:
                return (yield from self._sending_once(request, until))
            except Retry as why:
                attempt += 1
                if clock.now() >= until:
                    raise BackendError(
                        f"{self._where}: {why}, on every attempt ({attempt}) within the budget"
                    ) from None
                yield self.pause(backoff(attempt))

    def _sending_once(self, request: Any, until: float) -> Steps[Any]:
        pool: Pool = yield self._admitted(until)
        connection = None
        try:
            connection = pool.take(clock.now())
            if connection is None:
                connection = yield self._connected(max(until - clock.now(), CONNECTING))
                pool.all.add(connection)
            connection.used = now = clock.now()
            try:
                exchange, rest = connection.executing(request), max(until - now, LEAST)
                return (yield self._exchanged(connection, exchange, rest))
            except NoTables:
                creating = connection.creating_tables()
                yield self._exchanged(connection, creating, CREATING_TABLES)
                exchange, rest = connection.executing(request), max(until - clock.now(), CONNECTING)
                return (yield self._exchanged(connection, exchange, rest))
        except NoTables:
            raise BackendError(
                f"{self._where}: its tables disappeared right after they were created"
            ) from None
        finally:
            if connection is not None:
                pool.put_back(connection)
            self._readmit(pool)

    @abstractmethod
    def _readmit(self, pool: Pool) -> None:
        """Return the permit."""

    def _busy(self) -> BackendError:
        return BackendError(f"{self._where}: all {MOST_CONNECTIONS} connections stayed busy")


class ThreadChannel(Channel):
    """Channel of the sync API, and of the keeper."""

    suspends = False

    def _new_pool(self) -> Pool:
        # One permit per connection. (A semaphore would do; this queue is written in C.)
        pool = Pool(queue.SimpleQueue())
        for _ in range(MOST_CONNECTIONS):
            pool.permits.put(None)
        return pool

    def send(self, request: Any, budget: float) -> Any:
        """Return the reply. The common case, a free connection and no error, is done here without
        the steps, which would add a sixth to the CPU time of a cycle."""
        pool, now, connection = self._pool, clock.now(), None
        permits = pool.permits
        try:
            permits.get_nowait()
        except queue.Empty:
            return perform(self._sending(request, budget), same)
        try:
            connection = pool.take(now)
            if connection is not None:
                connection.used = now
                return connection.run(connection.executing(request), budget, now)
        except (Retry, NoTables):
            pass  # the steps below try again
        finally:
            if connection is not None:
                pool.put_back(connection)
            permits.put(None)
        return perform(self._sending(request, budget - (clock.now() - now)), same)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _admitted(self, until: float) -> Pool:
        pool: Pool = self._pool
        try:
            pool.permits.get(timeout=max(until - clock.now(), 0.0))
        except queue.Empty:
            raise self._busy() from None
        return pool

    def _readmit(self, pool: Pool) -> None:
        pool.permits.put(None)

    def _connected(self, budget: float) -> Connection:
        connection: Connection = self._connect(budget)
        return connection

    def _exchanged(self, connection: Connection, exchange: Exchange, budget: float) -> Any:
        return connection.run(exchange, budget)


class LoopPool(Pool):
    """The connections of one loop. They end with it: see `_until_the_loop_ends`."""

    def __init__(self) -> None:
        super().__init__(asyncio.Semaphore(MOST_CONNECTIONS))
        self.loop = asyncio.get_running_loop()
        self._end_of_loop = self._until_the_loop_ends()

    async def bind_to_loop(self) -> None:
        await anext(self._end_of_loop)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Close the pool with the loop: a loop closes its async generators before it ends, which is
        the only notification of its end."""
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections. The loop may have ended already."""
        self.closed = True
        self.free.clear()
        for connection in list(self.all):
            self.discard(connection)


class TaskChannel(Channel):
    """Channel of the async API. ``connect`` returns an awaitable."""

    suspends = True

    def send(self, request: Any, budget: float) -> Any:
        return perform_soon(self._sending(request, budget), same)

    def pause(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    async def _admitted(self, until: float) -> Pool:
        pool: LoopPool | None = self._pool
        if pool is None or pool.closed or pool.loop is not asyncio.get_running_loop():
            if pool is not None:
                pool.close()  # its loop has ended, or runs in another thread: open a new pool
            pool = self._pool = LoopPool()
            await pool.bind_to_loop()
        if pool.permits.locked():
            try:
                async with asyncio.timeout(max(until - clock.now(), 0.0)):
                    await pool.permits.acquire()
            except TimeoutError:
                raise self._busy() from None
        else:
            await pool.permits.acquire()  # does not suspend
        return pool

    def _readmit(self, pool: Pool) -> None:
        pool.permits.release()

    async def _connected(self, budget: float) -> Connection:
        connection: Connection = await self._connect(budget)
        connection.bind()
        return connection

    def _exchanged(self, connection: Connection, exchange: Exchange, budget: float) -> Any:
        return connection.run_soon(exchange, budget)


def backoff(attempt: int) -> float:
    """Return a random pause in seconds: 0 after the first attempt, later at most 20 ms."""
    return random.random() * min(0.0002 * (2.0 ** min(attempt, 9) - 2.0), 0.02)
