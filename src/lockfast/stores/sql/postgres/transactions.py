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
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from lockfast.errors import BackendError, Unsupported
from lockfast.stores.sql import transactions as shared
from lockfast.stores.sql.channel import Channel
from lockfast.stores.sql.postgres.dialect import Request, Statement, exception_for
from lockfast.stores.steps import Steps

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
    (SELECT (extract(epoch FROM clock_timestamp() - used) * 1000000)::bigint
     FROM lockfast_transactions WHERE hash = $1),
    coalesce((SELECT last_fence FROM lockfast_names WHERE hash = $1), 0),
    EXISTS (SELECT FROM lockfast_names
            WHERE hash = $1 AND id <> '' AND ends > clock_timestamp())::int
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
SELECT encode(hash, 'hex'), (used < clock_timestamp() - $3::float8 * interval '1 second')::int
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
LONGEST_TIMEOUT = 2**31 - 1  # milliseconds, 24 days: the most that the server accepts
_DURATION = re.compile(r"\d+(us|ms|s|min|h|d)?").fullmatch


class PostgresSession(shared.Session):
    cursor_options = {"row_factory": tuple_row}  # noqa: RUF012 (never changed)
    drivers = (psycopg.Connection, psycopg.AsyncConnection)
    needs = "psycopg 3"
    rows = shared.RowRequests(
        read=lambda name_hash: Request(READ_ROW, (name_hash,)),
        touch=lambda name_hash, name: Request(TOUCH, (name_hash, name.encode())),
        server=lambda: Request(SERVER, ()),
        scan=lambda after, count, old: Request(SCAN, (after, b"%d" % count, b"%d" % old)),
        delete=lambda name_hash, old: Request(DELETE, (name_hash, b"%d" % old)),
    )
    lost_by = (psycopg.Error,)

    def __init__(self, connection: Any, where: str, channel: Channel) -> None:
        super().__init__(connection, where, channel)
        if connection.info.pipeline_status != PipelineStatus.OFF:
            shared.refuse(connection, "it is in pipeline mode: take the lock outside of it")
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            shared.refuse(connection, "its transaction has failed already: roll it back first")
        if status == TransactionStatus.IDLE and connection.autocommit:
            shared.refuse(
                connection,
                "it commits after each statement, so the lock would end at once: begin a "
                "transaction (connection.transaction()), or turn autocommit off",
            )
        self._isolation = self._lock_timeout = ""

    def server(self, *, table: bool) -> Steps[str]:
        rows = yield from self._executing(READ_SESSION)
        ((server, oid, self._isolation, self._lock_timeout),) = rows
        return f"{server}, table {oid}" if table else str(server)

    def try_lock(self, name_hash: bytes) -> Steps[int | None]:
        rows = yield from self._executing(f"{ROW} FOR UPDATE SKIP LOCKED".format(name_hash.hex()))
        if not rows and not self._sees_all:
            visible = yield from self._executing(ROW.format(name_hash.hex()))
            if not visible:
                raise shared.SnapshotTooOld  # the row was created after the snapshot
        return int(rows[0][0]) if rows else None

    def lock_row(self, name_hash: bytes, timeout: float | None) -> Steps[int | None]:
        rows = yield from self._with_timeout(f"{ROW} FOR UPDATE".format(name_hash.hex()), timeout)
        return int(rows[0][0]) if rows else None

    @property
    def _sees_all(self) -> bool:
        """True if each statement sees everything committed before it."""
        return self._isolation in ("read committed", "read uncommitted")

    def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> Steps[int]:
        ((new_fence,),) = yield from self._executing(ADVANCE.format(floor + 1, name_hash.hex()))
        return int(new_fence)

    def advisory(self, name_hash: bytes, timeout: float | None) -> Steps[int]:
        if not self._sees_all:
            raise Unsupported(
                f"an advisory lock in a {self._isolation} transaction: it would read data as old "
                "as its first statement, the one that waits for the lock, and nothing would detect "
                "that. Use READ COMMITTED, or the lock with a row (advisory=False)"
            )
        # Two names whose hashes share these 64 bits exclude each other, which is harmless.
        key = int.from_bytes(name_hash[:8], signed=True)
        ((free,),) = yield from self._executing(f"SELECT pg_try_advisory_xact_lock({key})")
        if not free:
            if timeout == 0:
                raise shared.RowLocked
            yield from self._with_timeout(f"SELECT pg_advisory_xact_lock({key})::text", timeout)
        ((fence,),) = yield from self._executing(f"SELECT {_US}")
        return int(fence)

    def _with_timeout(self, sql: str, timeout: float | None) -> Steps[list[Any]]:
        """Execute a statement that may wait for up to ``timeout``, behind a savepoint."""
        limit = 0 if timeout is None else min(max(round(timeout * 1000), 1), LONGEST_TIMEOUT)
        yield from self._executing(SAVEPOINT)
        try:
            yield from self._executing(f"SET LOCAL lock_timeout = {limit}")
            rows = yield from self._executing(sql)
        except BaseException:
            with contextlib.suppress(Exception):  # the original error matters more
                yield from self._executing(UNDO)
                yield from self._executing(RELEASE)
            raise
        before = self._lock_timeout if _DURATION(self._lock_timeout) else "0"
        yield from self._executing(f"SET LOCAL lock_timeout = '{before}'")
        yield from self._executing(RELEASE)
        return rows

    def _error(self, error: psycopg.Error) -> Exception:
        match error.sqlstate:
            case "55P03":
                return shared.RowLocked()
            case "40P01":
                return shared.Deadlock()
            case "40001":
                return shared.SnapshotTooOld()
            case None:
                return BackendError(f"{self._where}: your connection was lost: {error}")
        message = str(error.diag.message_primary or error)
        mapped = exception_for(error.sqlstate, message, self._where)
        return self._common(mapped, message)
