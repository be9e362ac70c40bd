"""Transaction locks: held by the user's own open transaction, and ended by nothing but its end.

The lock is the database's own lock on a row. There is no lease that could run out under its holder,
and nothing can be written under it too late: what the transaction writes is committed while it
holds the lock, or not at all.

1. On a connection of ours, in autocommit: the row is made, if it is not there. It must be there
   before the user's transaction asks for it. Two transactions that look for a missing row FOR
   UPDATE both get MySQL's lock on the gap, and then each waits for the other to fill it.
2. In the user's transaction: the row is locked. First without waiting (SKIP LOCKED), so that who
   finds it free sets nothing and needs no savepoint; then with the time-out, which is put back.
3. Its fence grows in the same transaction. The clock is read when the row is ours, not before the
   wait: a holder whose transaction was rolled back leaves no number to count on from.

**What a transaction sees.** A lock in the database is worth nothing to one who then reads data as
they were before it got it, which is what a snapshot shows that is older than the last holder's
commit (REPEATABLE READ). As every holder writes the row, it tells: PostgreSQL refuses to lock a
row that has changed since the snapshot, and in MySQL, where it does not, the row as the snapshot
shows it is compared with the one that was locked.

**What is over.** Rows stay for an hour after their last use, then whoever takes locks removes them.
A row that is about to be locked is young, or made young before: so none disappears under one who
is about to lock it, and nobody is left with a lock on a gap.

Row leases (`client.lock`) live in another table, and do not see these locks.
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
from lockfast.stores.sql.backend import LEAST, mark_of
from lockfast.stores.sql.errors import Busy, Deadlock, Stale
from lockfast.stores.sql.ports import Transport

KEEP = 3600.0  # how long a row outlives its last use, in seconds
YOUNG = KEEP / 2
BUDGET = 5.0
SWEEP_EVERY = 256
SWEEP_LOT = 1000
ATTEMPTS = 3


class Known(NamedTuple):
    """What a connection of ours sees. ``age`` None: the row is not there."""

    server: str
    age: float | None
    lease_fence: int
    leased: bool


class Session(Protocol):
    """The user's transaction, in the words of a dialect."""

    async def server(self, *, table: bool) -> str:
        """Which database this is, and which table there."""

    async def free(self, mark: bytes) -> int | None:
        """The row's fence, locked, if nobody else has it locked."""

    async def waited(self, mark: bytes, timeout: float | None) -> int | None:
        """The same, after waiting. `Busy`: in vain. None: the row is not there (any more)."""

    async def grown(self, mark: bytes, fence: int, floor: int) -> int:
        """A greater fence, and greater than the floor, written into the row."""

    async def advisory(self, mark: bytes, timeout: float | None) -> int:
        """The lock without a row; a fence from the clock."""


class Dialect(Protocol):
    """What is asked on a connection of ours, and how the user's is spoken to."""

    def session(self, connection: object, suspends: bool) -> Awaitable[Session]: ...

    def known(self, mark: bytes) -> Any: ...

    def understood(self, reply: Any) -> Known: ...

    def put(self, mark: bytes, name: str) -> Any:
        """Make the row, or make it young."""

    def waiter(self) -> Any:
        """Only `Known.server`: for what needs no table."""

    def queued(self, reply: Any) -> str: ...

    def look(self, after: bytes, lot: int, old: float) -> Any: ...

    def looked(self, reply: Any) -> list[tuple[bytes, bool]]:
        """Rows in order, and whether they are old."""

    def drop(self, mark: bytes, old: float) -> Any:
        """Take it away if it is still old."""


class Transactions:
    """The transaction locks of one client, in the colour of the transport, which speaks on
    connections of ours."""

    def __init__(self, transport: Transport, dialect: Dialect, where: str) -> None:
        self._transport = transport
        self._dialect = dialect
        self._where = where
        self._taken = 0
        self._sweep_after = b""

    async def take(
        self, name: str, shown: str, connection: object, timeout: float | None, advisory: bool
    ) -> int:
        """Lock, in the transaction of this connection; the fence."""
        session = await self._dialect.session(connection, self._transport.suspends)
        take = self._advisory if advisory else self._row
        try:
            return await take(session, mark_of(name), name, shown, timeout)
        except Busy as why:
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
                f"ended this wait{why}. Roll back and do it all again; take several locks in the "
                "same order everywhere"
            ) from why.__cause__
        except Stale as why:
            raise StaleSnapshot(
                f"{shown!r}: since this transaction began to read, another holder has changed what "
                "the lock protects, and it would not see that. Roll back and begin with the lock, "
                "before anything is read, or use READ COMMITTED"
            ) from why.__cause__

    async def _row(
        self, session: Session, mark: bytes, name: str, shown: str, timeout: float | None
    ) -> int:
        for _ in range(ATTEMPTS):
            known = await self._known(mark, name)
            if known.leased:
                raise Unsupported(
                    f"{shown!r} is held as a lease (client.lock, or another of its kind) just now: "
                    "a transaction lock excludes transaction locks, not leases. Use one of the two "
                    "for one purpose, or another name"
                )
            self._same(known.server, await session.server(table=True))
            fence = await session.free(mark)
            if fence is None:
                if timeout == 0:
                    raise Busy
                fence = await session.waited(mark, timeout)
            if fence is not None:
                grown = await session.grown(mark, fence, known.lease_fence)
                await self._sweep()
                return grown
        raise BackendError(f"{self._where}: the row of {shown!r} is gone as soon as it is made")

    async def _advisory(
        self, session: Session, mark: bytes, name: str, shown: str, timeout: float | None
    ) -> int:
        server = self._dialect.queued(await self._ask(self._dialect.waiter(), BUDGET))
        self._same(server, await session.server(table=False))
        return await session.advisory(mark, timeout)

    async def _known(self, mark: bytes, name: str) -> Known:
        """What there is, once the row is there and young."""
        known = self._dialect.understood(await self._ask(self._dialect.known(mark), BUDGET))
        if known.age is None:
            await self._ask(self._dialect.put(mark, name), BUDGET)
        elif known.age > YOUNG:
            # Who has it locked makes it young at its commit. It is not waited for.
            with contextlib.suppress(BackendError):
                await self._ask(self._dialect.put(mark, name), LEAST)
        return known

    async def _ask(self, request: Any, budget: float) -> Any:
        reply = self._transport.send(request, budget)
        return await reply if self._transport.suspends else reply

    def _same(self, ours: str, theirs: str) -> None:
        if ours != theirs:
            raise ConfigurationError(
                f"the connection leads to another database than this client: it is {theirs}, and "
                f"{self._where} is {ours}. The lock must live where the others look for it"
            )

    async def _sweep(self) -> None:
        """Now and then look at some names, the next ones each time, and take away what is old. If
        it fails, the next one does."""
        self._taken += 1
        if self._taken < SWEEP_EVERY:
            return
        self._taken = 0
        try:
            request = self._dialect.look(self._sweep_after, SWEEP_LOT, KEEP)
            rows = self._dialect.looked(await self._ask(request, BUDGET))
            self._sweep_after = rows[-1][0] if len(rows) >= SWEEP_LOT else b""
            gone = [self._dialect.drop(mark, KEEP) for mark, old in rows if old]
            if gone:
                await self._ask(gone, BUDGET)
        except BackendError:
            pass
