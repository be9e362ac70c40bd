"""Transport of the async API: a few connections that all tasks of a loop share.

The counterpart of `threads`: one connection carries one request at a time, a task that finds none
free waits for one, and no state of a step stays in a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry
from lockfast.stores.sql.threads import (
    CONNECTING,
    CREATING_TABLES,
    IDLE,
    LEAST,
    MOST_CONNECTIONS,
    PROBE_AFTER,
    backoff,
)


class TaskConnection(Protocol):
    """A dialect's connection, bound to one event loop."""

    used: float
    broken: bool

    async def execute(self, request: Any, budget: float) -> Any: ...

    async def create_tables(self, budget: float) -> None: ...

    def is_stale(self) -> bool: ...

    def close(self) -> None:
        """Close immediately, even if the loop is closed already."""

    def after_fork_in_child(self) -> None: ...


class LoopPool:
    """The connections of one loop. They end with it: see `_until_the_loop_ends`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.permits = asyncio.Semaphore(MOST_CONNECTIONS)
        self.free: list[Any] = []
        self.all: set[Any] = set()
        self.closed = False
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

    def discard(self, connection: Any) -> None:
        self.all.discard(connection)
        connection.close()

    def close(self) -> None:
        self.closed = True
        self.free.clear()
        for connection in list(self.all):
            self.discard(connection)


class TaskTransport:
    suspends = True
    now = staticmethod(clock.now)

    def __init__(self, connect: Callable[[float], Awaitable[Any]], where: str) -> None:
        self._connect = connect
        self._where = where
        self._pool: LoopPool | None = None

    async def send(self, request: Any, budget: float) -> Any:
        """Return the reply. On cancellation, wait until the request is finished: the cancelled
        waiter leaves the queue next, on another connection, and must not overtake its own claim."""
        executing = asyncio.ensure_future(self._send_with_retries(request, budget))
        try:
            return await asyncio.shield(executing)
        except asyncio.CancelledError:
            while not executing.done():
                try:
                    await asyncio.wait({executing})
                except asyncio.CancelledError:
                    continue  # the first cancellation is raised below
            if not executing.cancelled():
                executing.exception()  # retrieved, so asyncio does not report it
            raise

    async def _send_with_retries(self, request: Any, budget: float) -> Any:
        until = clock.now() + budget
        attempt = 0
        while True:
            try:
                return await self._once(request, until)
            except Retry as why:
                attempt += 1
                if clock.now() >= until:
                    raise BackendError(
                        f"{self._where}: {why}, on every attempt ({attempt}) within the budget"
                    ) from None
                await asyncio.sleep(backoff(attempt))

    async def _once(self, request: Any, until: float) -> Any:
        pool = await self._pool_of_this_loop()
        try:
            async with asyncio.timeout(max(until - clock.now(), 0.0)):
                await pool.permits.acquire()
        except TimeoutError:
            raise BackendError(
                f"{self._where}: all {MOST_CONNECTIONS} connections stayed busy"
            ) from None
        connection = None
        try:
            connection = await self._ready(pool, until)
            connection.used = clock.now()
            try:
                return await connection.execute(request, max(until - clock.now(), LEAST))
            except NoTables:
                await connection.create_tables(CREATING_TABLES)
                return await connection.execute(request, max(until - clock.now(), CONNECTING))
        except NoTables:
            raise BackendError(
                f"{self._where}: its tables disappeared right after they were created"
            ) from None
        except BaseException as error:
            if connection is not None and not isinstance(error, BackendError | Retry):
                connection.broken = True  # cancelled: the reply may still arrive
            raise
        finally:
            if connection is not None:
                if connection.broken or pool.closed:
                    pool.discard(connection)
                else:
                    pool.free.append(connection)
            pool.permits.release()

    async def _pool_of_this_loop(self) -> LoopPool:
        pool = self._pool
        if pool is None or pool.closed or pool.loop is not asyncio.get_running_loop():
            if pool is not None:
                pool.close()  # its loop has ended, or runs in another thread: open a new pool
            pool = self._pool = LoopPool()
            await pool.bind_to_loop()
        return pool

    async def _ready(self, pool: LoopPool, until: float) -> Any:
        now = clock.now()
        while pool.free:
            connection = pool.free.pop()
            idle = now - connection.used
            if idle <= PROBE_AFTER or not (idle > IDLE or connection.is_stale()):
                return connection
            pool.discard(connection)
        connection = await self._connect(max(until - now, CONNECTING))
        pool.all.add(connection)
        return connection

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(backoff(attempt))

    def close(self) -> None:
        """Close all connections. The loop may have ended already."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def after_fork_in_child(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.closed = True
            for connection in pool.all:
                connection.after_fork_in_child()
