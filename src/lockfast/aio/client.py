"""A client of one store, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Never, Self

from lockfast.aio.election import Election
from lockfast.aio.hold import Hold
from lockfast.aio.latches import Barrier, Latch
from lockfast.aio.lock import Lock, ReadWriteLock
from lockfast.aio.multi import MultiLock
from lockfast.aio.permits import Permits, Semaphore
from lockfast.api.client import (
    APIS,
    EXIT_LIMIT,
    BaseClient,
)
from lockfast.api.latches import DEFAULT_KEEP, MOST_COUNT
from lockfast.api.lock import checked_on_lost
from lockfast.api.multi import parts_of
from lockfast.api.permits import checked_permits
from lockfast.api.transactions import TransactionClaim
from lockfast.core.once import Turn, begin, finish
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
    """A client of one store, for asyncio. One per process is enough. Safe across fork."""

    api = "asyncio"

    @classmethod
    def on(
        cls, store: Store, *, lease: Seconds, namespace: str, warn_after: Seconds | None = None
    ) -> Self:
        """A client on a store that is open already."""
        keeper_backend = store.blocking(BlockingRuntime().signal)
        backend = store.tasks(BlockingRuntime().signal)
        # Some stores hear the bells of tasks where the keeper listens.
        listened_by = getattr(backend, "listened_by", None)
        if listened_by is not None:
            listened_by(keeper_backend)
        return cls(
            store, TaskRuntime(), backend, keeper_backend,
            lease=lease, namespace=namespace, warn_after=warn_after,
        )  # fmt: skip

    def lock(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        fair: bool = True,
        owner: object = None,
        label: str = "",
        on_lost: object = None,
        layout: str | None = None,
        warn_after: Seconds | None = None,
        **foreign: Never,
    ) -> Lock:
        """A lock on ``name``; no I/O until it is acquired.

        ``timeout``: how long to wait (None: without end). ``lease``: none given is 30 s, renewed as
        long as you hold it; one that is given ends it after that time unless ``renew=True``.
        ``max_hold`` caps renewal. ``fair``: in arrival order, or whoever comes first. ``owner``:
        who may re-enter, by default the current task. ``label``: shown to operators. ``on_lost``:
        called with the hold, once, on the keeper's thread, if it is lost; ``"flag"``: do not
        cancel the body of ``async with`` then, only set ``hold.lost``. ``layout="simple"`` (Redis)
        and ``"kazoo"`` (ZooKeeper): the lock that other libraries write, to exclude them too.
        ``warn_after``: a hold that lasts longer is logged, once, with the stack of who acquired it;
        by default as `connect` was told.
        """
        return self._lock(
            Lock, name, timeout, lease, renew, max_hold, fair, owner, label, on_lost, layout,
            warn_after, foreign,
        )  # fmt: skip

    def rwlock(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        fair: bool = True,
        owner: object = None,
        label: str = "",
        on_lost: object = None,
        warn_after: Seconds | None = None,
        **foreign: Never,
    ) -> ReadWriteLock:
        """A read-write lock: ``.read()`` and ``.write()`` are locks, with the keywords of `lock`.
        Many readers or one writer, in the order of arrival."""
        terms = self._terms(
            "rwlock()", name, lease, renew, max_hold, fair, owner, label, foreign,
            warn_after=warn_after,
        )  # fmt: skip
        return ReadWriteLock(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        fair: bool = True,
        label: str = "",
        on_lost: object = None,
        warn_after: Seconds | None = None,
        **foreign: Never,
    ) -> Semaphore:
        """A semaphore of so many permits, with the keywords of `lock`. A holder that dies gives its
        permits back when its lease ends. The same name with another number is an error."""
        self._refuse_unless_offered("semaphore")
        terms = self._terms(
            "semaphore()", name, lease, renew, max_hold, fair, None, label, foreign,
            warn_after=warn_after,
        )._replace(slots=checked_permits(permits))  # fmt: skip
        return Semaphore(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

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
        """Permits that expire, each with an id of its own: any process that knows the id can renew
        or release it. ``lease`` (30 s) is how long one lasts."""
        self._refuse_unless_offered("permits")
        seconds = self.lease if lease is None else lease
        terms = self._terms("permits()", name, seconds, False, None, fair, None, label, foreign)
        terms = terms._replace(slots=checked_permits(permits))
        return Permits(self, terms, checked_timeout(timeout))

    def multi_lock(
        self,
        *names: str | Lock,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        fair: bool = True,
        owner: object = None,
        label: str = "",
        on_lost: object = None,
        warn_after: Seconds | None = None,
        **foreign: Never,
    ) -> MultiLock:
        """Several names as one lock: all or nothing. Names of this client, with the keywords of
        `lock`, and locks of any client, which keep their own terms."""

        def terms_of(name: str) -> Terms:
            return self._terms(
                "multi_lock()", name, lease, renew, max_hold, fair, owner, label, foreign,
                warn_after=warn_after,
            )  # fmt: skip

        parts = parts_of(self, names, terms_of, Lock)
        return MultiLock(parts, checked_timeout(timeout), self._on_lost(on_lost))

    def transaction_lock(
        self,
        name: str,
        *,
        connection: object,
        timeout: Seconds | None = None,
        advisory: bool = False,
        **foreign: Never,
    ) -> TransactionClaim:
        """Lock ``name`` in your own open transaction: ``await`` it, or ``async with``.

        ``connection`` has that transaction: one of asyncmy or psycopg, or SQLAlchemy connection or
        session. The lock ends with it, by commit, rollback or a lost connection, and not before: a
        block ends nothing. No lease can run out: with the data in the same database it is the
        safest lock there is. It excludes other transaction locks of this name, not `lock` and its
        kind (refused where it is noticed), and is refused in autocommit, where it would end at
        once. ``advisory`` (PostgreSQL): without a row of ours.

        Waits at most ``timeout`` seconds, then `AcquireTimeout`; your transaction is as it was.
        `WouldDeadlock` and `StaleSnapshot`: roll back, and do it all again.
        """
        shown, taking = self._transaction(name, connection, timeout, advisory, foreign)
        return TransactionClaim(shown, taking)

    def latch(
        self,
        name: str,
        count: int,
        *,
        keep: Seconds = DEFAULT_KEEP,
        label: str = "",
        **foreign: Never,
    ) -> Latch:
        """A latch that opens when it was counted down ``count`` times. What is counted is forgotten
        ``keep`` seconds after the last count-down (a day)."""
        self._refuse_unless_offered("latch")
        terms = self._terms("latch()", name, None, None, None, True, None, label, foreign)
        size = checked_number("count", count, MOST_COUNT)
        gate = terms._replace(slots=LATCH + size, take=0)
        return Latch(self, gate, checked_lease(keep, what="keep"), size)

    def barrier(self, name: str, parties: int, *, label: str = "", **foreign: Never) -> Barrier:
        """A barrier at which ``parties`` wait for each other, again and again."""
        self._refuse_unless_offered("barrier")
        terms = self._terms("barrier()", name, None, None, None, True, None, label, foreign)
        size = checked_number("parties", parties, MOST_COUNT)
        return Barrier(self, terms._replace(slots=BARRIER + size), 0.0, size)

    def election(
        self,
        name: str,
        *,
        metadata: str = "",
        lease: Seconds | None = None,
        on_gained: Callable[[Hold], object] | None = None,
        on_lost: object = None,
        **foreign: Never,
    ) -> Election:
        """An election: one leader at a time. ``metadata`` is what others learn of us while we lead
        (an address, say). ``on_gained`` is called with the hold when we begin to lead, ``on_lost``
        if we lose it."""
        terms = self._terms("election()", name, lease, True, None, True, None, "", foreign)
        # A lead is meant to last: nobody is warned of it.
        terms = terms._replace(label=checked_metadata(metadata), warn_after=None)
        return Election(self, terms, on_gained, self._on_lost(on_lost))

    def once_every(
        self,
        period: Seconds | str,
        *,
        name: str | None = None,
        at_least: Seconds | str = 0,
        at_most: Seconds | str | None = None,
        label: str = "",
    ) -> Callable[[F], F]:
        """A decorator: of all processes that call it, one runs per ``period`` (seconds, or text as
        "5m", "1h30m"); for the others it returns None at once. Periods are counted on the store's
        clock. Nobody runs again before ``at_least`` has passed since the last run began, though a
        new period has begun; a run that lasts longer than ``at_most`` loses its turn. ``name`` is
        the function's, unless it is given. Works on ``def`` and ``async def``."""
        self._refuse_unless_offered("once_every")
        return once_every_by(lambda: self, period, name, at_least, at_most, label)

    def _on_lost(self, on_lost: object) -> object:
        return None if on_lost is None else checked_on_lost(on_lost, ("flag",))

    async def _begin_turn(
        self, terms: Terms, period: float, at_least: float
    ) -> tuple[Hold, Turn] | None:
        turn = await begin(self.core, terms, period, at_least)
        return None if turn is None else (Hold(self, turn[0]), turn)

    async def _finish_turn(self, turn: Turn) -> None:
        await finish(self.core, turn)

    def locked(
        self,
        key: Key,
        *,
        prefix: str | None = None,
        on_busy: OnBusy = "raise",
        kind: Kind = "lock",
        semaphore: int | None = None,
        **terms: Any,
    ) -> Callable[[F], F]:
        """A decorator: one call at a time per name that the key expression makes of the arguments.

        ``on_busy="skip"`` returns None instead of raising `AcquireTimeout` (at once if no timeout
        is given). ``kind="read"`` or ``"write"`` takes that half of a read-write lock,
        ``semaphore=5`` a permit of such a semaphore. Works on ``def`` and ``async def``; a wrong
        expression fails here, at import.
        """
        return locked_by(
            lambda: self,
            key,
            prefix=prefix,
            on_busy=on_busy,
            kind=kind,
            semaphore=semaphore,
            terms=terms,
        )

    async def attach(
        self,
        name: str,
        detached: str,
        *,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        owner: object = None,
        label: str = "",
        **foreign: Never,
    ) -> Hold:
        """Take over a hold that another process detached; same fence. `NotHeld` if it ended."""
        known = ("renew", "max_hold", "owner", "label")
        terms = self._terms(
            "attach()", name, None, renew, max_hold, True, owner, label, foreign, None, known
        )
        held = await self.core.attach(*self._attach_terms(terms, detached))
        return Hold(self, held, take=held.claim.take)

    async def inspect(self, name: str) -> Snapshot:
        """Who holds it, since when, and who waits, in order."""
        return self._shown(await self.core.inspect(self._full(name)))

    async def names(self, prefix: str = "") -> list[str]:
        """The names that are held or waited for now, sorted."""
        return self._bare_names(await self.core.names(f"{self.namespace}:{prefix}"))

    async def break_hold(self, name: str, fence: int) -> bool:
        """End somebody's hold, if it still has this fence; it is told that it is lost. For
        operators: a holder that is alive goes on until it hears of it."""
        return await self.core.break_hold(self._full(name), fence)

    async def close(self) -> None:
        """Give back everything and stop. Locks of this client cannot be acquired any more."""
        await self.core.close(self._backend, EXIT_LIMIT)
        self._close_counterparts()
        self._backend.close()
        self._keeper_backend.close()
        await asyncio.sleep(0)  # what was closed is let go of in the loop's next turn

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


APIS[Client.api] = Client
