"""Transaction locks on PostgreSQL: a row that is locked FOR UPDATE, or an advisory lock.

An error ends a transaction of PostgreSQL, so what may fail (a wait that takes too long) is done
behind a savepoint: a user who did not get the lock goes on with what it had. The time-out is set
for the transaction (SET LOCAL) and put back, so nothing of it is left in a session that a pooler
gives to somebody else.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from lockfast.errors import BackendError, ConfigurationError, Unsupported
from lockfast.stores.sql.errors import Again, Busy, Deadlock, NoTables, Stale
from lockfast.stores.sql.postgres.dialect import Request, Statement
from lockfast.stores.sql.postgres.errors import explained
from lockfast.stores.sql.sessions import Statements, refuse, unwrapped
from lockfast.stores.sql.transactions import Known

_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# A server that was started at another moment is another one; so is a standby.
_SERVER = """current_database() || ', running since '
    || to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"""
PLACE = Statement("transaction_place", f"SELECT {_SERVER}", 0)
# $1 hash.
KNOWN = Statement(
    "transaction_known",
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
PUT = Statement(
    "transaction_put",
    """
INSERT INTO lockfast_transactions VALUES ($1, $2, 0, clock_timestamp())
ON CONFLICT (hash) DO UPDATE SET used = excluded.used
""",
    2,
)
# $1 hash to go on from, $2 how many, $3 seconds.
INSPECT = Statement(
    "transaction_look",
    """
SELECT encode(hash, 'hex'), used < clock_timestamp() - $3::float8 * interval '1 second'
FROM lockfast_transactions WHERE hash > $1 ORDER BY hash LIMIT $2
""",
    3,
)
# $1 hash, $2 seconds.
DROP = Statement(
    "transaction_drop",
    """
DELETE FROM lockfast_transactions
WHERE hash = (SELECT hash FROM lockfast_transactions WHERE hash = $1
              AND used < clock_timestamp() - $2::float8 * interval '1 second'
              FOR UPDATE SKIP LOCKED)
""",
    2,
)

# In the user's transaction. A hash is hexadecimal digits.
LOOK_AROUND = f"""
SELECT {_SERVER}, to_regclass('lockfast_transactions')::oid::text,
    current_setting('transaction_isolation'), current_setting('lock_timeout')
"""
ROW = "SELECT fence FROM lockfast_transactions WHERE hash = decode('{}', 'hex')"
GROW = f"""
UPDATE lockfast_transactions
SET fence = greatest(fence + 1, {{}}, {_US}), used = clock_timestamp()
WHERE hash = decode('{{}}', 'hex') RETURNING fence
"""
SAVEPOINT = "SAVEPOINT lockfast_lock"
UNDO = "ROLLBACK TO SAVEPOINT lockfast_lock"
RELEASE = "RELEASE SAVEPOINT lockfast_lock"
_DURATION = re.compile(r"\d+(us|ms|s|min|h|d)?").fullmatch


class PostgresTransactions:
    """`Dialect` of transaction locks."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def session(self, connection: object, suspends: bool) -> PostgresSession:
        found = await unwrapped(connection)
        if isinstance(found, psycopg.AsyncConnection if not suspends else psycopg.Connection):
            faces = ("lockfast.aio.connect", "lockfast.connect")
            refuse(connection, f"it is of the other colour, which {faces[suspends]} is for")
        if not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
            refuse(connection, f"{self._where} is spoken to by psycopg 3")
        return PostgresSession(found, self._where)

    def known(self, mark: bytes) -> Request:
        return Request(KNOWN, (mark,))

    def understood(self, reply: Any) -> Known:
        server, age, fence, leased = (reply.get_value(0, column) for column in range(4))
        return Known(
            server.decode(), None if age is None else float(age), int(fence), leased == b"t"
        )

    def put(self, mark: bytes, name: str) -> Request:
        return Request(PUT, (mark, name.encode()))

    def waiter(self) -> Request:
        return Request(PLACE, ())

    def queued(self, reply: Any) -> str:
        return str(reply.get_value(0, 0).decode())

    def look(self, after: bytes, lot: int, old: float) -> Request:
        return Request(INSPECT, (after, b"%d" % lot, repr(old).encode()))

    def looked(self, reply: Any) -> list[tuple[bytes, bool]]:
        value = reply.get_value
        return [
            (bytes.fromhex(value(row, 0).decode()), value(row, 1) == b"t")
            for row in range(reply.ntuples)
        ]

    def drop(self, mark: bytes, old: float) -> Request:
        return Request(DROP, (mark, repr(old).encode()))


class PostgresSession:
    """The user's transaction."""

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
        ((server, oid, self._isolation, self._lock_timeout),) = await self._ask(LOOK_AROUND)
        return f"{server}, table {oid}" if table else str(server)

    async def free(self, mark: bytes) -> int | None:
        rows = await self._ask(f"{ROW} FOR UPDATE SKIP LOCKED".format(mark.hex()))
        if not rows and not self._sees_all and not await self._ask(ROW.format(mark.hex())):
            raise Stale  # the row came after the snapshot
        return int(rows[0][0]) if rows else None

    async def waited(self, mark: bytes, timeout: float | None) -> int | None:
        rows = await self._patiently(f"{ROW} FOR UPDATE".format(mark.hex()), timeout)
        return int(rows[0][0]) if rows else None

    @property
    def _sees_all(self) -> bool:
        """Whether each statement sees what was committed before it."""
        return self._isolation in ("read committed", "read uncommitted")

    async def grown(self, mark: bytes, fence: int, floor: int) -> int:
        ((grown,),) = await self._ask(GROW.format(floor + 1, mark.hex()))
        return int(grown)

    async def advisory(self, mark: bytes, timeout: float | None) -> int:
        if not self._sees_all:
            raise Unsupported(
                f"an advisory lock in a transaction that is {self._isolation}: what it reads is as "
                "old as its first statement, which is the one that waits for the lock, and nothing "
                "would tell. Use READ COMMITTED, or the lock with a row (advisory=False)"
            )
        # Two names with the same 64 bits exclude each other: no harm.
        key = int.from_bytes(mark[:8], signed=True)
        ((free,),) = await self._ask(f"SELECT pg_try_advisory_xact_lock({key})")
        if not free:
            if timeout == 0:
                raise Busy
            await self._patiently(f"SELECT pg_advisory_xact_lock({key})::text", timeout)
        ((fence,),) = await self._ask(f"SELECT {_US}")
        return int(fence)

    async def _patiently(self, sql: str, timeout: float | None) -> list[Any]:
        """A statement that may wait so long, and that may fail."""
        limit = 0 if timeout is None else max(round(timeout * 1000), 1)
        await self._ask(SAVEPOINT)
        try:
            await self._ask(f"SET LOCAL lock_timeout = {limit}")
            rows = await self._ask(sql)
        except BaseException:
            with contextlib.suppress(Exception):  # what is on its way up matters more
                await self._statements.ask(UNDO)
                await self._statements.ask(RELEASE)
            raise
        before = self._lock_timeout if _DURATION(self._lock_timeout) else "0"
        await self._ask(f"SET LOCAL lock_timeout = '{before}'")
        await self._ask(RELEASE)
        return rows

    async def _ask(self, sql: str) -> list[Any]:
        try:
            return await self._statements.ask(sql)
        except psycopg.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: psycopg.Error) -> Exception:
        match error.sqlstate:
            case "55P03":
                return Busy()
            case "40P01":
                return Deadlock()
            case "40001":
                return Stale()
            case None:
                return BackendError(f"{self._where}: your connection is lost: {error}")
        said = str(error.diag.message_primary or error)
        explanation = explained(error.sqlstate, said, self._where)
        if isinstance(explanation, NoTables):
            return ConfigurationError(
                f"{self._where}: your connection does not see the table lockfast_transactions: "
                "its search_path leads elsewhere"
            )
        if isinstance(explanation, Again):
            return BackendError(f"{self._where} said: {said}")
        return explanation
