"""A connection to PostgreSQL for asyncio: the same link, and the loop waits for its socket."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import Again, NoTables
from lockfast.stores.sql.postgres.connections import READ, Address, Link, Waits, connect
from lockfast.stores.sql.postgres.dialect import Request


class TaskLink:
    """One session, for one task at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._waiting: tuple[asyncio.Future[None], int, int] | None = None
        self.used = clock.now()

    @property
    def broken(self) -> bool:
        return self._link.broken

    @broken.setter
    def broken(self, value: bool) -> None:
        self._link.broken = value

    async def ask(self, request: Request | list[Request], budget: float) -> Any:
        return await self._run(self._link.asking(request), budget)

    async def furnish(self, budget: float) -> None:
        await self._run(self._link.furnishing(), budget)

    async def _run(self, waits: Waits, budget: float) -> Any:
        try:
            async with asyncio.timeout(budget):
                return await self._awaited(waits)
        except TimeoutError:
            raise self._link.late(budget) from None
        except (BackendError, Again, NoTables):  # in this order: a BackendError is an OSError
            raise
        except (psycopg.Error, OSError) as error:
            raise self._link.lost(error) from error
        except BaseException:
            self._link.broken = True  # cancelled: an answer may still come
            raise

    async def _awaited(self, waits: Waits) -> Any:
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
            loop.add_reader(fd, _done, future)
        else:
            loop.add_writer(fd, _done, future)
        self._waiting = future, fd, want
        try:
            await future
        finally:
            self._forget()

    def _forget(self) -> None:
        """Before the socket is closed, whose number somebody else may get."""
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
        return self._link.is_stale()

    def close(self) -> None:
        self._forget()
        self._link.close()

    def after_fork_in_child(self) -> None:
        self._link.after_fork_in_child()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def connect_task(address: Address, budget: float) -> TaskLink:
    """libpq asks for names of hosts and blocks for it; so another thread connects."""
    given = None if address.given is None else await address.given.here()
    made = asyncio.get_running_loop().run_in_executor(None, connect, address, budget, given)
    try:
        return TaskLink(await asyncio.shield(made))
    except asyncio.CancelledError:
        made.add_done_callback(_unwanted)
        raise


def _unwanted(made: asyncio.Future[Link]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()
