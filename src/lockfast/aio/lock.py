"""Lock and read-write lock of the async API."""

from __future__ import annotations

from asyncio import Task, current_task
from collections.abc import Coroutine
from typing import Any, Never

from lockfast.aio.hold import Hold
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.lock import DEFAULT, BaseLock, BaseReadWriteLock, Default
from lockfast.core.ledger import Held
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign


class Lock(BaseLock[Hold]):
    __doc__ = BaseLock.__doc__

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """Acquire the lock and return the hold.

        Waits for at most ``timeout`` seconds in total (0: try once; None: without limit; default:
        that of the lock). Re-entry needs no round trip. A cancelled acquire leaves nothing behind.
        Raises `AcquireTimeout`, which names the holder; `HoldLost` if this owner's outer hold is
        lost; `BackendError` if the store does not answer.
        """
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        return await self._client.core.acquire_soon(self._terms, wait_for, self._new_hold)

    def _new_hold(self, held: Held) -> Hold:
        return Hold(self._client, held, self._on_lost, self._terms.take)

    def _enter_block(self, held: Held, hold: Hold | None = None) -> Hold:
        """Create the hold, if needed, and begin a block of the current task with it."""
        if hold is None:
            hold = Hold(self._client, held, self._on_lost, self._terms.take)
        owner = held.owner
        self._push(owner, hold)
        if self._terms.owner is None and isinstance(owner, Task):
            hold._enter(owner)
        else:
            hold._enter(current_task())
        return hold

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """Acquire as `acquire` does, but return None if ``timeout`` is over (0: try once)."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await self._client.core.attempt(self._terms, checked_timeout(timeout))
        return self._new_hold(held) if isinstance(held, Held) else None

    async def release(self) -> None:
        """Release one level of the current owner's hold, as `threading.RLock` does.

        Raises as `Hold.release` does; `NotHeld` if the current owner does not hold the lock.
        """
        core = self._client.core
        await core.release(core.find(self._terms), self._terms.take)

    async def locked(self) -> bool:
        """Return True if anybody holds the lock. One round trip; may be outdated on arrival."""
        terms = self._terms
        return bool((await self._client.core.inspect(terms.name, terms.layout)).holders)

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._client.core.acquire_soon(self._terms, self._timeout, self._enter_block)

    def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> Coroutine[Any, Any, None]:
        owner = self._terms.owner
        if owner is None:
            owner = current_task() or self._owner()
        return self._pop(owner).__aexit__(kind, error, trace)


class ReadWriteLock(BaseReadWriteLock):
    __doc__ = BaseReadWriteLock.__doc__

    def read(self) -> Lock:
        """Return the read lock: many readers may hold it at once, and no writer meanwhile."""
        return Lock(self._client, self._reading(), self._timeout, self._on_lost)

    def write(self) -> Lock:
        """Return the write lock: its holder excludes all readers and other writers.

        A writer may also read, and stays a reader if it releases the write hold first. A reader
        that asks to write would wait for itself: `WouldDeadlock`.
        """
        return Lock(self._client, self._writing(), self._timeout, self._on_lost)
