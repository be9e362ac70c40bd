"""Parts of the sync API that differ from those of the async API by more than ``await``.

Not generated: the functions of ``lockfast/aio/native.py`` for threads, whose blocks nobody cancels.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.api.blocks import BlockEnd, block_end_of
from lockfast.api.hold import BaseMultiHold, Error, ErrorType, Trace, add_note
from lockfast.api.hold import TransactionHold as TransactionHold
from lockfast.core.ledger import DETACHED, HELD
from lockfast.core.multi import release_all
from lockfast.core.ports import Runtime, Store
from lockfast.errors import BackendError, HoldLost, LockfastError, NotHeld
from lockfast.runtime.threads import BlockingRuntime, run
from lockfast.stores import Endpoint

if TYPE_CHECKING:
    from lockfast.sync.hold import Hold, MultiHold

F = TypeVar("F")
API = "blocking"
ON_LOST_CHOICES = ()


def open_stores(endpoint: Endpoint) -> tuple[Runtime, Store, Store]:
    """Return the runtime and the store, which is also that of the keeper."""
    runtime = BlockingRuntime()
    store = endpoint.blocking(runtime.signal)
    return runtime, store, store


class ThreadBlockEnd(BlockEnd):
    """The ``__exit__`` of one ``with`` statement, which gives the hold back in any case.

    A signal handler may raise before the first statement of a Python ``__exit__``, and the
    ``with`` statement then never ends its block. But it drops this object as the exception leaves
    it, and the hold is released then. (Not by ``__del__``, which would run after every block, and
    swallow an interrupt there.)
    """

    __slots__ = ()

    def __call__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        hold: Any = self.hold
        try:
            if hold is None:
                self.function(self.block, kind, error, trace)
                return
            if self.block is not hold:
                self.block._unlink(hold)
            hold._end(error)
        except LockfastError:
            raise
        except BaseException:
            if hold is not None:
                _give_back(hold, self.block)
            raise
        finally:
            if hold is not None:
                hold._guard = None  # the end of this object means nothing any more


def _give_back(hold: Hold | MultiHold, block: Any) -> None:
    """Release what an interrupted block still holds."""
    hold._guard = None
    if block is not hold:
        block._unlink(hold)
    with contextlib.suppress(LockfastError):  # the interrupt matters more
        if isinstance(hold, BaseMultiHold):
            run(release_all([entry for entry in hold._entries if entry[1].state is HELD]))
        elif (rest := hold._client._core.undo(hold._held, hold._depth, hold._take)) is not None:
            run(rest)


def block_end(function: F) -> F:
    """Make ``function`` an ``__exit__`` that gives the hold back although it is interrupted."""
    return block_end_of(function, ThreadBlockEnd)


def begin_body(hold: Hold | MultiHold, end: BlockEnd | None) -> object:
    """Begin a block, and return None: a loss does not interrupt it, it has to check
    ``hold.is_held``."""
    if end is not None:
        block, end.hold = end.block, hold
        hold._guard = weakref.ref(end, lambda ended: _give_back(hold, block))
    return None


def end_block(hold: Hold, error: Error) -> None:
    """Release the hold at the end of its block, unless it was detached. If the body raised, our
    error is added as a note."""
    if hold._held.state is DETACHED:
        return
    try:
        rest = hold._client._core.release(hold._held, hold._take)
        if rest is not None:
            run(rest)
    except (HoldLost, BackendError, NotHeld) as ours:
        if error is None:
            raise
        add_note(error, ours)


def transaction(name: str, fence: Coroutine[Any, Any, int]) -> TransactionHold:
    """Take the transaction lock and return its hold."""
    return TransactionHold(name, run(fence))
