"""A hold, for asyncio, and the body that is cancelled when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lockfast.api.hold import BaseHold, add_note
from lockfast.api.lock import lease_or_none
from lockfast.core.ledger import DETACHED, HELD
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout


class Body:
    """What is held in the body of an ``async with``, which is cancelled if that is lost meanwhile.

    The cancellation is ours only if the task was not cancelled by somebody else as well: then that
    one goes on, as the rules of `asyncio.Task.uncancel` ask.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # what is held has slots for what follows
    _task: asyncio.Task[Any] | None  # of which the body is; None: it is not to be cancelled
    _cancelling: int
    _cancelled: bool

    if TYPE_CHECKING:

        def _is_lost(self) -> bool: ...

    def _open(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None, "a body runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False

    def _stop(self) -> None:
        """It has ended, maybe without us. On any thread, and maybe more than once."""
        task = self._task
        if task is not None and self._is_lost():
            try:
                task.get_loop().call_soon_threadsafe(self._cancel)
            except RuntimeError:
                pass  # the loop is closed, and the body with it

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel("lockfast: the hold is lost")

    def _close(self, error: BaseException | None) -> BaseException | None:
        """What the body raised, without a cancellation that was ours alone."""
        task, self._task = self._task, None
        if self._cancelled and task is not None and task.uncancel() <= self._cancelling:
            return None if isinstance(error, asyncio.CancelledError) else error
        return error


class Hold(BaseHold, Body):
    __doc__ = BaseHold.__doc__
    __slots__ = ("_cancelled", "_cancelling", "_task")

    async def release(self) -> None:
        """Give it back, from any task. `HoldLost` if it had ended before, `NotHeld` if it was
        released already, `BackendError` if the outcome is unknown."""
        rest = self._client.core.release_soon(self._held, self._take)
        if rest is not None:
            await rest

    async def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend it by hand, to ``lease`` seconds from now. `HoldLost` if it has ended."""
        await self._client.core.renew(self._held, lease_or_none(lease))

    async def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is lost (True), or until it is released or the time is over (False)."""
        return await self._client.core.wait_lost(self._held, checked_timeout(timeout))

    async def detach(self) -> str:
        """Stop keeping it and get a secret text with which ``client.attach(name, text)`` takes it
        over, in any process, before its lease ends."""
        return await self._client.core.detach(self._held)

    async def __aenter__(self) -> Self:
        self._enter(asyncio.current_task())
        return self

    def _enter(self, task: asyncio.Task[Any] | None) -> None:
        """A block of this task begins: it is cancelled if the hold is lost. The outermost one does
        that; what is inside is cancelled with it."""
        held = self._held
        if self._on_lost == "flag":
            self._task = None
        elif held.owner is not task:  # and others may enter it, too
            self._open(task)
            self._client.core.ledger.on_end(held, self._stop)
        elif held.count == 1:
            self._open(task)
            held.stop_body = self._stop
            if held.state is not HELD:  # before it could be told
                self._stop()
        else:
            self._task = None

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        """Give it back, unless it was detached. The body's exception comes first; what went wrong
        with the release is attached to it. A body that we cancelled ends in `HoldLost`."""
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
    """Nothing is left to do."""
