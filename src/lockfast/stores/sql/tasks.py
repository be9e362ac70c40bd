"""How asyncio speaks to a database: a few connections that all tasks of a loop share.

The same as `pool`, with tasks in the place of threads: one connection carries one statement at a
time, who finds none free waits for its turn, and nothing of a step stays in a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import Again, NoTables
from lockfast.stores.sql.threads import (
    CONNECTING,
    FURNISHING,
    IDLE,
    LEAST,
    LOOK_AFTER,
    MOST_LINKS,
    breath,
)


class TaskLink(Protocol):
    """A connection of a dialect, of one loop."""

    used: float
    broken: bool

    async def ask(self, request: Any, budget: float) -> Any: ...

    async def furnish(self, budget: float) -> None: ...

    def is_stale(self) -> bool: ...

    def close(self) -> None:
        """At once, also if the loop is closed already."""

    def after_fork_in_child(self) -> None: ...


class LoopPool:
    """The connections of one loop. They end with it: see `until_the_loop_ends`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.room = asyncio.Semaphore(MOST_LINKS)
        self.free: list[Any] = []
        self.all: set[Any] = set()
        self.closed = False
        self._end_of_loop = self._until_the_loop_ends()

    async def live(self) -> None:
        await anext(self._end_of_loop)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """A loop closes its asynchronous generators before it ends: the only news of its end."""
        try:
            yield
        finally:
            self.close()

    def drop(self, link: Any) -> None:
        self.all.discard(link)
        link.close()

    def close(self) -> None:
        self.closed = True
        self.free.clear()
        for link in list(self.all):
            self.drop(link)


class TaskTransport:
    suspends = True
    now = staticmethod(clock.now)

    def __init__(self, connect: Callable[[float], Awaitable[Any]], where: str) -> None:
        self._connect = connect
        self._where = where
        self._pool: LoopPool | None = None

    async def send(self, request: Any, budget: float) -> Any:
        """What is under way is waited for, although we are cancelled: whoever was cancelled leaves
        next, on another connection, and must not be faster than what it gives up."""
        asking = asyncio.ensure_future(self._persist(request, budget))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            while not asking.done():
                try:
                    await asyncio.wait({asking})
                except asyncio.CancelledError:
                    continue  # the first is on its way up already
            if not asking.cancelled():
                asking.exception()  # seen
            raise

    async def _persist(self, request: Any, budget: float) -> Any:
        until = clock.now() + budget
        attempt = 0
        while True:
            try:
                return await self._once(request, until)
            except Again as why:
                attempt += 1
                if clock.now() >= until:
                    raise BackendError(f"{self._where}: {why}, again and again") from None
                await asyncio.sleep(breath(attempt))

    async def _once(self, request: Any, until: float) -> Any:
        pool = await self._of_this_loop()
        try:
            async with asyncio.timeout(max(until - clock.now(), 0.0)):
                await pool.room.acquire()
        except TimeoutError:
            raise BackendError(f"{self._where}: all {MOST_LINKS} connections stayed busy") from None
        link = None
        try:
            link = await self._ready(pool, until)
            link.used = clock.now()
            try:
                return await link.ask(request, max(until - clock.now(), LEAST))
            except NoTables:
                await link.furnish(FURNISHING)
                return await link.ask(request, max(until - clock.now(), CONNECTING))
        except NoTables:
            raise BackendError(
                f"{self._where}: its tables are gone as soon as they are made"
            ) from None
        except BaseException as error:
            if link is not None and not isinstance(error, BackendError | Again):
                link.broken = True  # cancelled: an answer may still come
            raise
        finally:
            if link is not None:
                if link.broken or pool.closed:
                    pool.drop(link)
                else:
                    pool.free.append(link)
            pool.room.release()

    async def _of_this_loop(self) -> LoopPool:
        pool = self._pool
        if pool is None or pool.closed or pool.loop is not asyncio.get_running_loop():
            if pool is not None:
                pool.close()  # its loop is over, or another thread's: it opens another
            pool = self._pool = LoopPool()
            await pool.live()
        return pool

    async def _ready(self, pool: LoopPool, until: float) -> Any:
        now = clock.now()
        while pool.free:
            link = pool.free.pop()
            idle = now - link.used
            if idle <= LOOK_AFTER or not (idle > IDLE or link.is_stale()):
                return link
            pool.drop(link)
        link = await self._connect(max(until - now, CONNECTING))
        pool.all.add(link)
        return link

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(breath(attempt))

    def close(self) -> None:
        """Close what is open. The loop may be gone already."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def after_fork_in_child(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.closed = True
            for link in pool.all:
                link.after_fork_in_child()
