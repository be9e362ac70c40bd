"""Client of the async API."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal, Never, Self, Unpack, overload

from lockfast.aio import native
from lockfast.aio.counting import Barrier, Latch, Permits, Semaphore
from lockfast.aio.election import Election
from lockfast.aio.hold import Hold
from lockfast.aio.lock import Lock, MultiLock, ReadWriteLock
from lockfast.aio.native import TransactionClaim
from lockfast.aio.options import (
    LockedOptions,
    LockOptions,
    MultiLockOptions,
    OnLost,
    ReadWriteLockOptions,
    SemaphoreOptions,
)
from lockfast.api.client import APIS, EXIT_LIMIT, BaseClient
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.primitives import DEFAULT_KEEP, MOST_COUNT, checked_permits, parts_of
from lockfast.core.ledger import bare
from lockfast.core.primitives import PeriodRun, begin_run, finish_run
from lockfast.core.terms import Terms
from lockfast.decorators import F, OnBusy, Skippable, locked_by, once_every_by
from lockfast.inputs import (
    Seconds,
    checked_lease,
    checked_metadata,
    checked_number,
    checked_timeout,
    refuse_foreign,
)
from lockfast.keys import Key
from lockfast.model import BARRIER, LATCH, Snapshot


class Client(BaseClient):
    """Client of one store for asyncio. One per process is enough. A forked child holds nothing of
    its parent's."""

    _api = native.API
    _on_lost_choices = native.ON_LOST_CHOICES
    _open_stores = staticmethod(native.open_stores)

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        """Return a lock on ``name``. No I/O until it is acquired.

        `LockOptions` describes the options: ``timeout``, ``lease``, ``renew``, ``max_hold``,
        ``fair``, ``owner``, ``label``, ``on_lost``, ``layout``, ``warn_after``. Raises
        `ConfigurationError` for an invalid option, `Unsupported` if the store lacks it.
        """
        if not options:
            return self._plain_lock(Lock, name)
        return Lock(self, *self._chosen("lock()", name, options, LockOptions))

    def rwlock(self, name: str, **options: Unpack[ReadWriteLockOptions]) -> ReadWriteLock:
        """Return a read-write lock; ``.read()`` and ``.write()`` are locks as of `lock`. No I/O."""
        return ReadWriteLock(self, *self._chosen("rwlock()", name, options, ReadWriteLockOptions))

    def semaphore(self, name: str, permits: int, **options: Unpack[SemaphoreOptions]) -> Semaphore:
        """Return a semaphore of ``permits`` permits, with the options of `lock`. No I/O.

        A dead holder's permits become free when its lease ends. Acquiring raises
        `ConfigurationError` while the name is in use with another number of permits.
        """
        self._refuse_unless_offered("semaphore")
        terms, timeout, on_lost = self._chosen("semaphore()", name, options, SemaphoreOptions)
        return Semaphore(self, terms._replace(slots=checked_permits(permits)), timeout, on_lost)

    def permits(
        self,
        name: str,
        permits: int,
        *,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        fair: bool = True,
        label: str = "",
        **foreign: Never,
    ) -> Permits:
        """Return a pool of expirable permits, each with an id and a lease of its own. No I/O.

        Any process that knows the id can renew or release the permit. A permit ends ``lease``
        seconds (default: 30) after it was acquired or last renewed.
        """
        refuse_foreign("permits()", foreign, ("timeout", "lease", "fair", "label"))
        self._refuse_unless_offered("permits")
        terms = self._terms(name, lease=lease, renew=False, fair=fair, label=label)
        terms = terms._replace(slots=checked_permits(permits))
        return Permits(self, terms, checked_timeout(timeout))

    def multi_lock(self, *names: str | Lock, **options: Unpack[MultiLockOptions]) -> MultiLock:
        """Return a lock on several names, acquired all or not at all. No I/O.

        Names belong to this client and get the options passed here; locks may belong to any client
        of the async API and keep their own options.
        """
        terms, timeout, on_lost = self._chosen("multi_lock()", "any", options, MultiLockOptions)
        parts = parts_of(self, names, lambda name: terms._replace(name=self._full(name)), Lock)
        return MultiLock(parts, timeout, on_lost)

    def transaction_lock(
        self,
        name: str,
        *,
        connection: object,
        timeout: Seconds | None = None,
        advisory: bool = False,
        **foreign: Never,
    ) -> TransactionClaim:
        """Lock ``name`` in your own open transaction: ``await`` the result, or ``async with`` it.

        ``connection`` has the open transaction: asyncmy, psycopg, or a SQLAlchemy connection or
        session. The lock ends with the transaction (commit, rollback, lost connection), not with an
        ``async with`` block. No lease can run out, so for data in the same database this is the
        safest lock. It excludes other transaction locks of the name, but not `lock` and the like
        (mixing is refused where it is detected). Refused in autocommit mode, where it would end at
        once. ``advisory=True`` (PostgreSQL) uses an advisory lock instead of a row.

        Waits for at most ``timeout`` seconds, then raises `AcquireTimeout` and leaves your
        transaction as it was. After `WouldDeadlock` or `StaleSnapshot`, roll back and run it again.
        """
        known = ("connection", "timeout", "advisory")
        refuse_foreign("transaction_lock()", foreign, known)
        return native.transaction(name, self._transaction(name, connection, timeout, advisory))

    def latch(
        self,
        name: str,
        count: int,
        *,
        keep: Seconds = DEFAULT_KEEP,
        label: str = "",
        **foreign: Never,
    ) -> Latch:
        """Return a latch that opens after ``count`` count-downs. No I/O.

        The store forgets the latch ``keep`` seconds (default: a day) after the last count-down.
        """
        refuse_foreign("latch()", foreign, ("keep", "label"))
        self._refuse_unless_offered("latch")
        size = checked_number("count", count, MOST_COUNT)
        terms = self._terms(name, label=label)._replace(slots=LATCH + size, take=0)
        return Latch(self, terms, size, checked_lease(keep, what="keep"))

    def barrier(self, name: str, parties: int, *, label: str = "", **foreign: Never) -> Barrier:
        """Return a reusable barrier where ``parties`` parties wait for each other. No I/O."""
        refuse_foreign("barrier()", foreign, ("label",))
        self._refuse_unless_offered("barrier")
        size = checked_number("parties", parties, MOST_COUNT)
        return Barrier(self, self._terms(name, label=label)._replace(slots=BARRIER + size), size)

    def election(
        self,
        name: str,
        *,
        metadata: str = "",
        lease: Seconds | None = None,
        on_gained: Callable[[Hold], object] | None = None,
        on_lost: OnLost = None,
        **foreign: Never,
    ) -> Election:
        """Return an election: one leader at a time. No I/O.

        Other processes see ``metadata`` while this one leads (its address, say). ``on_gained`` is
        called with the hold when this process becomes the leader, ``on_lost`` if it loses the lead.
        """
        refuse_foreign("election()", foreign, ("metadata", "lease", "on_gained", "on_lost"))
        terms = self._terms(name, lease=lease, renew=True)
        # A lead is meant to last, so it is never logged as too long.
        terms = terms._replace(label=checked_metadata(metadata), warn_after=None)
        return Election(self, terms, on_gained, self._checked_on_lost(on_lost))

    def once_every(
        self,
        period: Seconds | str,
        *,
        name: str | None = None,
        at_least: Seconds | str = 0,
        at_most: Seconds | str | None = None,
        label: str = "",
    ) -> Skippable:
        """Return a decorator: of all processes that call the function, one runs it per ``period``.

        In the others the call returns None at once. ``period``: seconds, or text like "1h30m", on
        the store's clock. ``at_least``: no process runs it again until that long after the last run
        began, even in a new period. ``at_most``: a longer run loses its hold, and another process
        may run. ``name``: by default the function's qualified name. For ``def`` and ``async def``.
        """
        self._refuse_unless_offered("once_every")
        return once_every_by(lambda: self, period, name, at_least, at_most, label)

    async def _begin_run(
        self, terms: Terms, period: float, at_least: float
    ) -> tuple[Hold, PeriodRun] | None:
        period_run = await begin_run(self._core, terms, period, at_least)
        return None if period_run is None else (Hold(self, period_run[0]), period_run)

    async def _finish_run(self, period_run: PeriodRun) -> None:
        await finish_run(self._core, period_run)

    @overload
    def locked(
        self, key: Key, *, on_busy: Literal["skip"], **options: Unpack[LockedOptions]
    ) -> Skippable: ...
    @overload
    def locked(
        self, key: Key, *, on_busy: Literal["raise"] = "raise", **options: Unpack[LockedOptions]
    ) -> Callable[[F], F]: ...
    def locked(
        self, key: Key, *, on_busy: OnBusy = "raise", **options: Unpack[LockedOptions]
    ) -> object:
        """Return a decorator: one call at a time per lock name, computed from the arguments.

        ``key`` is a template such as ``"orders:{order.id}"``, or a function of the same parameters.
        ``on_busy="skip"`` returns None instead of raising `AcquireTimeout`, at once without a
        timeout. ``kind="read"`` or ``"write"`` takes that half of a read-write lock,
        ``semaphore=5`` one of five permits. `LockedOptions` describes all options. For ``def`` and
        ``async def``. A mistake in the key or an option raises `ConfigurationError` at decoration.
        """
        return locked_by(lambda: self, key, on_busy, options)

    async def attach(
        self,
        name: str,
        detached: str,
        *,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        owner: Hashable = None,
        label: str = "",
        **foreign: Never,
    ) -> Hold:
        """Take over a hold that another process detached, under the same fence.

        ``detached`` is the text that ``hold.detach()`` returned. One round trip. Raises `NotHeld`
        if the hold has ended meanwhile, `BackendError` if the store does not answer.
        """
        refuse_foreign("attach()", foreign, ("renew", "max_hold", "owner", "label"))
        terms = self._terms(name, renew=renew, max_hold=max_hold, owner=owner, label=label)
        held = await self._core.attach(*self._attach_terms(terms, detached))
        return Hold(self, held, take=held.claim.take)

    async def inspect(self, name: str) -> Snapshot:
        """Return the holders of ``name`` and its waiters, in queue order. One round trip."""
        return self._without_namespace(await self._core.inspect(self._full(name)))

    async def names(self, prefix: str = "") -> list[str]:
        """Return the names that are held or waited for now and start with ``prefix``, sorted."""
        return [bare(name) for name in await self._core.names(f"{self._namespace}:{prefix}")]

    async def break_hold(self, name: str, fence: int) -> bool:
        """End the hold with this fence, of any process; return False if it had already ended.

        For operators. A live holder works on until it next renews: its resource must check fences.
        """
        return await self._core.break_hold(self._full(name), fence)

    async def close(self) -> None:
        """Release all holds and disconnect; locks of this client can no longer be acquired.

        Takes at most about a second: a hold whose release gets no answer ends with its lease.
        """
        await self._core.close(self._store, EXIT_LIMIT)
        self._disconnect()
        await self._core.runtime.sleep(0)  # an event loop now drops the closed transports

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        await self.close()


APIS[Client._api] = Client
