"""A lock and a read-write lock, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Never

from holdfast.aio.hold import Hold
from holdfast.core.ledger import Held
from holdfast.face.lock import DEFAULT, Default, LockFace, ReadWriteFace
from holdfast.inputs import Seconds, checked_timeout, refuse_foreign


class Lock(LockFace[Hold]):
    __doc__ = LockFace.__doc__

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """A hold, or `AcquireTimeout` that names the holder. Waits ``timeout`` seconds in all (0:
        asks once; None: without end), by default as the lock was told. Re-entry costs nothing.
        A cancelled acquire leaves nothing behind."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        return await self._got(self._timeout if timeout is DEFAULT else checked_timeout(timeout))

    async def _got(self, timeout: float | None, *, entering: bool = False) -> Hold:
        """A hold; with its block begun, if we are ``entering`` one."""
        terms, core = self._terms, self._client.core
        held = await core.attempt(terms, timeout)
        if not isinstance(held, Held):
            await core.refuse(terms, timeout, held)
        hold = Hold(self._client, held, self._on_lost, terms.take)
        if entering:
            self._begin(hold)
        return hold

    def _begin(self, hold: Hold) -> None:
        """A block of the current task begins."""
        owner = hold._held.owner
        self._push(owner, hold)
        if self._terms.owner is None and isinstance(owner, asyncio.Task):
            hold._enter(owner)
        else:
            hold._enter(asyncio.current_task())

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """A hold, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        terms = self._terms
        held = await self._client.core.attempt(terms, checked_timeout(timeout))
        if not isinstance(held, Held):
            return None
        return Hold(self._client, held, self._on_lost, terms.take)

    async def release(self) -> None:
        """Give back the current owner's hold, one step, as `threading.RLock` does."""
        core = self._client.core
        await core.release(core.find(self._terms), self._terms.take)

    async def locked(self) -> bool:
        """Does anybody hold it? One round trip, and old news when it arrives."""
        terms = self._terms
        return bool((await self._client.core.inspect(terms.name, terms.layout)).holders)

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._got(self._timeout, entering=True)

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        owner = self._terms.owner
        if owner is None:
            owner = asyncio.current_task() or self._owner()
        return self._pop(owner).__aexit__(kind, error, trace)


class ReadWriteLock(ReadWriteFace):
    __doc__ = ReadWriteFace.__doc__

    def read(self) -> Lock:
        """The reading half, a lock: many may hold it at once, and nobody writes meanwhile."""
        return Lock(self._client, self._reading(), self._timeout, self._on_lost)

    def write(self) -> Lock:
        """The writing half, a lock: whoever holds it is alone. It may also read, and goes on
        reading when it releases the write hold first. A reader cannot ask to write: it would wait
        for itself, and gets `WouldDeadlock`."""
        return Lock(self._client, self._writing(), self._timeout, self._on_lost)
