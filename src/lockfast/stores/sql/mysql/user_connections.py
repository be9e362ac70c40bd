"""Connections to MariaDB and MySQL made by a user's function or engine, taken over by lockfast.

Some cannot be used: those of the other API, and those that count matched rows instead of changed
rows (SQLAlchemy's do), by which lockfast decides whether a write took effect. Such a connection
provides the connection parameters and is closed. A new one is made each time, because a password
may be valid for one connection only.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pymysql.converters
from asyncmy.connection import Connection as AsyncmyConnection
from asyncmy.converters import conversions
from pymysql.constants import CLIENT, COMMAND

from lockfast.stores.sql.user_connections import UserConnections

_DECODERS = {key: value for key, value in conversions.items() if type(key) is int}
_MULTI_STATEMENTS_ON = b"\0\0"
# Before the rollback, which would begin another transaction (CHAIN) or disconnect (RELEASE).
_COMPLETION = "SET SESSION completion_type = 0"


def connect(user_connections: UserConnections, budget: float) -> Any:
    """Return a connection of PyMySQL, or a dict of the parameters for one."""
    made = user_connections.connect(budget, _parameters_and_close)
    if isinstance(made, pymysql.Connection):
        if made.client_flag & CLIENT.FOUND_ROWS:
            parameters = _parameters(made)
            made.close()
            return parameters
        made.query(_COMPLETION)
        made.rollback()
        made.autocommit(True)
        made.set_character_set("utf8mb4")
        made.decoders, made.use_unicode = pymysql.converters.decoders, True
        made._execute_command(COMMAND.COM_SET_OPTION, _MULTI_STATEMENTS_ON)
        made._read_packet()
    return made


async def connect_in_loop(user_connections: UserConnections) -> Any:
    """Return a connection of asyncmy, or a dict of the parameters for one."""
    made = await user_connections.connect_in_loop()
    if isinstance(made, pymysql.Connection):
        parameters = _parameters(made)
        await asyncio.get_running_loop().run_in_executor(None, made.close)
        return parameters
    if made._client_flag & CLIENT.FOUND_ROWS:
        return await _parameters_and_close(made)
    await made.query(_COMPLETION)
    await made.rollback()
    await made.autocommit(True)
    await made.query("SET NAMES utf8mb4")
    made._charset, made._encoding = "utf8mb4", "utf8"
    made._decoders, made._use_unicode = _DECODERS, True
    await made._execute_command(COMMAND.COM_SET_OPTION, _MULTI_STATEMENTS_ON)
    await made.read_packet()
    return made


async def _parameters_and_close(made: Any) -> dict[str, Any]:
    parameters = _parameters(made)
    await made.ensure_closed()
    return parameters


def _parameters(made: Any) -> dict[str, Any]:
    """Return the parameters with which a connection was made."""
    prefix = "_" if isinstance(made, AsyncmyConnection) else ""

    def attribute(name: str) -> Any:
        value = getattr(made, f"{prefix}{name}", None)
        return value.decode() if isinstance(value, bytes) and name != "password" else value

    parameters = {name: attribute(name) for name in ("host", "port", "user", "password")}
    parameters["database"] = attribute("db")
    if attribute("unix_socket"):
        parameters["unix_socket"] = attribute("unix_socket")
    # An encrypted connection stays so. PyMySQL has a context even if the server has no TLS.
    if prefix:
        context = made._ssl_context
    else:
        context = made.ctx if isinstance(made._sock, ssl.SSLSocket) else None
    if context is not None:
        parameters["ssl"] = context
    return parameters
