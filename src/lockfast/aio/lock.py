"""A lock and a read-write lock, for asyncio."""

from __future__ import annotations

from asyncio import Task, current_task
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Never

from lockfast.aio.hold import Hold
from lockfast.api.lock import DEFAULT, BaseLock, BaseReadWriteLock, Default
from lockfast.core.ledger import Held
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign


class Lock(BaseLock[Hold]):
    __doc__ = BaseLock.__doc__

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """A hold, or `AcquireTimeout` that names the holder. Waits ``timeout`` seconds in all (0:
        asks once; None: without end), by default as the lock was told. Re-entry costs nothing.
        A cancelled acquire leaves nothing behind."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        return await self._client.core.acquire_soon(self._terms, wait_for, self._made)

    def _made(self, held: Held) -> Hold:
        return Hold(self._client, held, self._on_lost, self._terms.take)

    def _begun(self, held: Held, hold: Hold | None = None) -> Hold:
        """The same, and a block of the current task begins with it."""
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
        """A hold, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await self._client.core.attempt(self._terms, checked_timeout(timeout))
        return self._made(held) if isinstance(held, Held) else None

    async def release(self) -> None:
        """Give back the current owner's hold, one step, as `threading.RLock` does."""
        core = self._client.core
        await core.release(core.find(self._terms), self._terms.take)

    async def locked(self) -> bool:
        """Does anybody hold it? One round trip, and old news when it arrives."""
        terms = self._terms
        return bool((await self._client.core.inspect(terms.name, terms.layout)).holders)

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._client.core.acquire_soon(self._terms, self._timeout, self._begun)

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        owner = self._terms.owner
        if owner is None:
            owner = current_task() or self._owner()
        return self._pop(owner).__aexit__(kind, error, trace)


class ReadWriteLock(BaseReadWriteLock):
    __doc__ = BaseReadWriteLock.__doc__

    def read(self) -> Lock:
        """The reading half, a lock: many may hold it at once, and nobody writes meanwhile."""
        return Lock(self._client, self._reading(), self._timeout, self._on_lost)

    def write(self) -> Lock:
        """The writing half, a lock: whoever holds it is alone. It may also read, and goes on
        reading when it releases the write hold first. A reader cannot ask to write: it would wait
        for itself, and gets `WouldDeadlock`."""
        return Lock(self._client, self._writing(), self._timeout, self._on_lost)
