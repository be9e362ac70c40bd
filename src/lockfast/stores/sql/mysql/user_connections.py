"""Connections to MariaDB and MySQL that a user's function, or engine, makes: taken over as ours.

Some cannot be used: those of the other colour, and those that count rows which were found instead
of those that were changed (SQLAlchemy's do), by which we tell whether a write was done. They tell
how to connect, and are closed. That is asked each time, because a password may be good for one
connection only.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pymysql.converters
from asyncmy.connection import Connection as TaskConnection
from asyncmy.converters import conversions
from pymysql.constants import CLIENT, COMMAND

from lockfast.stores.sql.user_connections import Given

_DECODERS = {key: value for key, value in conversions.items() if type(key) is int}
_MULTI_STATEMENTS_ON = b"\0\0"


def blocking(given: Given, budget: float) -> Any:
    """A connection of PyMySQL, or a dict of what to tell it."""
    made = given.blocking(budget, _asked)
    if isinstance(made, pymysql.Connection):
        if made.client_flag & CLIENT.FOUND_ROWS:
            said = _said(made)
            made.close()
            return said
        made.rollback()
        made.autocommit(True)
        made.set_character_set("utf8mb4")
        made.decoders, made.use_unicode = pymysql.converters.decoders, True
        made._execute_command(COMMAND.COM_SET_OPTION, _MULTI_STATEMENTS_ON)
        made._read_packet()
    return made


async def here(given: Given) -> Any:
    """A connection of asyncmy, or a dict of what to tell it."""
    made = await given.here()
    if isinstance(made, pymysql.Connection):
        said = _said(made)
        await asyncio.get_running_loop().run_in_executor(None, made.close)
        return said
    if made._client_flag & CLIENT.FOUND_ROWS:
        return await _asked(made)
    await made.rollback()
    await made.autocommit(True)
    await made.query("SET NAMES utf8mb4")
    made._charset, made._encoding = "utf8mb4", "utf8"
    made._decoders, made._use_unicode = _DECODERS, True
    await made._execute_command(COMMAND.COM_SET_OPTION, _MULTI_STATEMENTS_ON)
    await made.read_packet()
    return made


async def _asked(made: Any) -> dict[str, Any]:
    said = _said(made)
    await made.ensure_closed()
    return said


def _said(made: Any) -> dict[str, Any]:
    """The words with which it was connected."""
    line = "_" if isinstance(made, TaskConnection) else ""

    def word(name: str) -> Any:
        value = getattr(made, f"{line}{name}", None)
        return value.decode() if isinstance(value, bytes) and name != "password" else value

    said = {name: word(name) for name in ("host", "port", "user", "password")}
    said["database"] = word("db")
    if word("unix_socket"):
        said["unix_socket"] = word("unix_socket")
    # What is encrypted stays so. PyMySQL has a context also where the server knows no TLS.
    if line:
        context = made._ssl_context
    else:
        context = made.ctx if isinstance(made._sock, ssl.SSLSocket) else None
    if context is not None:
        said["ssl"] = context
    return said
