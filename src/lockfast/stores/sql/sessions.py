"""The user's own connection, in either colour: found inside SQLAlchemy, and spoken to.

What is asked here is asked in the user's transaction. Statements carry no parameters: what is put
into them are numbers and hexadecimal digits that we wrote.
"""

from __future__ import annotations

import inspect
from typing import Any, Never

from lockfast.errors import ConfigurationError


async def done(value: Any) -> Any:
    """What a driver of either colour returned: the value, or what to await for it."""
    return await value if inspect.isawaitable(value) else value


async def unwrapped(connection: Any) -> Any:
    """The driver's connection. A SQLAlchemy connection or session is one, inside; if it has begun
    nothing yet it begins now, so that its ``commit`` knows that there is something to commit."""
    kinds = type(connection).__mro__
    if not any(kind.__module__.split(".")[0] == "sqlalchemy" for kind in kinds):
        return connection
    names = {kind.__name__ for kind in kinds}
    if names & {"Session", "AsyncSession", "scoped_session", "async_scoped_session"}:
        connection = await done(connection.connection())
    elif hasattr(connection, "driver_connection"):
        return connection.driver_connection
    elif not names & {"Connection", "AsyncConnection"}:
        refuse(connection, "an engine has many connections: give the one with your transaction")
    if not connection.in_transaction():
        await done(connection.begin())
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
    """Statement after statement on a connection, with cursors of our own: the user's may have rows
    that nobody has fetched yet."""

    def __init__(self, connection: Any, **cursor: Any) -> None:
        self.connection = connection
        self._cursor = cursor

    async def ask(self, sql: str) -> list[Any]:
        """Its rows. Errors are the driver's."""
        cursor = self.connection.cursor(**self._cursor)
        try:
            await done(cursor.execute(sql))
            return list(await done(cursor.fetchall())) if cursor.description else []
        finally:
            await done(cursor.close())
