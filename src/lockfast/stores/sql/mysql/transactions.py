"""Transaction locks on MariaDB and MySQL: a row locked FOR UPDATE.

The server counts lock time-outs in whole seconds: whole seconds are waited for by the server, in
its order of service, and the rest of a second by retrying. A time-out rolls back the statement
alone, unless the server is configured otherwise (innodb_rollback_on_timeout); a deadlock rolls back
the transaction.

The state of the user's session is preserved: LAST_INSERT_ID() stays, and the time-out is restored.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncmy.cursors
import pymysql.cursors
from asyncmy.connection import Connection as AsyncmyConnection
from asyncmy.errors import MySQLError
from pymysql.constants import SERVER_STATUS

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError, Unsupported
from lockfast.stores.sql.errors import Deadlock, NoTables, Retry, RowLocked, SnapshotTooOld
from lockfast.stores.sql.mysql.connections import code_and_message
from lockfast.stores.sql.mysql.dialect import filled, literal
from lockfast.stores.sql.mysql.errors import exception_for
from lockfast.stores.sql.mysql.prepared import Result
from lockfast.stores.sql.sessions import Statements, refuse, unwrapped
from lockfast.stores.sql.transactions import LockRow

_NOW = "UTC_TIMESTAMP(6)"
_US = f"TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {_NOW})"
_SERVER = "CONCAT(@@hostname, ':', @@port, '/', IFNULL(DATABASE(), '(none)'))"
# hash, hash, hash.
READ_ROW = f"""
SELECT {_SERVER},
    (SELECT TIMESTAMPDIFF(MICROSECOND, used, {_NOW}) FROM lockfast_transactions WHERE hash = %s),
    IFNULL((SELECT last_fence FROM lockfast_names WHERE hash = %s), 0),
    EXISTS (SELECT 1 FROM lockfast_names WHERE hash = %s AND ends > {_NOW})
"""
# hash, name.
TOUCH = f"""
INSERT INTO lockfast_transactions (hash, name, fence, used) VALUES (%s, %s, 0, {_NOW})
ON DUPLICATE KEY UPDATE used = VALUES(used)
"""
# seconds, hash to start after, limit.
SCAN = f"""
SELECT HEX(hash), used < {_NOW} - INTERVAL %s SECOND FROM lockfast_transactions
WHERE hash > %s ORDER BY hash LIMIT %s
"""
# hash, seconds.
DELETE = f"""
DELETE FROM lockfast_transactions WHERE hash = %s AND used < {_NOW} - INTERVAL %s SECOND
"""

# In the user's transaction.
READ_SESSION = f"SELECT {_SERVER}, @@SESSION.innodb_lock_wait_timeout"
STATUS = "DO 0"  # drivers update their server status only from replies without rows
LOCK = "SELECT fence FROM lockfast_transactions WHERE hash = {} FOR UPDATE"
# The clock, and the row as the transaction's snapshot shows it, which may be older than the locked
# one.
CLOCK = f"SELECT {_US}"
SNAPSHOT = f"SELECT {_US}, (SELECT fence FROM lockfast_transactions WHERE hash = {{}})"
ADVANCE = f"UPDATE lockfast_transactions SET fence = {{}}, used = {_NOW} WHERE hash = {{}}"
SET_TIMEOUT = "SET SESSION innodb_lock_wait_timeout = {}"

FOREVER = 100_000_000  # seconds: the most that MariaDB accepts; three years
RETRY_EVERY = 0.01


class MySQLTransactions:
    """`TransactionDialect` of MariaDB and MySQL."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def session(self, connection: object, suspends: bool) -> MySQLSession:
        found = await unwrapped(connection)
        if isinstance(found, AsyncmyConnection if not suspends else pymysql.Connection):
            entry_points = ("lockfast.aio.connect", "lockfast.connect")
            kind = ("an asyncio", "a blocking")[suspends]
            refuse(connection, f"it is {kind} connection: use {entry_points[suspends]} for it")
        if not isinstance(found, AsyncmyConnection | pymysql.Connection):
            refuse(
                connection, f"{self._where} needs a connection of PyMySQL, or of asyncmy in asyncio"
            )
        return MySQLSession(found, suspends, self._where)

    def read_row(self, name_hash: bytes) -> str:
        return filled(READ_ROW, name_hash, name_hash, name_hash)

    def decode_row(self, reply: list[Result]) -> LockRow:
        server, age, fence, leased = reply[0].rows[0]
        return LockRow(
            str(server), None if age is None else int(age) / 1e6, int(fence), bool(int(leased))
        )

    def touch_row(self, name_hash: bytes, name: str) -> str:
        return filled(TOUCH, name_hash, name)

    def read_server(self) -> str:
        raise Unsupported(
            f"advisory=True: {self._where} has no advisory lock that ends with a transaction "
            "(GET_LOCK ends with the session, which a pool hands to another caller)"
        )

    def decode_server(self, reply: list[Result]) -> str:
        return str(reply[0].rows[0][0])

    def scan(self, after: bytes, count: int, old: float) -> str:
        return filled(SCAN, round(old), after, count)

    def decode_scan(self, reply: list[Result]) -> list[tuple[bytes, bool]]:
        return [(bytes.fromhex(name_hash), bool(old)) for name_hash, old in reply[0].rows]

    def delete_row(self, name_hash: bytes, old: float) -> str:
        return filled(DELETE, name_hash, round(old))


class MySQLSession:
    """`Session` in the user's transaction."""

    def __init__(self, connection: Any, suspends: bool, where: str) -> None:
        kind = asyncmy.cursors.Cursor if suspends else pymysql.cursors.Cursor
        self._statements = Statements(connection, cursor=kind)
        self._connection = connection
        self._suspends = suspends
        self._where = where
        self._lock_wait_timeout = 50
        self._has_read = True
        if connection.get_autocommit() and not self._in_transaction:
            refuse(
                connection,
                "it commits after each statement, so the lock would end at once: begin a "
                "transaction (connection.begin()), or turn autocommit off",
            )

    @property
    def _in_transaction(self) -> bool:
        """True according to the status in the server's last reply without rows."""
        status = self._connection.server_status or 0
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    async def server(self, *, table: bool) -> str:
        ((server, lock_wait_timeout),) = await self._execute(READ_SESSION)
        self._lock_wait_timeout = int(lock_wait_timeout)
        await self._execute(STATUS)
        self._has_read = self._in_transaction
        return str(server)

    async def try_lock(self, name_hash: bytes) -> int | None:
        return self._fence(await self._execute(f"{LOCK} SKIP LOCKED".format(literal(name_hash))))

    def _fence(self, rows: list[Any]) -> int | None:
        return int(rows[0][0]) if rows else None

    async def lock_row(self, name_hash: bytes, timeout: float | None) -> int | None:
        until = None if timeout is None else clock.now() + timeout
        whole = FOREVER if timeout is None else int(timeout)
        if whole:
            try:
                return self._fence(await self._with_timeout(LOCK.format(literal(name_hash)), whole))
            except RowLocked:
                if not self._in_transaction:
                    raise RowLocked(
                        ". The server rolled back your whole transaction "
                        "(innodb_rollback_on_timeout)"
                    ) from None
        while until is None or clock.now() < until:
            await self._pause()
            fence = await self.try_lock(name_hash)
            if fence is not None:
                return fence
        raise RowLocked

    async def _pause(self) -> None:
        if self._suspends:
            await asyncio.sleep(RETRY_EVERY)
        else:
            time.sleep(RETRY_EVERY)

    async def _with_timeout(self, sql: str, seconds: int) -> list[Any]:
        await self._execute(SET_TIMEOUT.format(seconds))
        try:
            rows = await self._execute(sql)
        except Exception:  # on an interrupt, the driver has closed the connection
            await self._restore_timeout()
            raise
        await self._restore_timeout()
        return rows

    async def _restore_timeout(self) -> None:
        try:
            await self._execute(SET_TIMEOUT.format(self._lock_wait_timeout))
        except BackendError:
            pass  # the connection is lost, and the setting with it

    async def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> int:
        if self._has_read:
            ((now, snapshot_fence),) = await self._execute(SNAPSHOT.format(literal(name_hash)))
            if int(snapshot_fence or 0) != fence:
                raise SnapshotTooOld
        else:  # reading the row would take a snapshot, too old for the next lock
            ((now,),) = await self._execute(CLOCK)
        new_fence = max(fence + 1, floor + 1, int(now))
        await self._execute(ADVANCE.format(new_fence, literal(name_hash)))
        if not self._in_transaction:
            refuse(self._connection, "it commits after each statement: begin a transaction")
        return new_fence

    async def advisory(self, name_hash: bytes, timeout: float | None) -> int:
        raise Unsupported("there is no advisory lock that ends with a transaction")

    async def _execute(self, sql: str) -> list[Any]:
        try:
            return await self._statements.execute(sql)
        except (pymysql.MySQLError, MySQLError) as error:
            raise self._exception_for(*code_and_message(error)) from error
        except OSError as error:
            raise BackendError(f"{self._where}: your connection was lost: {error}") from error

    def _exception_for(self, code: int, message: str) -> Exception:
        match code:
            case 1205 | 3572:
                return RowLocked()
            case 1213:
                return Deadlock(", and rolled back your whole transaction")
            case 1020:
                return SnapshotTooOld()
            case 0:
                return BackendError(f"{self._where}: your connection was lost: {message}")
        mapped = exception_for(code, message, self._where)
        if isinstance(mapped, NoTables):
            return ConfigurationError(
                f"{self._where}: your connection does not see the table lockfast_transactions: it "
                "leads to another database"
            )
        if isinstance(mapped, Retry):
            return BackendError(f"{self._where} reported: {message}")
        return mapped
