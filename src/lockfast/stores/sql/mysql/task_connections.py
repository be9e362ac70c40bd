"""Connections to MariaDB and MySQL for asyncio, through asyncmy, which sends one string at a
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
    check_setup,
    code_and_message,
    missing_auth_library,
    result_of,
    setup_statements,
    unverified_context,
)
from lockfast.stores.sql.mysql.dialect import as_text
from lockfast.stores.sql.mysql.errors import exception_for
from lockfast.stores.sql.mysql.prepared import (
    EXECUTE,
    FORGOTTEN,
    HEAD,
    PREPARE,
    REFUSED,
    Call,
    Result,
    Statement,
    decode_ok,
    decode_prepared,
    execute_packet,
    in_hex,
)
from lockfast.stores.sql.user_connections import LEAST_CHECKING

T = TypeVar("T")


_AsyncmyConnection: Any = Connection  # its type stubs lack private parts that are needed here


class TaskTlsConnection(_AsyncmyConnection):  # type: ignore[misc]
    """asyncmy's connection, with TLS to each server that offers it, as PyMySQL does in the sync
    API. asyncmy alone uses TLS only if it is configured; and MySQL accepts a clear-text password
    only over TLS, or else encrypted by RSA, which needs another library."""

    _ssl_context: Any
    _transport: Any

    async def _request_authentication(self) -> Any:
        offers = self.server_capabilities & CLIENT.SSL and not self._unix_socket
        if offers and self._ssl_context is None:
            self._ssl_context = unverified_context()
            self._client_flag |= CLIENT.SSL
        if self._ssl_context is not None:
            self._secure = True  # before the password is sent; asyncmy 0.2.13 forgets this
        return await super()._request_authentication()

    def close(self) -> None:
        """Close immediately, without the TLS close message: the loop may end before it is sent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class TaskConnection:
    """One session, for one task at a time."""

    def __init__(self, driver: Any, where: str) -> None:
        self._driver = driver
        self._where = where
        self._prepared: dict[Statement, int] = {}
        self._prepares = True
        self.broken = False
        self.used = clock.now()

    async def execute(self, request: Any, budget: float) -> Any:
        if isinstance(request, Call):
            return [await self._guarded(self._call(request), request, budget)]
        if isinstance(request, tuple):
            return request[0], await self._execute_text(request[1], budget)
        if isinstance(request, list):  # each is one statement
            text = ";".join(map(as_text, request))
            return [[result] for result in await self._execute_text(text, budget)]
        return await self._execute_text(request, budget)

    async def _execute_text(self, sql: str, budget: float) -> list[Result]:
        results: list[Result] = await self._guarded(self._query(sql), sql, budget)
        return results

    async def _query(self, sql: str) -> list[Result]:
        driver = self._driver
        await driver.query(sql)
        results = [result_of(driver._result)]
        while driver._result.has_next:
            await driver.next_result()
            results.append(result_of(driver._result))
        return results

    async def _call(self, call: Call) -> Result:
        driver = self._driver
        call = in_hex(call, driver.server_version)
        statement = call.statement
        try:
            number = self._prepared.get(statement)
            if number is None:
                if not self._prepares:
                    return (await self._query(as_text(call)))[0]
                await driver._execute_command(PREPARE, statement.sql)
                number, descriptions = decode_prepared((await driver.read_packet()).get_all_data())
                last = 0 if getattr(driver, "_deprecate_eof", False) else 1
                for _ in range(descriptions + last if descriptions else 0):
                    await driver.read_packet()
                self._prepared[statement] = number
            await driver._execute_command(EXECUTE, execute_packet(number, call.values)[HEAD:])
            return decode_ok((await driver.read_packet()).get_all_data())
        except MySQLError as error:
            code, _ = code_and_message(error)
            if code in FORGOTTEN:
                self._prepared.clear()
            if code not in REFUSED:
                raise
            self._prepares = False
            return (await self._query(as_text(call)))[0]

    async def _guarded(self, exchange: Awaitable[T], request: Any, budget: float) -> T:
        """Await an exchange and map its errors."""
        try:
            async with asyncio.timeout(budget):
                return await exchange
        except TimeoutError:
            self.broken = True
            raise BackendError(f"{self._where} did not answer within {budget:.3g} s") from None
        except MySQLError as error:
            if not isinstance(error, ProgrammingError) or request[:5] == "BEGIN":
                self.broken = True  # a transaction may be open, or a reply under way
            raise exception_for(*code_and_message(error), self._where) from error
        except OSError as error:
            self.broken = True
            raise BackendError(f"the connection to {self._where} was lost: {error}") from error
        except BaseException:
            self.broken = True  # cancelled: the reply may still arrive
            raise

    async def create_tables(self, budget: float) -> None:
        for table in schema.TABLES:
            await self._execute_text(table, budget)

    def is_stale(self) -> bool:
        return bool(self._driver._stream_broken)

    def close(self) -> None:
        """Close immediately, even if the loop has ended and will not close the socket any more."""
        self.broken = True
        transport = self._driver._transport
        if transport is None:
            return
        self._driver._transport = None
        sock = transport.get_extra_info("socket")
        try:
            transport.abort()
        except RuntimeError:  # the loop is closed
            if sock is not None:
                tls = getattr(transport, "_ssl_protocol", None)  # TLS wraps the socket's transport
                (tls._transport if tls else transport)._sock = None
                sock._sock.close()

    def after_fork_in_child(self) -> None:
        """Discard without closing: the parent's loop watches the socket through a shared epoll."""
        self.broken = True
        self._driver._transport = None


async def connect_task(address: Address, budget: float) -> TaskConnection:
    until = clock.now() + budget
    parameters = address.parameters
    try:
        made = (
            None
            if address.user_connections is None
            else await user_connections.connect_in_loop(address.user_connections)
        )
        if isinstance(made, dict):
            parameters, made = made, None
        async with asyncio.timeout(budget):  # without the time that a user's function takes
            driver = made
            if driver is None:
                driver = TaskTlsConnection(
                    **parameters,
                    charset="utf8mb4",
                    autocommit=True,
                    connect_timeout=budget,
                    client_flag=CLIENT.MULTI_STATEMENTS,
                )
                await driver.connect()
    except TimeoutError:
        raise BackendError(
            f"{address.where} did not answer in time while connecting ({budget:.3g} s)"
        ) from None
    except MySQLError as error:
        code, message = code_and_message(error)
        failed = exception_for(code, message, address.where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{address.where} is out of reach: {message}")
        raise failed from error
    except BackendError:
        raise
    except RuntimeError as error:
        raise missing_auth_library(error, address.where) from None
    except (OSError, UnicodeError) as error:
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    connection = TaskConnection(driver, address.where)
    least = 0.001 if address.user_connections is None else LEAST_CHECKING
    try:
        rest = max(until - clock.now(), least)
        check_setup(await connection._execute_text(setup_statements(), rest), address.where)
    except BaseException:
        connection.close()
        raise
    return connection
