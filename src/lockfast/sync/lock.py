"""Lock and read-write lock of the sync API."""

from __future__ import annotations

from typing import Never

from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.lock import DEFAULT, BaseLock, BaseReadWriteLock, Default
from lockfast.core.ledger import Held
from lockfast.inputs import Seconds, checked_timeout, refuse_foreign
from lockfast.runtime.threads import run
from lockfast.sync.hold import Hold


class Lock(BaseLock[Hold]):
    __doc__ = BaseLock.__doc__

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """Acquire the lock and return the hold.

        Blocks for at most ``timeout`` seconds in total (0: try once; None: without limit; default:
        that of the lock). Re-entry needs no round trip. KeyboardInterrupt leaves nothing behind.
        Raises `AcquireTimeout`, which names the holder; `HoldLost` if this owner's outer hold is
        lost; `BackendError` if the store does not answer.
        """
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
        """Acquire as `acquire` does, but return None if ``timeout`` is over (0: try once)."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        terms = self._terms
        held = run(self._client.core.attempt(terms, checked_timeout(timeout)))
        if not isinstance(held, Held):
            return None
        return Hold(self._client, held, self._on_lost, terms.take)

    def release(self) -> None:
        """Release one level of the current owner's hold, as `threading.RLock` does.

        Raises as `Hold.release` does; `NotHeld` if the current owner does not hold the lock.
        """
        core = self._client.core
        run(core.release(core.find(self._terms), self._terms.take))

    def locked(self) -> bool:
        """Return True if anybody holds the lock. One round trip; may be outdated on arrival."""
        terms = self._terms
        return bool(run(self._client.core.inspect(terms.name, terms.layout)).holders)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        self._push(hold._held.owner, hold)
        return hold

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        self._pop(self._owner()).__exit__(kind, error, trace)


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
