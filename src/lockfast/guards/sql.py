"""Guards for SQL: a column for rows that carry their own fence, a table of marks for the rest.

Tested on SQLite, MariaDB and PostgreSQL. You execute the statements on your connection, in your
transaction, because only there check and write are one atomic step.

**Rows with a fence column.** ``UPDATE … SET …, fence = :fence WHERE … AND fence <= :fence`` is safe
in every isolation level, and in autocommit too. The database locks the row and evaluates the
condition on its newest version: a second writer waits for the first one's commit and evaluates
again (READ COMMITTED; MariaDB always), or gets a serialization error (PostgreSQL from REPEATABLE
READ on, SQLite's BUSY). That error passes through: roll back and run the transaction again.

"No row changed" does not yet mean stale. MariaDB and MySQL count rows that *changed*, unless the
connection asked for FOUND_ROWS: a holder that writes the same values twice gets 0. So if no row
changed, a SELECT reads the row, and its fence decides. That SELECT locks (FOR UPDATE): in
REPEATABLE READ a plain SELECT of MariaDB shows the row as of the start of the transaction, before
the other writer, while the UPDATE saw the newest version.

**The table of marks.** One row per name: the highest fence seen. A guarded transaction first raises
the mark, if its fence is higher, and then reads it. Both statements lock the mark's row until the
transaction ends, even if they change nothing:

- PostgreSQL locks the row of ON CONFLICT DO UPDATE before it evaluates its WHERE; MariaDB locks the
  row of ON DUPLICATE KEY UPDATE even if it stays the same; SQLite locks the whole database.
- So one of two writers comes first. The second waits for its commit and then reads its mark. If the
  first had the lower fence, the second overwrites its data, as it should; if it had the higher one,
  the second is refused. If the first rolls back, its mark goes with its data.
- Two writers that insert the first mark of a name collide in the primary key, with the same effect.
- REPEATABLE READ and SERIALIZABLE may answer the second writer with an error instead of a wait. It
  passes through: roll back and run the transaction again.

Row counts, which drivers define differently, are not used. In autocommit the row lock would end
with the statement, and a pause before the write would let a stale writer in; `SqlGuard` refuses
autocommit.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lockfast.errors import ConfigurationError
from lockfast.guards.fence import fence_of, refuse_if_stale
from lockfast.inputs import checked_name

Dialect = Literal["sqlite", "mariadb", "mysql", "postgresql"]
Style = Literal["named", "pyformat", "qmark"]
Parameters = dict[str, str | int] | tuple[str | int, ...]

_PLACEHOLDERS = {"named": ":{}", "pyformat": "%({})s", "qmark": "?"}

# One row per name. Names are compared byte by byte, whatever the collation of the database: 'a' and
# 'A' are two resources. 1000 bytes fit into an index everywhere.
_CREATE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS {table} "
    "(name TEXT NOT NULL COLLATE BINARY PRIMARY KEY, fence BIGINT NOT NULL) WITHOUT ROWID",
    # InnoDB, explicitly: an engine without transactions would guard nothing.
    "mariadb": "CREATE TABLE IF NOT EXISTS {table} "
    "(name VARBINARY(1000) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL) ENGINE=InnoDB",
    "postgresql": "CREATE TABLE IF NOT EXISTS {table} "
    '(name TEXT COLLATE "C" NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)',
}
_ON_CONFLICT = (
    "INSERT INTO {table} AS mark (name, fence) VALUES ({name}, {fence}) "
    "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE mark.fence < excluded.fence"
)
# MariaDB gets names as hexadecimal digits, which no connection character set changes and which
# contain no quotes.
_RAISE = {
    "sqlite": _ON_CONFLICT,
    "mariadb": "INSERT INTO {table} (name, fence) VALUES (UNHEX({name}), {fence}) "
    "ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
    "postgresql": _ON_CONFLICT,
}
_READ = {
    "sqlite": "SELECT fence FROM {table} WHERE name = {name}",
    "mariadb": "SELECT fence FROM {table} WHERE name = UNHEX({name}) FOR UPDATE",
    "postgresql": "SELECT fence FROM {table} WHERE name = {name} FOR UPDATE",
}


class FenceColumn:
    """SQL fragments for rows that carry their own fence. Executes nothing.

    ``style`` is the placeholder style of your driver: ``named`` (:fence), ``pyformat`` (%(fence)s)
    or ``qmark`` (?).
    """

    def __init__(self, dialect: Dialect, *, style: Style, column: str = "fence") -> None:
        placeholder = _placeholder(style, "fence")
        self._column = _identifier(column, "column")
        self._locking = "" if _known(dialect) == "sqlite" else " FOR UPDATE"
        #: For CREATE TABLE, or after ALTER TABLE … ADD COLUMN, in every dialect. An INTEGER would
        #: be too small for fences in MariaDB and PostgreSQL.
        self.ddl = f"{column} BIGINT NOT NULL DEFAULT 0"
        #: For UPDATE … SET.
        self.assign = f"{column} = {placeholder}"
        #: For the WHERE of the same UPDATE. ``<=``, because the same fence may write again.
        self.where = f"{column} <= {placeholder}"

    def look(self, table: str, where: str) -> str:
        """Return the SELECT to execute in the same transaction if the UPDATE changed no row.

        ``where`` is your SQL condition that finds the row, with your own placeholders. Pass the
        fetched row to `check`.
        """
        table = _identifier(table, "table")
        return f"SELECT {self._column} FROM {table} WHERE {where}{self._locking}"

    def check(self, name: str, hold: object, row: object) -> None:
        """Raise `StaleFence` unless the row that `look` found has this fence or a lower one.

        ``row=None`` means that there is no such row; nothing was written, so that raises too.
        """
        refuse_if_stale(checked_name(name), fence_of(hold), _seen(row))


class FenceTable:
    """SQL statements for the table of marks, for any driver and for asyncio. Executes nothing.

        for step in table.steps("report", hold):
            await cursor.execute(*step)
        table.check("report", hold, await cursor.fetchone())

    Then write in the same transaction; never in autocommit, where the check would guard nothing.
    """

    def __init__(self, dialect: Dialect, *, style: Style, table: str = "lockfast_fences") -> None:
        self._hexadecimal = _known(dialect) == "mariadb"
        self._positional = style == "qmark"
        texts = {"table": _identifier(table, "table")}
        texts |= {name: _placeholder(style, name) for name in ("name", "fence")}
        #: Execute this once, when you set up your database.
        self.ddl = _CREATE[_known(dialect)].format(**texts)
        self._raise = _RAISE[_known(dialect)].format(**texts)
        self._read = _READ[_known(dialect)].format(**texts)

    def steps(self, name: str, hold: object) -> tuple[tuple[str, Parameters], ...]:
        """Return the statements and their parameters, to execute in order before your write.

        Execute them in the transaction of the write. The last one returns the row for `check`.
        """
        name = checked_name(name)
        encoded = name.encode().hex() if self._hexadecimal else name
        parameters: dict[str, str | int] = {"name": encoded, "fence": fence_of(hold)}
        if self._positional:
            return (self._raise, tuple(parameters.values())), (self._read, (encoded,))
        return (self._raise, parameters), (self._read, {"name": encoded})

    def check(self, name: str, hold: object, row: object) -> None:
        """Raise `StaleFence` unless the row shows this fence as the highest; roll back then."""
        refuse_if_stale(checked_name(name), fence_of(hold), _seen(row))


class SqlGuard:
    """Guard of your transaction, through a table of marks, on sqlite3, PyMySQL or psycopg.

        with connection:  # your transaction
            SqlGuard(connection).check("report", hold)
            …write…

    ``connection`` may be a cursor too. Between `check` and the end of the transaction, other
    guarded writers of the name wait, for as long as the database lets them
    (``innodb_lock_wait_timeout``, ``lock_timeout``, SQLite's ``timeout``). The guard never commits
    or rolls back; errors of the database pass through.
    """

    def __init__(self, connection: object, *, table: str = "lockfast_fences") -> None:
        self._connection: Any = getattr(connection, "connection", connection)
        kinds = {kind.__module__.partition(".")[0] for kind in type(self._connection).__mro__}
        driver = next((name for name in _DRIVERS if name in kinds), None)
        if driver is None or inspect.iscoroutinefunction(self._connection.commit):
            raise ConfigurationError(
                f"SqlGuard takes a blocking connection of {', '.join(_DRIVERS)}, not "
                f"{type(connection).__module__}.{type(connection).__qualname__}: "
                "use FenceTable, which gives you the statements"
            )
        dialect, style, self._is_in_transaction = _DRIVERS[driver]
        self._table = FenceTable(dialect, style=style, table=table)

    def create(self) -> None:
        """Create the table if it does not exist: once, when you set up your database.

        Commit as for other DDL; MariaDB implicitly commits the open transaction.
        """
        self._execute((self._table.ddl, ()))

    def check(self, name: str, hold: object) -> None:
        """Record the fence of ``hold`` as the highest of ``name``, or raise `StaleFence`.

        Blocks while another transaction that checked the name is open. Write after this call and
        before you commit; roll back if it raises. Raises `ConfigurationError` in autocommit.
        """
        raising, reading = self._table.steps(name, hold)
        self._execute(raising)
        if not self._is_in_transaction(self._connection):
            raise ConfigurationError(
                f"{name!r}: the connection is in autocommit mode, where a stale writer could write "
                "between this check and your write: begin a transaction first"
            )
        self._table.check(name, hold, self._execute(reading))

    def _execute(self, step: tuple[str, Parameters]) -> object:
        # A cursor of our own: the user's cursor may still have rows to fetch.
        cursor = self._connection.cursor()
        try:
            cursor.execute(*step)
            return cursor.fetchone() if cursor.description else None
        finally:
            cursor.close()


_DRIVERS: dict[str, tuple[Dialect, Style, Callable[[Any], bool]]] = {
    "sqlite3": ("sqlite", "named", lambda connection: connection.in_transaction),
    # SERVER_STATUS_IN_TRANS, from the server's reply to our INSERT.
    "pymysql": ("mariadb", "pyformat", lambda connection: connection.server_status & 1),
    # IDLE is 0.
    "psycopg": (
        "postgresql",
        "pyformat",
        lambda connection: connection.info.transaction_status != 0,
    ),
}


def _known(dialect: Dialect) -> str:
    if dialect == "mysql":
        return "mariadb"
    if dialect not in _CREATE:
        raise ConfigurationError(f"dialect={dialect!r} must be one of {', '.join(_CREATE)}, mysql")
    return dialect


def _placeholder(style: Style, name: str) -> str:
    if style not in _PLACEHOLDERS:
        raise ConfigurationError(f"style={style!r} must be one of {', '.join(_PLACEHOLDERS)}")
    return _PLACEHOLDERS[style].format(name)


def _identifier(text: str, what: str) -> str:
    """Return the name of a table or column if it is safe to use in statements.

    Only letters, digits and underscores are; a table may be prefixed with its schema.
    """
    part = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
    pattern = rf"({part}\.)?{part}" if what == "table" else part
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ConfigurationError(
            f"{what}={text!r} must be 1 to 63 letters, digits or underscores, no digit first"
        )
    return text


def _seen(row: object) -> int | None:
    """Return the only value of a row, which drivers return as tuple, dict, record or bare value."""
    match row:
        case None:
            return None
        case int():
            return row
        case Mapping():
            (seen,) = row.values()
        case _:
            (seen,) = row  # type: ignore[misc]
    if not isinstance(seen, int):
        raise ConfigurationError(
            f"the fence column contains a {type(seen).__name__} in the database: {seen!r}"
        )
    return seen
