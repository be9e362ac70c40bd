"""Fences in SQL: for rows that carry their own, and a table of marks for everything else.

Tried on SQLite, MariaDB and PostgreSQL. The statements are yours to execute, on your connection, in
your transaction, because only there check and write are one step.

**Rows with a fence column.** ``UPDATE … SET …, fence = :fence WHERE … AND fence <= :fence`` is safe
in every isolation level, also in autocommit. The database locks the row, and judges the condition
on its newest version: a second writer waits for the first one's commit and judges again (READ
COMMITTED; MariaDB always), or is told that it cannot be serialized (PostgreSQL from REPEATABLE READ
on, SQLite's BUSY). That error passes through: roll back and do it all again.

"No row changed" does not yet mean stale. MariaDB and MySQL count rows that *changed*, unless the
connection asked for FOUND_ROWS: a holder that writes the same values twice gets 0. So when nothing
changed the row is looked at, and the number that is there decides. The look locks (FOR UPDATE):
in REPEATABLE READ a plain SELECT of MariaDB shows the row as it was when the transaction began,
before the other writer, while UPDATE saw the newest.

**The table of marks.** One row for each name: the highest fence seen. A guarded transaction first
raises the mark, if its fence is higher, and reads it again. Both statements lock the mark's row
until the transaction ends, also when they change nothing:

- PostgreSQL locks the row of ON CONFLICT DO UPDATE before it judges its WHERE; MariaDB locks the
  row of ON DUPLICATE KEY UPDATE though it stays the same; SQLite locks the whole database.
- So of two writers one comes first. The other waits for its commit and then reads its mark. If the
  first had the lower fence, its data is overwritten by the second, as it should be; if it had the
  higher one, the second is refused. If the first rolls back, its mark goes with its data.
- Two who bring the first fence of a name collide in the primary key: the same.
- REPEATABLE READ and SERIALIZABLE may answer the second with an error instead of letting it wait.
  It passes through: roll back and do it all again.

No count of rows is used there, so the drivers' different ideas of it do not matter. In autocommit
the lock would end with the statement, and a pause before the write would let a stale one in;
`SqlGuard` refuses that.
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

_PLACES = {"named": ":{}", "pyformat": "%({})s", "qmark": "?"}

# One row for each name. Names are compared byte by byte, whatever collation the database has: 'a'
# and 'A' are two resources. 1000 bytes fit into an index everywhere.
_CREATE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS {table} "
    "(name TEXT NOT NULL COLLATE BINARY PRIMARY KEY, fence BIGINT NOT NULL) WITHOUT ROWID",
    # InnoDB by name: an engine without transactions would guard nothing.
    "mariadb": "CREATE TABLE IF NOT EXISTS {table} "
    "(name VARBINARY(1000) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL) ENGINE=InnoDB",
    "postgresql": "CREATE TABLE IF NOT EXISTS {table} "
    '(name TEXT COLLATE "C" NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)',
}
_ON_CONFLICT = (
    "INSERT INTO {table} AS mark (name, fence) VALUES ({name}, {fence}) "
    "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE mark.fence < excluded.fence"
)
# MariaDB's names travel as hexadecimal digits: bytes that no character set of a connection changes,
# and no quote in it can end.
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
    """The column of rows that carry their own fence, and the words to write them with.

    ``style`` is how your driver wants parameters: ``named`` (:fence), ``pyformat`` (%(fence)s) or
    ``qmark`` (?). All texts are ready when it is made; nothing is executed.
    """

    def __init__(self, dialect: Dialect, *, style: Style, column: str = "fence") -> None:
        waiter = _waiter(style, "fence")
        self._column = _identifier(column, "column")
        self._locking = "" if _known(dialect) == "sqlite" else " FOR UPDATE"
        #: For CREATE TABLE, or after ALTER TABLE … ADD COLUMN. The same everywhere; an INTEGER
        #: would be too small for fences in MariaDB and PostgreSQL.
        self.ddl = f"{column} BIGINT NOT NULL DEFAULT 0"
        #: For UPDATE … SET.
        self.assign = f"{column} = {waiter}"
        #: For the WHERE of the same UPDATE. Its own fence may write again, hence not ``<``.
        self.where = f"{column} <= {waiter}"

    def look(self, table: str, where: str) -> str:
        """The question to ask in the same transaction if UPDATE changed no row. ``where`` is your
        SQL that finds the row, with your own placeholders."""
        table = _identifier(table, "table")
        return f"SELECT {self._column} FROM {table} WHERE {where}{self._locking}"

    def check(self, name: str, hold: object, row: object) -> None:
        """`StaleFence` unless this row, which `look` found, has our fence or an older one. None:
        there is no such row, so nothing was written, and that is refused too."""
        refuse_if_stale(checked_name(name), fence_of(hold), _seen(row))


class FenceTable:
    """The table of marks as statements, for any driver and for asyncio. Nothing is executed.

    for step in table.steps("report", hold):
        await cursor.execute(*step)
    table.check("report", hold, await cursor.fetchone())

    Then write, in the same transaction: never in autocommit, where the check would guard nothing.
    """

    def __init__(self, dialect: Dialect, *, style: Style, table: str = "lockfast_fences") -> None:
        self._hexadecimal = _known(dialect) == "mariadb"
        self._positional = style == "qmark"
        texts = {"table": _identifier(table, "table")}
        texts |= {word: _waiter(style, word) for word in ("name", "fence")}
        #: Execute it once, when you set up your database.
        self.ddl = _CREATE[_known(dialect)].format(**texts)
        self._raise = _RAISE[_known(dialect)].format(**texts)
        self._read = _READ[_known(dialect)].format(**texts)

    def steps(self, name: str, hold: object) -> tuple[tuple[str, Parameters], ...]:
        """Statements with their parameters, to be executed in this order, before the write and in
        its transaction. The last one gives the row for `check`."""
        name = checked_name(name)
        spelled = name.encode().hex() if self._hexadecimal else name
        said: dict[str, str | int] = {"name": spelled, "fence": fence_of(hold)}
        if self._positional:
            return (self._raise, tuple(said.values())), (self._read, (spelled,))
        return (self._raise, said), (self._read, {"name": spelled})

    def check(self, name: str, hold: object, row: object) -> None:
        """`StaleFence` unless this row says that our fence is the highest. Roll back then."""
        refuse_if_stale(checked_name(name), fence_of(hold), _seen(row))


class SqlGuard:
    """The table of marks on a connection (or cursor) of sqlite3, PyMySQL or psycopg.

        with connection:  # your transaction
            SqlGuard(connection).check("report", hold)
            …write…

    Between `check` and the end of the transaction, other guarded writers of the name wait, as long
    as the database lets them (``innodb_lock_wait_timeout``, ``lock_timeout``, SQLite's
    ``timeout``). Commits nothing and rolls nothing back; errors of the database pass through.
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
        """Make the table if it is not there: once, when you set up your database. Commit it as you
        commit other DDL; MariaDB commits what was open."""
        self._execute((self._table.ddl, ()))

    def check(self, name: str, hold: object) -> None:
        """Raise the mark of this name to our fence, or `StaleFence`. Blocks while another
        transaction that checked it is open. Write afterwards, before you commit; if it raises,
        roll back."""
        raising, reading = self._table.steps(name, hold)
        self._execute(raising)
        if not self._is_in_transaction(self._connection):
            raise ConfigurationError(
                f"{name!r}: the connection commits after each statement, so that nothing would "
                "keep a stale writer out between this check and your write: begin a transaction"
            )
        self._table.check(name, hold, self._execute(reading))

    def _execute(self, step: tuple[str, Parameters]) -> object:
        # A cursor of our own: the user's may have rows that nobody has fetched yet.
        cursor = self._connection.cursor()
        try:
            cursor.execute(*step)
            return cursor.fetchone() if cursor.description else None
        finally:
            cursor.close()


_DRIVERS: dict[str, tuple[Dialect, Style, Callable[[Any], bool]]] = {
    "sqlite3": ("sqlite", "named", lambda connection: connection.in_transaction),
    # SERVER_STATUS_IN_TRANS, as the server said with its answer to our INSERT.
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
        raise ConfigurationError(f"dialect={dialect!r}: {', '.join(_CREATE)} or mysql")
    return dialect


def _waiter(style: Style, word: str) -> str:
    if style not in _PLACES:
        raise ConfigurationError(f"style={style!r}: {', '.join(_PLACES)}")
    return _PLACES[style].format(word)


def _identifier(text: str, what: str) -> str:
    """A name of a table or column. It becomes part of statements, so it is letters, digits and
    underscores; a table may have a schema before it."""
    part = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
    pattern = rf"({part}\.)?{part}" if what == "table" else part
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ConfigurationError(
            f"{what}={text!r}: up to 63 letters, digits and underscores, not a digit first"
        )
    return text


def _seen(row: object) -> int | None:
    """The only number of a row, as drivers give rows: tuples, dicts, records, or the value."""
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
        raise ConfigurationError(f"a fence of type {type(seen).__name__} in the database: {seen!r}")
    return seen
