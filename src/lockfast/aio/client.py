"""Client of the async API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Never, Self

from lockfast.aio.election import Election
from lockfast.aio.hold import Hold
from lockfast.aio.latches import Barrier, Latch
from lockfast.aio.lock import Lock, ReadWriteLock
from lockfast.aio.multi import MultiLock
from lockfast.aio.permits import Permits, Semaphore
from lockfast.api.client import APIS, EXIT_LIMIT, BaseClient
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.latches import DEFAULT_KEEP, MOST_COUNT
from lockfast.api.lock import checked_on_lost
from lockfast.api.multi import parts_of
from lockfast.api.permits import checked_permits
from lockfast.api.transactions import TransactionClaim
from lockfast.core.once import PeriodRun, begin, finish
from lockfast.core.terms import Terms
from lockfast.decorators import F, Kind, OnBusy, locked_by
from lockfast.inputs import (
    Seconds,
    checked_lease,
    checked_metadata,
    checked_number,
    checked_timeout,
)
from lockfast.keys import Key
from lockfast.model import BARRIER, LATCH, Snapshot
from lockfast.runtime.tasks import TaskRuntime
from lockfast.runtime.threads import BlockingRuntime
from lockfast.schedule import once_every_by
from lockfast.stores import Store


class Client(BaseClient):
    """Client of one store for asyncio. One per process is enough. A forked child holds nothing of
    its parent's."""

    api = "asyncio"

    @classmethod
    def on(
        cls, store: Store, *, lease: Seconds, namespace: str, warn_after: Seconds | None = None
    ) -> Self:
        """Return a client on a store that is already open."""
        keeper_backend = store.blocking(BlockingRuntime().signal)
        backend = store.tasks(BlockingRuntime().signal)
        # Some stores receive the wake-ups of tasks on the connection where the keeper listens.
        share_listener_of = getattr(backend, "share_listener_of", None)
        if share_listener_of is not None:
            share_listener_of(keeper_backend)
        return cls(
            store, TaskRuntime(), backend, keeper_backend,
            lease=lease, namespace=namespace, warn_after=warn_after,
        )  # fmt: skip

    def lock(
        self, name: str, *, timeout: Seconds | None = None, lease: Seconds | None = None,
        renew: bool | None = None, max_hold: Seconds | None = None, fair: bool = True,
        owner: object = None, label: str = "", on_lost: object = None, layout: str | None = None,
        warn_after: Seconds | None = None, **foreign: Never,
    ) -> Lock:  # fmt: skip
        """Return a lock on ``name``. No I/O until it is acquired.

        - ``timeout``: seconds to wait when acquiring; None waits without limit.
        - ``lease``: by default 30 s, renewed while held. A lease that you pass ends the hold,
          unless you also pass ``renew=True``.
        - ``max_hold``: seconds after which the hold ends, however often it was renewed.
        - ``fair``: serve waiters in arrival order; False lets this lock overtake them.
        - ``owner``: identity that may re-enter; by default the current task.
        - ``label``: text shown to operators.
        - ``on_lost``: function called once with the hold, on the keeper's thread, if it is lost; or
          ``"flag"``, to only set ``hold.lost`` and not cancel the body of ``async with``.
        - ``layout``: ``"simple"`` (Redis) or ``"kazoo"`` (ZooKeeper): the lock format of other
          libraries, to exclude their locks too.
        - ``warn_after``: seconds after which a hold is logged once, with its holder's stack;
          by default that of `connect`.

        Raises `ConfigurationError` for an invalid option, `Unsupported` if the store lacks it.
        """
        return self._lock(
            Lock, name, timeout, lease, renew, max_hold, fair, owner, label, on_lost, layout,
            warn_after, foreign,
        )  # fmt: skip

    def rwlock(
        self, name: str, *, timeout: Seconds | None = None, lease: Seconds | None = None,
        renew: bool | None = None, max_hold: Seconds | None = None, fair: bool = True,
        owner: object = None, label: str = "", on_lost: object = None,
        warn_after: Seconds | None = None, **foreign: Never,
    ) -> ReadWriteLock:  # fmt: skip
        """Return a read-write lock; ``.read()`` and ``.write()`` are locks as of `lock`. No I/O."""
        terms = self._terms(
            "rwlock()", name, lease, renew, max_hold, fair, owner, label, foreign,
            warn_after=warn_after,
        )  # fmt: skip
        return ReadWriteLock(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

    def semaphore(
        self, name: str, permits: int, *, timeout: Seconds | None = None,
        lease: Seconds | None = None, renew: bool | None = None, max_hold: Seconds | None = None,
        fair: bool = True, label: str = "", on_lost: object = None,
        warn_after: Seconds | None = None, **foreign: Never,
    ) -> Semaphore:  # fmt: skip
        """Return a semaphore of ``permits`` permits, with the options of `lock`. No I/O.

        A dead holder's permits become free when its lease ends. Acquiring raises
        `ConfigurationError` while the name is in use with another number of permits.
        """
        self._refuse_unless_offered("semaphore")
        terms = self._terms(
            "semaphore()", name, lease, renew, max_hold, fair, None, label, foreign,
            warn_after=warn_after,
        )._replace(slots=checked_permits(permits))  # fmt: skip
        return Semaphore(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

    def permits(
        self, name: str, permits: int, *, timeout: Seconds | None = None,
        lease: Seconds | None = None, fair: bool = True, label: str = "", **foreign: Never,
    ) -> Permits:  # fmt: skip
        """Return a pool of expirable permits, each with an id and a lease of its own. No I/O.

        Any process that knows the id can renew or release the permit. A permit ends ``lease``
        seconds (default: 30) after it was acquired or last renewed.
        """
        self._refuse_unless_offered("permits")
        seconds = self.lease if lease is None else lease
        terms = self._terms("permits()", name, seconds, False, None, fair, None, label, foreign)
        terms = terms._replace(slots=checked_permits(permits))
        return Permits(self, terms, checked_timeout(timeout))

    def multi_lock(
        self, *names: str | Lock, timeout: Seconds | None = None, lease: Seconds | None = None,
        renew: bool | None = None, max_hold: Seconds | None = None, fair: bool = True,
        owner: object = None, label: str = "", on_lost: object = None,
        warn_after: Seconds | None = None, **foreign: Never,
    ) -> MultiLock:  # fmt: skip
        """Return a lock on several names, acquired all or not at all. No I/O.

        Names belong to this client and get the options passed here; locks may belong to any client
        of the async API and keep their own options.
        """

        def terms_of(name: str) -> Terms:
            return self._terms(
                "multi_lock()", name, lease, renew, max_hold, fair, owner, label, foreign,
                warn_after=warn_after,
            )  # fmt: skip

        parts = parts_of(self, names, terms_of, Lock)
        return MultiLock(parts, checked_timeout(timeout), self._on_lost(on_lost))

    def transaction_lock(
        self, name: str, *, connection: object, timeout: Seconds | None = None,
        advisory: bool = False, **foreign: Never,
    ) -> TransactionClaim:  # fmt: skip
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
        shown, fence = self._transaction(name, connection, timeout, advisory, foreign)
        return TransactionClaim(shown, fence)

    def latch(
        self, name: str, count: int, *, keep: Seconds = DEFAULT_KEEP, label: str = "",
        **foreign: Never,
    ) -> Latch:  # fmt: skip
        """Return a latch that opens after ``count`` count-downs. No I/O.

        The store forgets the latch ``keep`` seconds (default: a day) after the last count-down.
        """
        self._refuse_unless_offered("latch")
        terms = self._terms("latch()", name, None, None, None, True, None, label, foreign)
        size = checked_number("count", count, MOST_COUNT)
        terms = terms._replace(slots=LATCH + size, take=0)
        return Latch(self, terms, checked_lease(keep, what="keep"), size)

    def barrier(self, name: str, parties: int, *, label: str = "", **foreign: Never) -> Barrier:
        """Return a reusable barrier where ``parties`` parties wait for each other. No I/O."""
        self._refuse_unless_offered("barrier")
        terms = self._terms("barrier()", name, None, None, None, True, None, label, foreign)
        size = checked_number("parties", parties, MOST_COUNT)
        return Barrier(self, terms._replace(slots=BARRIER + size), 0.0, size)

    def election(
        self, name: str, *, metadata: str = "", lease: Seconds | None = None,
        on_gained: Callable[[Hold], object] | None = None, on_lost: object = None, **foreign: Never,
    ) -> Election:  # fmt: skip
        """Return an election: one leader at a time. No I/O.

        Other processes see ``metadata`` while this one leads (its address, say). ``on_gained`` is
        called with the hold when this process becomes the leader, ``on_lost`` if it loses the lead.
        """
        terms = self._terms("election()", name, lease, True, None, True, None, "", foreign)
        # A lead is meant to last, so it is never logged as too long.
        terms = terms._replace(label=checked_metadata(metadata), warn_after=None)
        return Election(self, terms, on_gained, self._on_lost(on_lost))

    def once_every(
        self, period: Seconds | str, *, name: str | None = None, at_least: Seconds | str = 0,
        at_most: Seconds | str | None = None, label: str = "",
    ) -> Callable[[F], F]:  # fmt: skip
        """Return a decorator: of all processes that call the function, one runs it per ``period``.

        In the others the call returns None at once. ``period``: seconds, or text like "1h30m", on
        the store's clock. ``at_least``: no process runs it again until that long after the last run
        began, even in a new period. ``at_most``: a longer run loses its hold, and another process
        may run. ``name``: by default the function's qualified name. For ``def`` and ``async def``.
        """
        self._refuse_unless_offered("once_every")
        return once_every_by(lambda: self, period, name, at_least, at_most, label)

    def _on_lost(self, on_lost: object) -> object:
        return None if on_lost is None else checked_on_lost(on_lost, ("flag",))

    async def _begin_run(
        self, terms: Terms, period: float, at_least: float
    ) -> tuple[Hold, PeriodRun] | None:
        period_run = await begin(self.core, terms, period, at_least)
        return None if period_run is None else (Hold(self, period_run[0]), period_run)

    async def _finish_run(self, period_run: PeriodRun) -> None:
        await finish(self.core, period_run)

    def locked(
        self, key: Key, *, prefix: str | None = None, on_busy: OnBusy = "raise",
        kind: Kind = "lock", semaphore: int | None = None, **terms: Any,
    ) -> Callable[[F], F]:  # fmt: skip
        """Return a decorator: one call at a time per lock name, computed from the arguments.

        ``key`` is a template such as ``"orders:{order.id}"``, or a function of the same parameters.
        ``on_busy="skip"`` returns None instead of raising `AcquireTimeout`, at once without a
        timeout. ``kind="read"`` or ``"write"`` takes that half of a read-write lock,
        ``semaphore=5`` one of five permits. Other keywords are options of `lock`. For ``def`` and
        ``async def``. A mistake in the key or an option raises `ConfigurationError` at decoration.
        """
        return locked_by(
            lambda: self, key, prefix=prefix, on_busy=on_busy, kind=kind, semaphore=semaphore,
            terms=terms,
        )  # fmt: skip

    async def attach(
        self, name: str, detached: str, *, renew: bool | None = None,
        max_hold: Seconds | None = None, owner: object = None, label: str = "", **foreign: Never,
    ) -> Hold:  # fmt: skip
        """Take over a hold that another process detached, under the same fence.

        ``detached`` is the text that ``hold.detach()`` returned. One round trip. Raises `NotHeld`
        if the hold has ended meanwhile, `BackendError` if the store does not answer.
        """
        known = ("renew", "max_hold", "owner", "label")
        terms = self._terms(
            "attach()", name, None, renew, max_hold, True, owner, label, foreign, None, known
        )
        held = await self.core.attach(*self._attach_terms(terms, detached))
        return Hold(self, held, take=held.claim.take)

    async def inspect(self, name: str) -> Snapshot:
        """Return the holders of ``name`` and its waiters, in queue order. One round trip."""
        return self._without_namespace(await self.core.inspect(self._full(name)))

    async def names(self, prefix: str = "") -> list[str]:
        """Return the names that are held or waited for now and start with ``prefix``, sorted."""
        return self._bare_names(await self.core.names(f"{self.namespace}:{prefix}"))

    async def break_hold(self, name: str, fence: int) -> bool:
        """End the hold with this fence, of any process; return False if it had already ended.

        For operators. A live holder works on until it next renews: its resource must check fences.
        """
        return await self.core.break_hold(self._full(name), fence)

    async def close(self) -> None:
        """Release all holds and disconnect; locks of this client can no longer be acquired.

        Takes at most about a second: a hold whose release gets no answer ends with its lease.
        """
        await self.core.close(self._backend, EXIT_LIMIT)
        self._close_counterparts()
        self._backend.close()
        self._keeper_backend.close()
        await asyncio.sleep(0)  # the loop drops closed transports in its next iteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        await self.close()


APIS[Client.api] = Client
