"""A connection to MariaDB or MySQL for asyncio: asyncmy connects, and carries one string at a
time."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncmy
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError, ProgrammingError

from holdfast import clock
from holdfast.backends.mysql import given, schema
from holdfast.backends.mysql.conditions import explained
from holdfast.backends.mysql.links import Address, code_and_words, prepare, preparing, result_of
from holdfast.backends.mysql.words import Result
from holdfast.backends.rows.given import LOOKING
from holdfast.errors import BackendError


class TaskLink:
    """One session, for one task at a time."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self.broken = False
        self.used = clock.now()

    async def ask(self, request: Any, budget: float) -> Any:
        if isinstance(request, tuple):
            return request[0], await self._ask(request[1], budget)
        if isinstance(request, list):  # each is one statement
            return [[result] for result in await self._ask(";".join(request), budget)]
        return await self._ask(request, budget)

    async def _ask(self, sql: str, budget: float) -> list[Result]:
        connection = self._connection
        try:
            async with asyncio.timeout(budget):
                await connection.query(sql)
                results = [result_of(connection._result)]
                while connection._result.has_next:
                    await connection.next_result()
                    results.append(result_of(connection._result))
                return results
        except TimeoutError:
            self.broken = True
            raise BackendError(f"{self._where} did not answer within {budget:.3g} s") from None
        except MySQLError as error:
            if not isinstance(error, ProgrammingError) or sql.startswith("BEGIN"):
                self.broken = True  # a transaction may be open, or an answer on its way
            raise explained(*code_and_words(error), self._where) from error
        except OSError as error:
            self.broken = True
            raise BackendError(f"the connection to {self._where} is lost: {error}") from error
        except BaseException:
            self.broken = True  # cancelled: an answer may still come
            raise

    async def furnish(self, budget: float) -> None:
        for table in schema.TABLES:
            await self._ask(table, budget)

    def is_stale(self) -> bool:
        return bool(self._connection._stream_broken)

    def close(self) -> None:
        """Now, also if the loop has ended: then it will not close the socket for us any more."""
        self.broken = True
        transport = self._connection._transport
        if transport is None:
            return
        self._connection._transport = None
        sock = transport.get_extra_info("socket")
        try:
            transport.abort()
        except RuntimeError:  # the loop is closed
            if sock is not None:
                transport._sock = None
                sock._sock.close()

    def after_fork_in_child(self) -> None:
        """Dropped, not closed: the parent's loop watches its socket through what we share."""
        self.broken = True
        self._connection._transport = None


async def connect_task(address: Address, budget: float) -> TaskLink:
    until = clock.now() + budget
    words = address.said
    try:
        async with asyncio.timeout(budget):
            made = None if address.given is None else await given.here(address.given)
            if isinstance(made, dict):
                words, made = made, None
            connection = made or await asyncmy.connect(
                **words,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=budget,
                client_flag=CLIENT.MULTI_STATEMENTS,
            )
    except TimeoutError:
        raise BackendError(
            f"{address.where} did not answer in time while connecting ({budget:.3g} s)"
        ) from None
    except MySQLError as error:
        code, said = code_and_words(error)
        failed = explained(code, said, address.where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{address.where} is out of reach: {said}")
        raise failed from error
    except BackendError:
        raise
    except OSError as error:
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    link = TaskLink(connection, address.where)
    least = 0.001 if address.given is None else LOOKING
    try:
        prepare(await link._ask(preparing(), max(until - clock.now(), least)), address.where)
    except BaseException:
        link.close()
        raise
    return link
