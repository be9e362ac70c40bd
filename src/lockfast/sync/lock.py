# Generated from lockfast/aio/lock.py by tools/generate_sync.py: change that file instead.
"""Lock, read-write lock and multi-lock of the sync API."""

from __future__ import annotations

from typing import Never

from lockfast.api.blocks import BlockEnd, end_of
from lockfast.api.hold import Error, ErrorType, Trace
from lockfast.api.primitives import (
    DEFAULT,
    BaseLock,
    BaseMultiLock,
    BaseReadWriteLock,
    Default,
)
from lockfast.core.acquire import SoonHeld
from lockfast.core.ledger import Held
from lockfast.core.multi import Refused, attempt_all
from lockfast.inputs import Seconds
from lockfast.runtime.threads import run
from lockfast.sync.hold import Hold, MultiHold
from lockfast.sync.native import begin_body, block_end


class Lock(BaseLock[Hold]):
    __doc__ = BaseLock.__doc__

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """Acquire the lock and return the hold.

        Blocks for at most ``timeout`` seconds in total (0: try once; None: without limit; default:
        that of the lock). Re-entry needs no round trip. KeyboardInterrupt leaves nothing behind.
        Raises `AcquireTimeout`, which names the holder; `HoldLost` if this owner's outer hold is
        lost; `BackendError` if the store does not answer.
        """
        wait_for = self._wait_for("acquire()", timeout, foreign)
        held: SoonHeld | None = None
        try:
            held = self._client._core.acquire(self._terms, wait_for)
            if not isinstance(held, Held):
                held = run(held)
            return Hold(self._client, held, self._on_lost, self._terms.take)
        except BaseException:
            if isinstance(held, Held):
                self._undo(held, held.count)
            raise

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """Acquire as `acquire` does, but return None if ``timeout`` is over (0: try once)."""
        wait_for = self._wait_for("try_acquire()", timeout, foreign)
        held = run(self._client._core.attempt(self._terms, wait_for))
        if not isinstance(held, Held):
            return None
        return Hold(self._client, held, self._on_lost, self._terms.take)

    def release(self) -> None:
        """Release one level of the current owner's hold, as `threading.RLock` does.

        Raises as `Hold.release` does; `NotHeld` if the current owner does not hold the lock.
        """
        core = self._client._core
        run(core.wait_released(core.find(self._terms), self._terms.take))

    def locked(self) -> bool:
        """Return True if anybody holds the lock. One round trip; may be outdated on arrival."""
        seen = run(self._client._core.inspect(self._terms.name, self._terms.layout))
        return bool(seen.holders)

    def __enter__(self) -> Hold:
        end = end_of(self)
        held: SoonHeld | None = None
        try:
            held = self._client._core.acquire(self._terms, self._timeout)
            if not isinstance(held, Held):
                held = run(held)
            hold = Hold(self._client, held, self._on_lost, self._terms.take)
            return self._begin_block(hold, end)
        except BaseException:
            # A signal handler may raise at any instant, also after the grant.
            if isinstance(held, Held):
                entered = self._entered.get(held.owner)
                if entered and entered._held is held and entered._depth == held.count:
                    self._pop(held.owner)
                self._undo(held, held.count)
            raise

    def _begin_block(self, hold: Hold, end: BlockEnd | None) -> Hold:
        self._push(hold._held.owner, hold)
        hold._body = begin_body(hold, end)
        return hold

    @block_end
    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        return self._pop(self._owner())._end(error)

    def _undo(self, held: Held, depth: int) -> None:
        rest = self._client._core.undo(held, depth, self._terms.take)
        if rest is not None:
            run(rest)


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


class MultiLock(BaseMultiLock[MultiHold]):
    __doc__ = BaseMultiLock.__doc__

    def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> MultiHold:
        """Acquire all names and return one hold for them.

        Blocks for at most ``timeout`` seconds in total (default: that of the lock), then raises
        `AcquireTimeout`, which shows the first name that was not free and its holder. A failed or
        interrupted acquire leaves nothing behind.
        """
        wait_for = self._wait_for("acquire()", timeout, foreign)
        held = run(attempt_all(self._parts, wait_for))
        if isinstance(held, Refused):
            core, terms = held.part
            run(core.refuse(terms, wait_for, held.outcome))
        return MultiHold(self._entries(held), self._on_lost)

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> MultiHold | None:
        """Acquire all names within ``timeout`` seconds (0: try once); return the hold, or None."""
        wait_for = self._wait_for("try_acquire()", timeout, foreign)
        held = run(attempt_all(self._parts, wait_for))
        return None if isinstance(held, Refused) else MultiHold(self._entries(held), self._on_lost)

    def __enter__(self) -> MultiHold:
        end = end_of(self)
        hold = self.acquire()
        self._push(self._owner(), hold)
        hold._body = begin_body(hold, end)
        return hold

    @block_end
    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        return self._pop(self._owner())._end(error)
