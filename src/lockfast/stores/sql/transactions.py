"""Transaction locks: held by the user's own open transaction, and ended only by its end.

The lock is the database's own lock on a row. It has no lease that could run out under its holder,
and nothing can be written under it too late: whatever the transaction writes is committed while it
holds the lock, or not at all.

1. On a connection of lockfast, in autocommit: create the row if it does not exist. It must exist
   before the user's transaction locks it: two transactions that select a missing row FOR UPDATE
   both get MySQL's lock on the gap, and then each waits for the other to fill it.
2. In the user's transaction: lock the row. First without waiting (SKIP LOCKED), so that a free row
   needs no setting and no savepoint; then with the time-out, which is restored afterwards.
3. Advance its fence in the same transaction. The clock is read after the row is locked, not before
   the wait: a holder whose transaction was rolled back leaves no fence to count on from.

**What a transaction sees.** A lock is worthless to a transaction that then reads data as they were
before it got the lock, which is what a snapshot shows that is older than the last holder's commit
(REPEATABLE READ). Every holder writes the row, so the row reveals this: PostgreSQL refuses to lock
a row that has changed since the snapshot; in MySQL, which does not refuse, the row as the snapshot
shows it is compared with the locked one.

**Sweeping.** A row stays for an hour after its last use; then a client that takes locks deletes it.
A row that is about to be locked is young, or is touched first: so no row disappears under a
transaction that is about to lock it, and none is left with a lock on a gap.

Leases (`client.lock`) live in another table and do not see these locks.
"""

from __future__ import annotations

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Never

from lockfast.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    StaleSnapshot,
    Unsupported,
    WouldDeadlock,
)
from lockfast.stores.sql.book import NoTables, Reply, Retry
from lockfast.stores.sql.channel import LEAST, Channel
from lockfast.stores.steps import Steps, perform, perform_soon

KEEP = 3600.0  # how long a row outlives its last use, in seconds
YOUNG = KEEP / 2
BUDGET = 5.0
SWEEP_EVERY = 256
SWEEP_BATCH = 1000
ATTEMPTS = 3


class RowLocked(Exception):
    """Another transaction has the row locked."""


class Deadlock(Exception):
    """The database chose this transaction as the victim of a deadlock."""


class SnapshotTooOld(Exception):
    """The snapshot of this transaction is older than the last change of the row."""


class RowRequests(NamedTuple):
    """Requests about the rows, on lockfast's own connections."""

    read: Callable[[bytes], Any]  # server, age in µs, last fence of a lease, whether that is held
    touch: Callable[[bytes, str], Any]  # create the row, or set its last use to now
    server: Callable[[], Any]  # the server alone, for locks that need no table
    scan: Callable[[bytes, int, float], Any]  # the next hashes, each with whether it is old
    delete: Callable[[bytes, float], Any]  # if it is still old


class Wanted(NamedTuple):
    """A lock to take. ``shown`` is its name as the user wrote it."""

    name_hash: bytes
    name: str
    shown: str
    timeout: float | None


class Transactions:
    """The transaction locks of one client. The channel carries the requests on lockfast's own
    connections, and determines the API."""

    def __init__(self, channel: Channel, session: type[Session], where: str) -> None:
        self._channel = channel
        self._session = session
        self._rows = session.rows
        self._where = where
        self._taken = 0
        self._sweep_after = b""

    def take(self, wanted: Wanted, connection: object, advisory: bool) -> Any:
        """Take the lock in this connection's transaction; return the fence."""
        steps = self._taking(wanted, connection, advisory)
        return perform_soon(steps, _awaited) if self._channel.suspends else perform(steps, _value)

    def _taking(self, wanted: Wanted, connection: object, advisory: bool) -> Steps[int]:
        session = self._entered((yield from _unwrapped(connection)), connection)
        shown, timeout = wanted.shown, wanted.timeout
        try:
            if advisory:
                return (yield from self._taking_advisory(session, wanted))
            return (yield from self._taking_row(session, wanted))
        except RowLocked as why:
            waited = f"within {timeout:g} s" if timeout else "at once"
            raise AcquireTimeout(
                f"{shown!r} was not acquired {waited}: another transaction holds it{why}",
                name=shown,
                timeout=timeout or 0.0,
                snapshot=None,
            ) from why.__cause__
        except Deadlock as why:
            raise WouldDeadlock(
                f"{shown!r}: this transaction and another wait for each other, and the database "
                f"ended this wait{why}. Roll back and run the whole transaction again; take "
                "several locks in the same order everywhere"
            ) from why.__cause__
        except SnapshotTooOld as why:
            raise StaleSnapshot(
                f"{shown!r}: another holder committed after this transaction's snapshot was taken, "
                "so the transaction would not see its changes. Roll back and take the lock before "
                "anything is read, or use READ COMMITTED"
            ) from why.__cause__

    def _entered(self, found: Any, connection: object) -> Session:
        suspends, drivers = self._channel.suspends, self._session.drivers
        if isinstance(found, drivers[not suspends]):
            entry_points = ("lockfast.aio.connect", "lockfast.connect")
            kind = ("an asyncio", "a blocking")[suspends]
            refuse(connection, f"it is {kind} connection: use {entry_points[suspends]} for it")
        if not isinstance(found, drivers[suspends]):
            refuse(connection, f"{self._where} needs a connection of {self._session.needs}")
        return self._session(found, self._where, self._channel)

    def _taking_row(self, session: Session, wanted: Wanted) -> Steps[int]:
        name_hash, name, shown, timeout = wanted
        for _ in range(ATTEMPTS):
            server, lease_fence, leased = yield from self._reading_row(name_hash, name)
            if leased:
                raise Unsupported(
                    f"{shown!r} is currently held as a lease (client.lock or another primitive): a "
                    "transaction lock excludes transaction locks, not leases. Use one kind for one "
                    "purpose, or another name"
                )
            self._check_same_server(server, (yield from session.server(table=True)))
            fence = yield from session.try_lock(name_hash)
            if fence is None:
                if timeout == 0:
                    raise RowLocked
                fence = yield from session.lock_row(name_hash, timeout)
            if fence is not None:
                new_fence = yield from session.advance_fence(name_hash, fence, lease_fence)
                yield from self._sweeping()
                return new_fence
        raise BackendError(
            f"{self._where}: the row of {shown!r} disappeared right after it was created"
        )

    def _taking_advisory(self, session: Session, wanted: Wanted) -> Steps[int]:
        reply: Reply = yield self._channel.send(self._rows.server(), BUDGET)
        server = reply[0].rows[0][0].decode()
        self._check_same_server(server, (yield from session.server(table=False)))
        return (yield from session.advisory(wanted.name_hash, wanted.timeout))

    def _reading_row(self, name_hash: bytes, name: str) -> Steps[tuple[str, int, bool]]:
        """Read the server, the last fence of a lease, and whether that is held. Create the row if
        it does not exist, and touch it if it is not young."""
        reply: Reply = yield self._channel.send(self._rows.read(name_hash), BUDGET)
        server, age, fence, leased = reply[0].rows[0]
        if age is None:
            yield self._channel.send(self._rows.touch(name_hash, name), BUDGET)
        elif int(age) / 1e6 > YOUNG:
            # A transaction that has it locked touches it at its commit, so it is not waited for.
            with contextlib.suppress(BackendError):
                yield self._channel.send(self._rows.touch(name_hash, name), LEAST)
        return server.decode(), int(fence), bool(int(leased))

    def _check_same_server(self, ours: str, theirs: str) -> None:
        if ours != theirs:
            raise ConfigurationError(
                f"connection= leads to another database than this client: the connection's is "
                f"{theirs}, the client's ({self._where}) is {ours}. Pass a connection to the "
                "client's database"
            )

    def _sweeping(self) -> Steps[None]:
        """Every `SWEEP_EVERY` locks, scan the next `SWEEP_BATCH` rows and delete the old ones. A
        sweep that fails is left to the next one."""
        self._taken += 1
        if self._taken < SWEEP_EVERY:
            return
        self._taken = 0
        try:
            request = self._rows.scan(self._sweep_after, SWEEP_BATCH, KEEP)
            reply: Reply = yield self._channel.send(request, BUDGET)
            rows = [(bytes.fromhex(found.decode()), old != b"0") for found, old in reply[0].rows]
            self._sweep_after = rows[-1][0] if len(rows) >= SWEEP_BATCH else b""
            deletions = [self._rows.delete(found, KEEP) for found, old in rows if old]
            if deletions:
                yield self._channel.send(deletions, BUDGET)
        except BackendError:
            pass


# ---- in the user's own transaction, on a driver's or SQLAlchemy's connection of either API -----


def _value(reply: Any) -> Any:
    if inspect.isawaitable(reply):
        if inspect.iscoroutine(reply):
            reply.close()
        raise ConfigurationError(
            "connection= is an asyncio connection: use lockfast.aio.connect for it"
        )
    return reply


async def _awaited(reply: Any) -> Any:
    """Return the result of a driver's call: the value itself, or its awaited result."""
    return await reply if inspect.isawaitable(reply) else reply


def _unwrapped(connection: Any) -> Steps[Any]:
    """Return the driver's connection, also from inside a SQLAlchemy connection or session.

    A SQLAlchemy connection without a transaction begins one now: otherwise its ``commit`` would not
    know that there is something to commit.
    """
    kinds = type(connection).__mro__
    if not any(kind.__module__.split(".")[0] == "sqlalchemy" for kind in kinds):
        return connection
    names = {kind.__name__ for kind in kinds}
    if names & {"Session", "AsyncSession", "scoped_session", "async_scoped_session"}:
        connection = yield connection.connection()
    elif hasattr(connection, "driver_connection"):
        return connection.driver_connection
    elif not names & {"Connection", "AsyncConnection"}:
        refuse(
            connection,
            "an engine has many connections: pass the one that has your transaction open",
        )
    if not connection.in_transaction():
        yield connection.begin()
    if hasattr(connection, "get_raw_connection"):
        return (yield connection.get_raw_connection()).driver_connection
    return connection.connection.driver_connection


def refuse(connection: object, why: str) -> Never:
    kind = type(connection)
    raise ConfigurationError(
        f"connection= takes the connection that has your transaction open, not "
        f"{kind.__module__}.{kind.__qualname__}: {why}"
    )


class Session(ABC):
    """The user's open transaction. Statements carry no parameters: the only values formatted into
    them are numbers and hexadecimal digits that lockfast produced."""

    drivers: tuple[type, type]  # the connections that a blocking and an asyncio client can use
    needs: str  # the library of these connections, for messages
    rows: RowRequests
    cursor_options: dict[str, Any]
    lost_by: tuple[type[Exception], ...]  # the driver's errors

    def __init__(self, connection: Any, where: str, channel: Channel) -> None:
        self._connection = connection
        self._where = where
        self._channel = channel

    @abstractmethod
    def server(self, *, table: bool) -> Steps[str]:
        """Identify the database and, with ``table``, the table that it sees."""

    @abstractmethod
    def try_lock(self, name_hash: bytes) -> Steps[int | None]:
        """Lock the row and return its fence; None: it is locked, or does not exist."""

    @abstractmethod
    def lock_row(self, name_hash: bytes, timeout: float | None) -> Steps[int | None]:
        """Lock the row, waiting for it, and return its fence; None: it does not exist. Raises
        `RowLocked` after the time-out."""

    @abstractmethod
    def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> Steps[int]:
        """Write and return a fence above ``fence`` and ``floor``, and not below the clock."""

    @abstractmethod
    def advisory(self, name_hash: bytes, timeout: float | None) -> Steps[int]:
        """Take the lock without a row; return a fence from the clock."""

    @abstractmethod
    def _error(self, error: Any) -> Exception:
        """Map the driver's error."""

    def _executing(self, sql: str) -> Steps[list[Any]]:
        """Execute on a cursor of its own: the user's cursors may have rows that were not fetched
        yet. Return the rows."""
        try:
            cursor = self._connection.cursor(**self.cursor_options)
            try:
                yield cursor.execute(sql)
                return list((yield cursor.fetchall())) if cursor.description else []
            finally:
                yield cursor.close()
        except self.lost_by as error:
            raise self._error(error) from error

    def _common(self, mapped: Exception, message: str) -> Exception:
        """Map an error that the dialect's own mapping has no exception of the user's for."""
        if isinstance(mapped, NoTables):
            return ConfigurationError(
                f"{self._where}: your connection does not see the table lockfast_transactions: it "
                "leads to another schema or database"
            )
        if isinstance(mapped, Retry):
            return BackendError(f"{self._where} reported: {message}")
        return mapped
