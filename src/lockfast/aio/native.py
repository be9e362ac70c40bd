"""Parts of the async API that differ from those of the sync API by more than ``await``.

Most of it is the body of an ``async with`` block, cancelled if its hold is lost meanwhile. Not
generated: ``lockfast/sync/native.py`` has its own functions of these names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.api.blocks import BlockEnd, block_end_of
from lockfast.api.hold import Error, ErrorType, Trace, TransactionHold, add_note
from lockfast.core.ledger import DETACHED, HELD, LOST, Held
from lockfast.core.locks import Core
from lockfast.core.ports import Runtime, Store
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.runtime.tasks import TaskRuntime
from lockfast.runtime.threads import BlockingRuntime
from lockfast.stores import Endpoint

if TYPE_CHECKING:
    from lockfast.aio.hold import Hold, MultiHold

F = TypeVar("F")

API = "asyncio"
ON_LOST_CHOICES = ("flag",)


def open_stores(endpoint: Endpoint) -> tuple[Runtime, Store, Store]:
    """Return the runtime, the store and the store of the keeper, which is a thread here too."""
    keeper_store = endpoint.blocking(BlockingRuntime().signal)
    store = endpoint.tasks(BlockingRuntime().signal)
    store.share_listener_of(keeper_store)
    return TaskRuntime(), store, keeper_store


class Body:
    """Body of an ``async with`` block, cancelled if its hold is lost meanwhile. A cancellation by
    somebody else goes on, as the rules of `asyncio.Task.uncancel` require.

    Calling it cancels the body, if the hold is lost: the ledger does so as a hold ends, on any
    thread, perhaps twice.
    """

    __slots__ = ("_cancelled", "_cancelling", "_pairs", "_task")

    def __init__(self, task: asyncio.Task[Any], pairs: Sequence[tuple[Core, Held]]) -> None:
        self._task: asyncio.Task[Any] | None = task  # None: the body is over
        self._pairs = pairs
        self._cancelling = task.cancelling()
        self._cancelled = False

    def __call__(self) -> None:
        task = self._task
        if task is not None and any(held.state is LOST for _, held in self._pairs):
            try:
                task.get_loop().call_soon_threadsafe(self._cancel)
            except RuntimeError:
                pass  # the loop is closed, so the body is over

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel("lockfast: the hold is lost")

    def close(self, error: Error) -> Error:
        """End the body, and return its exception, or None if that is our cancellation alone."""
        task, self._task = self._task, None
        if task is None:
            return error
        for core, held in self._pairs:
            if held.stop_body is self:
                held.stop_body = None
            elif held.owner is not task:
                core.ledger.off_end(held, self)
        if self._cancelled and task.uncancel() <= self._cancelling:
            return None if isinstance(error, asyncio.CancelledError) else error
        return error


def block_end(function: F) -> F:
    """Make ``function`` an ``__aexit__`` that knows its hold, in whichever task it is called."""
    return block_end_of(function, BlockEnd)


def begin_body(hold: Hold | MultiHold, end: BlockEnd | None) -> Body | None:
    """Begin a block of the current task, to be cancelled if the hold is lost."""
    if end is not None:
        end.hold = hold
    if hold._on_lost == "flag":
        return None
    task = asyncio.current_task()
    assert task is not None, "async with needs a running task"
    pairs = hold._pairs
    body = Body(task, pairs)
    for core, held in pairs:
        if held.owner is not task:  # a custom owner: other tasks may enter the hold too
            core.ledger.on_end(held, body)
        elif held.stop_body is None:  # an inner block is cancelled with the outermost one
            held.stop_body = body
            if held.state is not HELD:  # the hold ended before stop_body was set
                body()
    return body


def end_block(hold: Hold, error: Error) -> Coroutine[Any, Any, None]:
    """Release the hold at the end of its block, unless it was detached. If the body raised, our
    error is added as a note. A body that was cancelled because the hold was lost ends in
    `HoldLost`."""
    raised = error if hold._body is None else hold._body.close(error)
    if hold._held.state is DETACHED:
        return _nothing()
    rest = hold._client._core.release(hold._held, hold._take)
    if error is None:
        return _nothing() if rest is None else rest
    return _release_after(rest, error, raised)


async def _release_after(
    rest: Coroutine[Any, Any, None] | None, error: BaseException, raised: Error
) -> None:
    try:
        if rest is not None:
            await rest
    except (HoldLost, BackendError, NotHeld) as ours:
        if raised is None:
            raise ours from error
        add_note(raised, ours)


async def _nothing() -> None:
    """Do nothing: there is nothing to release."""


def transaction(name: str, fence: Coroutine[Any, Any, int]) -> TransactionClaim:
    """Return the transaction lock that the coroutine takes."""
    return TransactionClaim(name, fence)


class TransactionClaim:
    """A transaction lock that is not taken yet: ``await`` it, or enter it with ``async with``."""

    def __init__(self, name: str, fence: Coroutine[Any, Any, int]) -> None:
        self._name = name
        self._fence = fence  # takes the lock when it is awaited

    def __await__(self) -> Generator[Any, None, TransactionHold]:
        return self._take().__await__()

    async def _take(self) -> TransactionHold:
        return TransactionHold(self._name, await self._fence)

    async def __aenter__(self) -> TransactionHold:
        return await self._take()

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Do nothing: commit or roll back yourself."""
