"""Statements in the user's own transaction, on a driver's or SQLAlchemy's connection of either API.

Statements carry no parameters: the only values formatted into them are numbers and hexadecimal
digits that lockfast produced.
"""

from __future__ import annotations

import inspect
from typing import Any, Never

from lockfast.errors import ConfigurationError


async def awaited(value: Any) -> Any:
    """Return the result of a driver's call: the value itself, or its awaited result."""
    return await value if inspect.isawaitable(value) else value


async def unwrapped(connection: Any) -> Any:
    """Return the driver's connection, also from inside a SQLAlchemy connection or session.

    A SQLAlchemy connection without a transaction begins one now: otherwise its ``commit`` would not
    know that there is something to commit.
    """
    kinds = type(connection).__mro__
    if not any(kind.__module__.split(".")[0] == "sqlalchemy" for kind in kinds):
        return connection
    names = {kind.__name__ for kind in kinds}
    if names & {"Session", "AsyncSession", "scoped_session", "async_scoped_session"}:
        connection = await awaited(connection.connection())
    elif hasattr(connection, "driver_connection"):
        return connection.driver_connection
    elif not names & {"Connection", "AsyncConnection"}:
        refuse(
            connection,
            "an engine has many connections: pass the one that has your transaction open",
        )
    if not connection.in_transaction():
        await awaited(connection.begin())
    if hasattr(connection, "get_raw_connection"):
        return (await connection.get_raw_connection()).driver_connection
    return connection.connection.driver_connection


def refuse(connection: object, why: str) -> Never:
    kind = type(connection)
    raise ConfigurationError(
        f"connection= takes the connection that has your transaction open, not "
        f"{kind.__module__}.{kind.__qualname__}: {why}"
    )


class Statements:
    """Executor of statements on a connection, each on a cursor of its own: the user's cursors may
    have rows that were not fetched yet."""

    def __init__(self, connection: Any, **cursor: Any) -> None:
        self.connection = connection
        self._cursor = cursor

    async def execute(self, sql: str) -> list[Any]:
        """Return the rows. Errors are the driver's."""
        cursor = self.connection.cursor(**self._cursor)
        try:
            await awaited(cursor.execute(sql))
            return list(await awaited(cursor.fetchall())) if cursor.description else []
        finally:
            await awaited(cursor.close())
