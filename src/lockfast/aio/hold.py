"""Hold of the async API, and the block that is cancelled when the hold is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self

from lockfast.api.hold import BaseHold, Error, ErrorType, Trace, add_note
from lockfast.api.lock import lease_or_none
from lockfast.core.ledger import DETACHED, HELD
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout


class Body:
    """Body of an ``async with`` block, cancelled if its hold is lost meanwhile. A cancellation by
    somebody else goes on, as the rules of `asyncio.Task.uncancel` require."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclasses have slots for these attributes
    _task: asyncio.Task[Any] | None  # the task that runs the body; None: do not cancel it
    _cancelling: int
    _cancelled: bool

    if TYPE_CHECKING:

        def _is_lost(self) -> bool: ...

    def _open(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None, "async with needs a running task"
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False

    def _stop(self) -> None:
        """Cancel the body if the hold is lost. Called as it ends, on any thread, perhaps twice."""
        task = self._task
        if task is not None and self._is_lost():
            try:
                task.get_loop().call_soon_threadsafe(self._cancel)
            except RuntimeError:
                pass  # the loop is closed, so the body is over

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel("lockfast: the hold is lost")

    def _close(self, error: BaseException | None) -> BaseException | None:
        """Return the body's exception, or None if it is a cancellation of ours alone."""
        task, self._task = self._task, None
        if self._cancelled and task is not None and task.uncancel() <= self._cancelling:
            return None if isinstance(error, asyncio.CancelledError) else error
        return error


class Hold(BaseHold, Body):
    __doc__ = BaseHold.__doc__
    __slots__ = ("_cancelled", "_cancelling", "_task")

    async def release(self) -> None:
        """Release the hold, from any task.

        Raises `HoldLost` if it had already ended, `NotHeld` if already released, `BackendError` if
        the store did not answer: the outcome is unknown, but it ends with its lease at the latest.
        A cancelled release is still sent to the store.
        """
        rest = self._client.core.release_soon(self._held, self._take)
        if rest is not None:
            await rest

    async def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend the hold now, to ``lease`` seconds from now (default: its lease). One round trip.

        Raises `HoldLost` if the hold has ended, `BackendError` if the store does not answer.
        """
        await self._client.core.renew(self._held, lease_or_none(lease))

    async def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Wait until the hold is lost (True), or is released or ``timeout`` is over (False)."""
        return await self._client.core.wait_lost(self._held, checked_timeout(timeout))

    async def detach(self) -> str:
        """Stop renewing the hold, and return a secret text for ``client.attach(name, text)``.

        Any process may attach it before the lease ends. Raises `HoldLost` if the hold has ended,
        `NotHeld` inside a re-entered block.
        """
        return await self._client.core.detach(self._held)

    async def __aenter__(self) -> Self:
        self._enter(asyncio.current_task())
        return self

    def _enter(self, task: asyncio.Task[Any] | None) -> None:
        """Begin a block of this task, to be cancelled if the hold is lost. Only the outermost block
        registers for that; inner blocks are cancelled with it."""
        held = self._held
        if self._on_lost == "flag":
            self._task = None
        elif held.owner is not task:  # a custom owner: other tasks may enter the hold too
            self._open(task)
            self._client.core.ledger.on_end(held, self._stop)
        elif held.count == 1:
            self._open(task)
            held.stop_body = self._stop
            if held.state is not HELD:  # the hold ended before stop_body was set
                self._stop()
        else:
            self._task = None

    def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> Coroutine[Any, Any, None]:
        """Release the hold, unless detached. If the body raised, our error is added as a note. A
        body that was cancelled because the hold was lost ends in `HoldLost`."""
        raised, held, task = error, self._held, self._task
        if task is not None:
            if held.owner is task:
                held.stop_body = None
            else:
                self._client.core.ledger.off_end(held, self._stop)
            if self._cancelled:
                raised = self._close(error)
            else:
                self._task = None
        if held.state is DETACHED:
            return _nothing()
        if error is not None:
            return self._release_after(error, raised)
        return self._client.core.release_soon(held, self._take) or _nothing()

    async def _release_after(self, error: BaseException, raised: BaseException | None) -> None:
        try:
            await self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if raised is None:
                raise ours from error
            add_note(raised, ours)


async def _nothing() -> None:
    """Do nothing: the result of `__aexit__` when there is nothing to release."""
