"""A lock and a read-write lock, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Never

from lockfast.api.lock import DEFAULT, BaseLock, BaseReadWriteLock, Default
from lockfast.core.ledger import Held
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign
from lockfast.runtime.threads import run
from lockfast.sync.hold import Hold


class Lock(BaseLock[Hold]):
    __doc__ = BaseLock.__doc__

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """A hold, or `AcquireTimeout` that names the holder. Waits ``timeout`` seconds in all (0:
        asks once; None: without end), by default as the lock was told. Re-entry costs nothing."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        client, terms = self._client, self._terms
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = client.core.attempt_now(terms, wait_for)
        if not isinstance(held, Held):
            outcome = run(held)
            if not isinstance(outcome, Held):
                run(client.core.refuse(terms, wait_for, outcome))
            held = outcome
        return Hold(client, held, self._on_lost, terms.take)

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """A hold, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        terms = self._terms
        held = run(self._client.core.attempt(terms, checked_timeout(timeout)))
        if not isinstance(held, Held):
            return None
        return Hold(self._client, held, self._on_lost, terms.take)

    def release(self) -> None:
        """Give back the current owner's hold, one step, as `threading.RLock` does."""
        core = self._client.core
        run(core.release(core.find(self._terms), self._terms.take))

    def locked(self) -> bool:
        """Does anybody hold it? One round trip, and old news when it arrives."""
        terms = self._terms
        return bool(run(self._client.core.inspect(terms.name, terms.layout)).holders)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        self._push(hold._held.owner, hold)
        return hold

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pop(self._owner()).__exit__(kind, error, trace)


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
