"""A connection to MariaDB or MySQL for asyncio: asyncmy connects, and carries one string at a
time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from asyncmy.connection import Connection
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError, ProgrammingError

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.mysql import schema, user_connections
from lockfast.stores.sql.mysql.connections import (
    Address,
    code_and_words,
    prepare,
    preparing,
    result_of,
    unchecked,
    unspeakable,
)
from lockfast.stores.sql.mysql.dialect import spoken
from lockfast.stores.sql.mysql.errors import explained
from lockfast.stores.sql.mysql.prepared import (
    EXECUTE,
    FORGOTTEN,
    HEAD,
    PREPARE,
    REFUSED,
    Call,
    Result,
    Statement,
    done,
    in_digits,
    numbered,
    packed,
)
from lockfast.stores.sql.user_connections import LOOKING

T = TypeVar("T")


_Connection: Any = Connection  # its types leave out what is needed here


class TaskSession(_Connection):  # type: ignore[misc]
    """asyncmy's, which speaks TLS only if it is told to. Here to each server that can, as in the
    other face: MySQL takes a password in the open over TLS alone, or else by RSA, for which a
    library more is needed."""

    _ssl_context: Any
    _transport: Any

    async def _request_authentication(self) -> Any:
        offers = self.server_capabilities & CLIENT.SSL and not self._unix_socket
        if offers and self._ssl_context is None:
            self._ssl_context = unchecked()
            self._client_flag |= CLIENT.SSL
        if self._ssl_context is not None:
            self._secure = True  # it will be before the password is said; 0.2.13 forgets
        return await super()._request_authentication()

    def close(self) -> None:
        """At once. TLS has something to say at the end, and a loop may end before it is said."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class TaskLink:
    """One session, for one task at a time."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self._prepared: dict[Statement, int] = {}
        self._prepares = True
        self.broken = False
        self.used = clock.now()

    async def ask(self, request: Any, budget: float) -> Any:
        if isinstance(request, Call):
            return [await self._careful(self._called(request), request, budget)]
        if isinstance(request, tuple):
            return request[0], await self._ask(request[1], budget)
        if isinstance(request, list):  # each is one statement
            text = ";".join(map(spoken, request))
            return [[result] for result in await self._ask(text, budget)]
        return await self._ask(request, budget)

    async def _ask(self, sql: str, budget: float) -> list[Result]:
        results: list[Result] = await self._careful(self._said(sql), sql, budget)
        return results

    async def _said(self, sql: str) -> list[Result]:
        connection = self._connection
        await connection.query(sql)
        results = [result_of(connection._result)]
        while connection._result.has_next:
            await connection.next_result()
            results.append(result_of(connection._result))
        return results

    async def _called(self, call: Call) -> Result:
        connection = self._connection
        call = in_digits(call, connection.server_version)
        statement = call.statement
        try:
            number = self._prepared.get(statement)
            if number is None:
                if not self._prepares:
                    return (await self._said(spoken(call)))[0]
                await connection._execute_command(PREPARE, statement.sql)
                number, descriptions = numbered((await connection.read_packet()).get_all_data())
                last = 0 if getattr(connection, "_deprecate_eof", False) else 1
                for _ in range(descriptions + last if descriptions else 0):
                    await connection.read_packet()
                self._prepared[statement] = number
            await connection._execute_command(EXECUTE, packed(number, call.values)[HEAD:])
            return done((await connection.read_packet()).get_all_data())
        except MySQLError as error:
            code, _ = code_and_words(error)
            if code in FORGOTTEN:
                self._prepared.clear()
            if code not in REFUSED:
                raise
            self._prepares = False
            return (await self._said(spoken(call)))[0]

    async def _careful(self, exchange: Awaitable[T], said: Any, budget: float) -> T:
        """Its errors as ours."""
        try:
            async with asyncio.timeout(budget):
                return await exchange
        except TimeoutError:
            self.broken = True
            raise BackendError(f"{self._where} did not answer within {budget:.3g} s") from None
        except MySQLError as error:
            if not isinstance(error, ProgrammingError) or said[:5] == "BEGIN":
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
                secret = getattr(transport, "_ssl_protocol", None)  # TLS speaks through another
                (secret._transport if secret else transport)._sock = None
                sock._sock.close()

    def after_fork_in_child(self) -> None:
        """Dropped, not closed: the parent's loop watches its socket through what we share."""
        self.broken = True
        self._connection._transport = None


async def connect_task(address: Address, budget: float) -> TaskLink:
    until = clock.now() + budget
    words = address.said
    try:
        made = (
            None
            if address.user_connections is None
            else await user_connections.here(address.user_connections)
        )
        if isinstance(made, dict):
            words, made = made, None
        async with asyncio.timeout(budget):  # not of what a user's function takes
            connection = made
            if connection is None:
                connection = TaskSession(
                    **words,
                    charset="utf8mb4",
                    autocommit=True,
                    connect_timeout=budget,
                    client_flag=CLIENT.MULTI_STATEMENTS,
                )
                await connection.connect()
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
    except RuntimeError as error:
        raise unspeakable(error, address.where) from None
    except (OSError, UnicodeError) as error:
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    link = TaskLink(connection, address.where)
    least = 0.001 if address.user_connections is None else LOOKING
    try:
        prepare(await link._ask(preparing(), max(until - clock.now(), least)), address.where)
    except BaseException:
        link.close()
        raise
    return link
