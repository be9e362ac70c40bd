"""Transaction locks on PostgreSQL: a row locked FOR UPDATE, or an advisory lock.

An error aborts a PostgreSQL transaction, so a wait that may time out runs behind a savepoint: a
user who did not get the lock goes on with the transaction as it was. The time-out is set for the
transaction (SET LOCAL) and restored, so nothing of it is left in a session that a pooler hands to
another client.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from lockfast.errors import BackendError, ConfigurationError, Unsupported
from lockfast.stores.sql.errors import Deadlock, NoTables, Retry, RowLocked, SnapshotTooOld
from lockfast.stores.sql.postgres.dialect import Request, Statement
from lockfast.stores.sql.postgres.errors import exception_for
from lockfast.stores.sql.sessions import Statements, refuse, unwrapped
from lockfast.stores.sql.transactions import LockRow

_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# The start time tells servers apart, and a standby from its primary.
_SERVER = """current_database() || ', running since '
    || to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"""
SERVER = Statement("transaction_server", f"SELECT {_SERVER}", 0)
# $1 hash.
READ_ROW = Statement(
    "transaction_read_row",
    f"""
SELECT {_SERVER} || ', table ' || 'lockfast_transactions'::regclass::oid,
    (SELECT extract(epoch FROM clock_timestamp() - used)::float8 FROM lockfast_transactions
     WHERE hash = $1),
    coalesce((SELECT last_fence FROM lockfast_names WHERE hash = $1), 0),
    EXISTS (SELECT FROM lockfast_names
            WHERE hash = $1 AND id <> '' AND ends > clock_timestamp())
""",
    1,
)
# $1 hash, $2 name.
TOUCH = Statement(
    "transaction_touch",
    """
INSERT INTO lockfast_transactions VALUES ($1, $2, 0, clock_timestamp())
ON CONFLICT (hash) DO UPDATE SET used = excluded.used
""",
    2,
)
# $1 hash to start after, $2 limit, $3 seconds.
SCAN = Statement(
    "transaction_scan",
    """
SELECT encode(hash, 'hex'), used < clock_timestamp() - $3::float8 * interval '1 second'
FROM lockfast_transactions WHERE hash > $1 ORDER BY hash LIMIT $2
""",
    3,
)
# $1 hash, $2 seconds.
DELETE = Statement(
    "transaction_delete",
    """
DELETE FROM lockfast_transactions
WHERE hash = (SELECT hash FROM lockfast_transactions WHERE hash = $1
              AND used < clock_timestamp() - $2::float8 * interval '1 second'
              FOR UPDATE SKIP LOCKED)
""",
    2,
)

# In the user's transaction. A hash is formatted as hexadecimal digits.
READ_SESSION = f"""
SELECT {_SERVER}, to_regclass('lockfast_transactions')::oid::text,
    current_setting('transaction_isolation'), current_setting('lock_timeout')
"""
ROW = "SELECT fence FROM lockfast_transactions WHERE hash = decode('{}', 'hex')"
ADVANCE = f"""
UPDATE lockfast_transactions
SET fence = greatest(fence + 1, {{}}, {_US}), used = clock_timestamp()
WHERE hash = decode('{{}}', 'hex') RETURNING fence
"""
SAVEPOINT = "SAVEPOINT lockfast_lock"
UNDO = "ROLLBACK TO SAVEPOINT lockfast_lock"
RELEASE = "RELEASE SAVEPOINT lockfast_lock"
_DURATION = re.compile(r"\d+(us|ms|s|min|h|d)?").fullmatch


class PostgresTransactions:
    """`TransactionDialect` of PostgreSQL."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def session(self, connection: object, suspends: bool) -> PostgresSession:
        found = await unwrapped(connection)
        if isinstance(found, psycopg.AsyncConnection if not suspends else psycopg.Connection):
            entry_points = ("lockfast.aio.connect", "lockfast.connect")
            kind = ("an asyncio", "a blocking")[suspends]
            refuse(connection, f"it is {kind} connection: use {entry_points[suspends]} for it")
        if not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
            refuse(connection, f"{self._where} needs a connection of psycopg 3")
        return PostgresSession(found, self._where)

    def read_row(self, name_hash: bytes) -> Request:
        return Request(READ_ROW, (name_hash,))

    def decode_row(self, reply: Any) -> LockRow:
        server, age, fence, leased = (reply.get_value(0, column) for column in range(4))
        return LockRow(
            server.decode(), None if age is None else float(age), int(fence), leased == b"t"
        )

    def touch_row(self, name_hash: bytes, name: str) -> Request:
        return Request(TOUCH, (name_hash, name.encode()))

    def read_server(self) -> Request:
        return Request(SERVER, ())

    def decode_server(self, reply: Any) -> str:
        return str(reply.get_value(0, 0).decode())

    def scan(self, after: bytes, count: int, old: float) -> Request:
        return Request(SCAN, (after, b"%d" % count, repr(old).encode()))

    def decode_scan(self, reply: Any) -> list[tuple[bytes, bool]]:
        value = reply.get_value
        return [
            (bytes.fromhex(value(row, 0).decode()), value(row, 1) == b"t")
            for row in range(reply.ntuples)
        ]

    def delete_row(self, name_hash: bytes, old: float) -> Request:
        return Request(DELETE, (name_hash, repr(old).encode()))


class PostgresSession:
    """`Session` in the user's transaction."""

    def __init__(self, connection: Any, where: str) -> None:
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            refuse(connection, "its transaction has failed already: roll it back first")
        if status == TransactionStatus.IDLE and connection.autocommit:
            refuse(
                connection,
                "it commits after each statement, so the lock would end at once: begin a "
                "transaction (connection.transaction()), or turn autocommit off",
            )
        self._statements = Statements(connection, row_factory=tuple_row)
        self._where = where
        self._isolation = self._lock_timeout = ""

    async def server(self, *, table: bool) -> str:
        ((server, oid, self._isolation, self._lock_timeout),) = await self._execute(READ_SESSION)
        return f"{server}, table {oid}" if table else str(server)

    async def try_lock(self, name_hash: bytes) -> int | None:
        rows = await self._execute(f"{ROW} FOR UPDATE SKIP LOCKED".format(name_hash.hex()))
        if not rows and not self._sees_all and not await self._execute(ROW.format(name_hash.hex())):
            raise SnapshotTooOld  # the row was created after the snapshot
        return int(rows[0][0]) if rows else None

    async def lock_row(self, name_hash: bytes, timeout: float | None) -> int | None:
        rows = await self._with_timeout(f"{ROW} FOR UPDATE".format(name_hash.hex()), timeout)
        return int(rows[0][0]) if rows else None

    @property
    def _sees_all(self) -> bool:
        """True if each statement sees everything committed before it."""
        return self._isolation in ("read committed", "read uncommitted")

    async def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> int:
        ((new_fence,),) = await self._execute(ADVANCE.format(floor + 1, name_hash.hex()))
        return int(new_fence)

    async def advisory(self, name_hash: bytes, timeout: float | None) -> int:
        if not self._sees_all:
            raise Unsupported(
                f"an advisory lock in a {self._isolation} transaction: it would read data as old "
                "as its first statement, the one that waits for the lock, and nothing would detect "
                "that. Use READ COMMITTED, or the lock with a row (advisory=False)"
            )
        # Two names whose hashes share these 64 bits exclude each other, which is harmless.
        key = int.from_bytes(name_hash[:8], signed=True)
        ((free,),) = await self._execute(f"SELECT pg_try_advisory_xact_lock({key})")
        if not free:
            if timeout == 0:
                raise RowLocked
            await self._with_timeout(f"SELECT pg_advisory_xact_lock({key})::text", timeout)
        ((fence,),) = await self._execute(f"SELECT {_US}")
        return int(fence)

    async def _with_timeout(self, sql: str, timeout: float | None) -> list[Any]:
        """Execute a statement that may wait for up to ``timeout``, behind a savepoint."""
        limit = 0 if timeout is None else max(round(timeout * 1000), 1)
        await self._execute(SAVEPOINT)
        try:
            await self._execute(f"SET LOCAL lock_timeout = {limit}")
            rows = await self._execute(sql)
        except BaseException:
            with contextlib.suppress(Exception):  # the original error matters more
                await self._statements.execute(UNDO)
                await self._statements.execute(RELEASE)
            raise
        before = self._lock_timeout if _DURATION(self._lock_timeout) else "0"
        await self._execute(f"SET LOCAL lock_timeout = '{before}'")
        await self._execute(RELEASE)
        return rows

    async def _execute(self, sql: str) -> list[Any]:
        try:
            return await self._statements.execute(sql)
        except psycopg.Error as error:
            raise self._exception_for(error) from error

    def _exception_for(self, error: psycopg.Error) -> Exception:
        match error.sqlstate:
            case "55P03":
                return RowLocked()
            case "40P01":
                return Deadlock()
            case "40001":
                return SnapshotTooOld()
            case None:
                return BackendError(f"{self._where}: your connection was lost: {error}")
        message = str(error.diag.message_primary or error)
        mapped = exception_for(error.sqlstate, message, self._where)
        if isinstance(mapped, NoTables):
            return ConfigurationError(
                f"{self._where}: your connection does not see the table lockfast_transactions: "
                "its search_path leads elsewhere"
            )
        if isinstance(mapped, Retry):
            return BackendError(f"{self._where} reported: {message}")
        return mapped
