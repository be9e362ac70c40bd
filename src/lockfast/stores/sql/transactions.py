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
from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

from lockfast.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    StaleSnapshot,
    Unsupported,
    WouldDeadlock,
)
from lockfast.stores.sql.backend import LEAST, hash_of
from lockfast.stores.sql.errors import Deadlock, RowLocked, SnapshotTooOld
from lockfast.stores.sql.ports import Transport

KEEP = 3600.0  # how long a row outlives its last use, in seconds
YOUNG = KEEP / 2
BUDGET = 5.0
SWEEP_EVERY = 256
SWEEP_BATCH = 1000
ATTEMPTS = 3


class LockRow(NamedTuple):
    """A row as lockfast's own connection reads it. ``age`` None: it does not exist."""

    server: str
    age: float | None
    lease_fence: int
    leased: bool


class Session(Protocol):
    """The user's open transaction, in a dialect."""

    async def server(self, *, table: bool) -> str:
        """Identify the database and, with ``table``, the table that it sees."""

    async def try_lock(self, name_hash: bytes) -> int | None:
        """Lock the row and return its fence; None: it is locked, or does not exist."""

    async def lock_row(self, name_hash: bytes, timeout: float | None) -> int | None:
        """Lock the row, waiting for it, and return its fence; None: it does not exist. Raises
        `RowLocked` after the time-out."""

    async def advance_fence(self, name_hash: bytes, fence: int, floor: int) -> int:
        """Write a fence above the row's and above the floor; return it."""

    async def advisory(self, name_hash: bytes, timeout: float | None) -> int:
        """Take the lock without a row; return a fence from the clock."""


class TransactionDialect(Protocol):
    """Requests on lockfast's own connections, and the session for the user's."""

    def session(self, connection: object, suspends: bool) -> Awaitable[Session]: ...

    def read_row(self, name_hash: bytes) -> Any: ...

    def decode_row(self, reply: Any) -> LockRow: ...

    def touch_row(self, name_hash: bytes, name: str) -> Any:
        """Create the row, or set its last use to now."""

    def read_server(self) -> Any:
        """Read `LockRow.server` alone, for locks that need no table."""

    def decode_server(self, reply: Any) -> str: ...

    def scan(self, after: bytes, count: int, old: float) -> Any: ...

    def decode_scan(self, reply: Any) -> list[tuple[bytes, bool]]:
        """Return the scanned hashes in order, each with whether it is old."""

    def delete_row(self, name_hash: bytes, old: float) -> Any:
        """Delete the row if it is still old."""


class Transactions:
    """The transaction locks of one client. The transport carries the requests on lockfast's own
    connections, and determines the API."""

    def __init__(self, transport: Transport, dialect: TransactionDialect, where: str) -> None:
        self._transport = transport
        self._dialect = dialect
        self._where = where
        self._taken = 0
        self._sweep_after = b""

    async def take(
        self, name: str, shown: str, connection: object, timeout: float | None, advisory: bool
    ) -> int:
        """Take the lock in this connection's transaction; return the fence."""
        session = await self._dialect.session(connection, self._transport.suspends)
        take = self._take_advisory if advisory else self._take_row
        try:
            return await take(session, hash_of(name), name, shown, timeout)
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

    async def _take_row(
        self, session: Session, name_hash: bytes, name: str, shown: str, timeout: float | None
    ) -> int:
        for _ in range(ATTEMPTS):
            row = await self._read_row(name_hash, name)
            if row.leased:
                raise Unsupported(
                    f"{shown!r} is currently held as a lease (client.lock or another primitive): a "
                    "transaction lock excludes transaction locks, not leases. Use one kind for one "
                    "purpose, or another name"
                )
            self._check_same_server(row.server, await session.server(table=True))
            fence = await session.try_lock(name_hash)
            if fence is None:
                if timeout == 0:
                    raise RowLocked
                fence = await session.lock_row(name_hash, timeout)
            if fence is not None:
                new_fence = await session.advance_fence(name_hash, fence, row.lease_fence)
                await self._sweep()
                return new_fence
        raise BackendError(
            f"{self._where}: the row of {shown!r} disappeared right after it was created"
        )

    async def _take_advisory(
        self, session: Session, name_hash: bytes, name: str, shown: str, timeout: float | None
    ) -> int:
        reply = await self._request(self._dialect.read_server(), BUDGET)
        server = self._dialect.decode_server(reply)
        self._check_same_server(server, await session.server(table=False))
        return await session.advisory(name_hash, timeout)

    async def _read_row(self, name_hash: bytes, name: str) -> LockRow:
        """Read the row; create it if it does not exist, and touch it if it is not young."""
        reply = await self._request(self._dialect.read_row(name_hash), BUDGET)
        row = self._dialect.decode_row(reply)
        if row.age is None:
            await self._request(self._dialect.touch_row(name_hash, name), BUDGET)
        elif row.age > YOUNG:
            # A transaction that has it locked touches it at its commit, so it is not waited for.
            with contextlib.suppress(BackendError):
                await self._request(self._dialect.touch_row(name_hash, name), LEAST)
        return row

    async def _request(self, request: Any, budget: float) -> Any:
        reply = self._transport.send(request, budget)
        return await reply if self._transport.suspends else reply

    def _check_same_server(self, ours: str, theirs: str) -> None:
        if ours != theirs:
            raise ConfigurationError(
                f"connection= leads to another database than this client: the connection's is "
                f"{theirs}, the client's ({self._where}) is {ours}. Pass a connection to the "
                "client's database"
            )

    async def _sweep(self) -> None:
        """Every `SWEEP_EVERY` locks, scan the next `SWEEP_BATCH` rows and delete the old ones. A
        sweep that fails is left to the next one."""
        self._taken += 1
        if self._taken < SWEEP_EVERY:
            return
        self._taken = 0
        try:
            request = self._dialect.scan(self._sweep_after, SWEEP_BATCH, KEEP)
            rows = self._dialect.decode_scan(await self._request(request, BUDGET))
            self._sweep_after = rows[-1][0] if len(rows) >= SWEEP_BATCH else b""
            deletions = [self._dialect.delete_row(found, KEEP) for found, old in rows if old]
            if deletions:
                await self._request(deletions, BUDGET)
        except BackendError:
            pass
