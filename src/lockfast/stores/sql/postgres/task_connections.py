"""Connections to PostgreSQL for asyncio: the exchanges of `connections`, waiting in the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry
from lockfast.stores.sql.postgres.connections import READ, Address, Connection, Waits, connect
from lockfast.stores.sql.postgres.dialect import Request


class TaskConnection:
    """One session, for one task at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._waiting: tuple[asyncio.Future[None], int, int] | None = None
        self.used = clock.now()

    @property
    def broken(self) -> bool:
        return self._connection.broken

    @broken.setter
    def broken(self, value: bool) -> None:
        self._connection.broken = value

    async def execute(self, request: Request | list[Request], budget: float) -> Any:
        return await self._run(self._connection.executing(request), budget)

    async def create_tables(self, budget: float) -> None:
        await self._run(self._connection.creating_tables(), budget)

    async def _run(self, waits: Waits, budget: float) -> Any:
        try:
            async with asyncio.timeout(budget):
                return await self._drive(waits)
        except TimeoutError:
            raise self._connection.late(budget) from None
        except (BackendError, Retry, NoTables):  # in this order: a BackendError is an OSError
            raise
        except (psycopg.Error, OSError) as error:
            raise self._connection.lost(error) from error
        except BaseException:
            self._connection.broken = True  # cancelled: the reply may still arrive
            raise

    async def _drive(self, waits: Waits) -> Any:
        try:
            fd, want = next(waits)
            while True:
                await self._ready(fd, want)
                fd, want = waits.send(None)
        except StopIteration as end:
            return end.value

    async def _ready(self, fd: int, want: int) -> None:
        loop = self._loop
        future = loop.create_future()
        if want == READ:
            loop.add_reader(fd, _set_done, future)
        else:
            loop.add_writer(fd, _set_done, future)
        self._waiting = future, fd, want
        try:
            await future
        finally:
            self._forget()

    def _forget(self) -> None:
        """Unregister the socket, before it is closed and its descriptor may be reused."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or self._loop.is_closed():
            return
        future, fd, want = waiting
        if want == READ:
            self._loop.remove_reader(fd)
        else:
            self._loop.remove_writer(fd)
        if not future.done():
            future.set_exception(ConnectionResetError("this client was closed"))

    def is_stale(self) -> bool:
        return self._connection.is_stale()

    def close(self) -> None:
        self._forget()
        self._connection.close()

    def after_fork_in_child(self) -> None:
        self._connection.after_fork_in_child()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def connect_task(address: Address, budget: float) -> TaskConnection:
    """Connect in an executor thread, because libpq blocks while it resolves host names."""
    made = (
        None
        if address.user_connections is None
        else await address.user_connections.connect_in_loop()
    )
    connecting = asyncio.get_running_loop().run_in_executor(None, connect, address, budget, made)
    try:
        return TaskConnection(await asyncio.shield(connecting))
    except asyncio.CancelledError:
        connecting.add_done_callback(_unwanted)
        raise


def _unwanted(connecting: asyncio.Future[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
