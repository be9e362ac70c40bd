"""Transaction locks on MariaDB and MySQL: a row that is locked FOR UPDATE.

The server counts time-outs in whole seconds: those are waited for by the server, in the order in
which it serves, and what is left of a second by asking again and again. A time-out undoes the
statement alone, unless the server was told otherwise (innodb_rollback_on_timeout); a deadlock
undoes the transaction.

Nothing here touches what the user's session may ask for afterwards: LAST_INSERT_ID() stays, and the
time-out is put back.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncmy.cursors
import pymysql.cursors
from asyncmy.connection import Connection as TaskConnection
from asyncmy.errors import MySQLError
from pymysql.constants import SERVER_STATUS

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError, Unsupported
from lockfast.stores.sql.errors import Again, Busy, Deadlock, NoTables, Stale
from lockfast.stores.sql.mysql.connections import code_and_words
from lockfast.stores.sql.mysql.dialect import filled, literal
from lockfast.stores.sql.mysql.errors import explained
from lockfast.stores.sql.mysql.prepared import Result
from lockfast.stores.sql.sessions import Statements, refuse, unwrapped
from lockfast.stores.sql.transactions import Known

_NOW = "UTC_TIMESTAMP(6)"
_US = f"TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {_NOW})"
_SERVER = "CONCAT(@@hostname, ':', @@port, '/', IFNULL(DATABASE(), '(none)'))"
# hash, hash, hash.
KNOWN = f"""
SELECT {_SERVER},
    (SELECT TIMESTAMPDIFF(MICROSECOND, used, {_NOW}) FROM lockfast_transactions WHERE hash = %s),
    IFNULL((SELECT last_fence FROM lockfast_names WHERE hash = %s), 0),
    EXISTS (SELECT 1 FROM lockfast_names WHERE hash = %s AND ends > {_NOW})
"""
# hash, name.
PUT = f"""
INSERT INTO lockfast_transactions (hash, name, fence, used) VALUES (%s, %s, 0, {_NOW})
ON DUPLICATE KEY UPDATE used = VALUES(used)
"""
# seconds, hash to go on from, how many.
INSPECT = f"""
SELECT HEX(hash), used < {_NOW} - INTERVAL %s SECOND FROM lockfast_transactions
WHERE hash > %s ORDER BY hash LIMIT %s
"""
# hash, seconds.
DROP = f"""
DELETE FROM lockfast_transactions WHERE hash = %s AND used < {_NOW} - INTERVAL %s SECOND
"""

# In the user's transaction.
LOOK_AROUND = f"SELECT {_SERVER}, @@SESSION.innodb_lock_wait_timeout"
STATUS = "DO 0"  # drivers take notice of the status in answers without rows alone
LOCK = "SELECT fence FROM lockfast_transactions WHERE hash = {} FOR UPDATE"
# The clock, and the row as the transaction sees it, which need not be the one that it has locked.
CLOCK = f"SELECT {_US}"
SEEN = f"SELECT {_US}, (SELECT fence FROM lockfast_transactions WHERE hash = {{}})"
GROW = f"UPDATE lockfast_transactions SET fence = {{}}, used = {_NOW} WHERE hash = {{}}"
PATIENCE = "SET SESSION innodb_lock_wait_timeout = {}"

FOREVER = 100_000_000  # the most that MariaDB takes; three years
PACE = 0.01


class MySQLTransactions:
    """`Dialect` of transaction locks."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def session(self, connection: object, suspends: bool) -> MySQLSession:
        found = await unwrapped(connection)
        if isinstance(found, TaskConnection if not suspends else pymysql.Connection):
            faces = ("lockfast.aio.connect", "lockfast.connect")
            refuse(connection, f"it is of the other colour, which {faces[suspends]} is for")
        if not isinstance(found, TaskConnection | pymysql.Connection):
            refuse(connection, f"{self._where} is spoken to by PyMySQL, and asyncmy in asyncio")
        return MySQLSession(found, suspends, self._where)

    def known(self, mark: bytes) -> str:
        return filled(KNOWN, mark, mark, mark)

    def understood(self, reply: list[Result]) -> Known:
        server, age, fence, leased = reply[0].rows[0]
        return Known(
            str(server), None if age is None else int(age) / 1e6, int(fence), bool(int(leased))
        )

    def put(self, mark: bytes, name: str) -> str:
        return filled(PUT, mark, name)

    def waiter(self) -> str:
        raise Unsupported(
            f"advisory=True: {self._where} has no lock without a row that ends with a transaction "
            "(GET_LOCK ends with the session, and a pool gives that to somebody else)"
        )

    def queued(self, reply: list[Result]) -> str:
        return str(reply[0].rows[0][0])

    def look(self, after: bytes, lot: int, old: float) -> str:
        return filled(INSPECT, round(old), after, lot)

    def looked(self, reply: list[Result]) -> list[tuple[bytes, bool]]:
        return [(bytes.fromhex(mark), bool(old)) for mark, old in reply[0].rows]

    def drop(self, mark: bytes, old: float) -> str:
        return filled(DROP, mark, round(old))


class MySQLSession:
    """The user's transaction."""

    def __init__(self, connection: Any, suspends: bool, where: str) -> None:
        kind = asyncmy.cursors.Cursor if suspends else pymysql.cursors.Cursor
        self._statements = Statements(connection, cursor=kind)
        self._connection = connection
        self._suspends = suspends
        self._where = where
        self._patience = 50
        self._has_read = True
        if connection.get_autocommit() and not self._in_transaction:
            refuse(
                connection,
                "it commits after each statement, so the lock would end at once: begin a "
                "transaction (connection.begin()), or turn autocommit off",
            )

    @property
    def _in_transaction(self) -> bool:
        """As the server said with its last answer that had no rows."""
        status = self._connection.server_status or 0
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    async def server(self, *, table: bool) -> str:
        ((server, patience),) = await self._ask(LOOK_AROUND)
        self._patience = int(patience)
        await self._ask(STATUS)
        self._has_read = self._in_transaction
        return str(server)

    async def free(self, mark: bytes) -> int | None:
        return self._fence(await self._ask(f"{LOCK} SKIP LOCKED".format(literal(mark))))

    def _fence(self, rows: list[Any]) -> int | None:
        return int(rows[0][0]) if rows else None

    async def waited(self, mark: bytes, timeout: float | None) -> int | None:
        until = None if timeout is None else clock.now() + timeout
        whole = FOREVER if timeout is None else int(timeout)
        if whole:
            try:
                return self._fence(await self._patiently(LOCK.format(literal(mark)), whole))
            except Busy:
                if not self._in_transaction:
                    raise Busy(
                        ". The server undid your whole transaction (innodb_rollback_on_timeout)"
                    ) from None
        while until is None or clock.now() < until:
            await self._breathe()
            fence = await self.free(mark)
            if fence is not None:
                return fence
        raise Busy

    async def _breathe(self) -> None:
        if self._suspends:
            await asyncio.sleep(PACE)
        else:
            time.sleep(PACE)

    async def _patiently(self, sql: str, seconds: int) -> list[Any]:
        await self._ask(PATIENCE.format(seconds))
        try:
            rows = await self._ask(sql)
        except Exception:  # of others it is interrupted, and the driver has closed it
            await self._put_back()
            raise
        await self._put_back()
        return rows

    async def _put_back(self) -> None:
        try:
            await self._ask(PATIENCE.format(self._patience))
        except BackendError:
            pass  # the connection is lost, and with it what was set

    async def grown(self, mark: bytes, fence: int, floor: int) -> int:
        if self._has_read:
            ((now, seen),) = await self._ask(SEEN.format(literal(mark)))
            if int(seen or 0) != fence:
                raise Stale
        else:  # there is no snapshot, and looking would make one, too old for the next lock
            ((now,),) = await self._ask(CLOCK)
        grown = max(fence + 1, floor + 1, int(now))
        await self._ask(GROW.format(grown, literal(mark)))
        if not self._in_transaction:
            refuse(self._connection, "it commits after each statement: begin a transaction")
        return grown

    async def advisory(self, mark: bytes, timeout: float | None) -> int:
        raise Unsupported("there is no advisory lock that ends with a transaction")

    async def _ask(self, sql: str) -> list[Any]:
        try:
            return await self._statements.ask(sql)
        except (pymysql.MySQLError, MySQLError) as error:
            raise self._explained(*code_and_words(error)) from error
        except OSError as error:
            raise BackendError(f"{self._where}: your connection is lost: {error}") from error

    def _explained(self, code: int, said: str) -> Exception:
        match code:
            case 1205 | 3572:
                return Busy()
            case 1213:
                return Deadlock(", and undid all of your transaction")
            case 1020:
                return Stale()
            case 0:
                return BackendError(f"{self._where}: your connection is lost: {said}")
        explanation = explained(code, said, self._where)
        if isinstance(explanation, NoTables):
            return ConfigurationError(
                f"{self._where}: your connection does not see the table lockfast_transactions: it "
                "leads to another database"
            )
        if isinstance(explanation, Again):
            return BackendError(f"{self._where} said: {said}")
        return explanation
