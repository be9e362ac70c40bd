"""Transaction locks on MariaDB and MySQL: a row locked FOR UPDATE.

The server counts lock time-outs in whole seconds: whole seconds are waited for by the server, in
its order of service, and the rest of a second by retrying. A time-out rolls back the statement
alone, unless the server is configured otherwise (innodb_rollback_on_timeout); a deadlock rolls back
the transaction.

The state of the user's session is preserved: LAST_INSERT_ID() stays, and the time-out is restored.
"""

from __future__ import annotations

from typing import Any, Never

import asyncmy.cursors
import pymysql.cursors
from asyncmy.connection import Connection as AsyncmyConnection
from asyncmy.errors import MySQLError
from pymysql.constants import SERVER_STATUS

from lockfast import clock
from lockfast.errors import BackendError, Unsupported
from lockfast.stores.sql import transactions as shared
from lockfast.stores.sql.channel import Channel
from lockfast.stores.sql.mysql.connections import code_and_message
from lockfast.stores.sql.mysql.dialect import exception_for, filled, literal
from lockfast.stores.steps import Steps

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


class MySQLSession(shared.Session):
    drivers = (pymysql.Connection, AsyncmyConnection)
    needs = "PyMySQL, or of asyncmy in asyncio"
    rows = shared.RowRequests(
        read=lambda name_hash: filled(READ_ROW, name_hash, name_hash, name_hash),
        touch=lambda name_hash, name: filled(TOUCH, name_hash, name),
        server=lambda: _refuse_advisory(),
        scan=lambda after, count, old: filled(SCAN, round(old), after, count),
        delete=lambda name_hash, old: filled(DELETE, name_hash, round(old)),
    )
    lost_by = (pymysql.MySQLError, MySQLError, OSError)

    def __init__(self, connection: Any, where: str, channel: Channel) -> None:
        super().__init__(connection, where, channel)
        kind = asyncmy.cursors.Cursor if channel.suspends else pymysql.cursors.Cursor
        self.cursor_options = {"cursor": kind}
        self._lock_wait_timeout = 50
        self._has_read = True
        if connection.get_autocommit() and not self._in_transaction:
            shared.refuse(
                connection,
                "it commits after each statement, so the lock would end at once: begin a "
                "transaction (connection.begin()), or turn autocommit off",
            )

    @property
    def _in_transaction(self) -> bool:
        """True according to the status in the server's last reply without rows."""
        status = self._connection.server_status or 0
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def server(self, *, table: bool) -> Steps[str]:
        ((server, lock_wait_timeout),) = yield from self._executing(READ_SESSION)
        self._lock_wait_timeout = int(lock_wait_timeout)
        yield from self._executing(STATUS)
        self._has_read = self._in_transaction
        return str(server)

    def try_lock(self, name_hash: bytes) -> Steps[int | None]:
        sql = f"{LOCK} SKIP LOCKED".format(literal(name_hash))
        return self._fence((yield from self._executing(sql)))

    def _fence(self, rows: list[Any]) -> int | None:
        return int(rows[0][0]) if rows else None

    def lock_row(self, name_hash: bytes, timeout: float | None) -> Steps[int | None]:
        until = None if timeout is None else clock.now() + timeout
        whole = FOREVER if timeout is None else int(timeout)
        if whole:
            try:
                sql = LOCK.format(literal(name_hash))
                return self._fence((yield from self._with_timeout(sql, whole)))
            except shared.RowLocked:
                if not self._in_transaction:
                    raise shared.RowLocked(
                        ". The server rolled back your whole transaction "
                        "(innodb_rollback_on_timeout)"
                    ) from None
        while until is None or clock.now() < until:
            yield self._channel.pause(RETRY_EVERY)
            fence = yield from self.try_lock(name_hash)
            if fence is not None:
                return fence
        raise shared.RowLocked

    def _with_timeout(self, sql: str, seconds: int) -> Steps[list[Any]]:
        yield from self._executing(SET_TIMEOUT.format(seconds))
        try:
            rows = yield from self._executing(sql)
        except Exception:  # on an interrupt, the driver has closed the connection
            yield from self._restore_timeout()
            raise
        yield from self._restore_timeout()
        return rows

    def _restore_timeout(self) -> Steps[None]:
        try:
            yield from self._executing(SET_TIMEOUT.format(self._lock_wait_timeout))
        except BackendError:
            pass  # the connection is lost, and the setting with it

    def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> Steps[int]:
        if self._has_read:
            sql = SNAPSHOT.format(literal(name_hash))
            ((now, snapshot_fence),) = yield from self._executing(sql)
            if int(snapshot_fence or 0) != fence:
                raise shared.SnapshotTooOld
        else:  # reading the row would take a snapshot, too old for the next lock
            ((now,),) = yield from self._executing(CLOCK)
        new_fence = max(fence + 1, floor + 1, int(now))
        yield from self._executing(ADVANCE.format(new_fence, literal(name_hash)))
        if not self._in_transaction:
            shared.refuse(self._connection, "it commits after each statement: begin a transaction")
        return new_fence

    def advisory(self, name_hash: bytes, timeout: float | None) -> Steps[int]:
        _refuse_advisory()
        yield

    def _error(self, error: Any) -> Exception:
        if isinstance(error, OSError):
            return BackendError(f"{self._where}: your connection was lost: {error}")
        code, message = code_and_message(error)
        match code:
            case 1205 | 3572:
                return shared.RowLocked()
            case 1213:
                return shared.Deadlock(", and rolled back your whole transaction")
            case 1020:
                return shared.SnapshotTooOld()
            case 0:
                return BackendError(f"{self._where}: your connection was lost: {message}")
        mapped = exception_for(code, message, self._where)
        return self._common(mapped, message)


def _refuse_advisory() -> Never:
    raise Unsupported(
        "advisory=True: MariaDB and MySQL have no advisory lock that ends with a transaction "
        "(GET_LOCK ends with the session, which a pool hands to another caller)"
    )
