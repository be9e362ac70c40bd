"""The ends of ``with`` and ``async with`` blocks.

Each statement has an ``__exit__`` of its own, an object that knows the hold of its block. So a
block gives back its hold although it is left by another thread or task than the one that entered it
(a generator that is closed elsewhere, say), and whatever its owner has entered meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from lockfast.api.hold import AnyHold, Error, ErrorType, Trace

F = TypeVar("F")


class BlockEnd:
    """The ``__exit__`` or ``__aexit__`` of one statement."""

    __slots__ = ("__weakref__", "block", "function", "hold")

    def __init__(self, block: Any, function: Callable[..., Any]) -> None:
        self.block = block
        self.function = function  # for a block that was not entered by a statement
        self.hold: AnyHold | None = None

    def __call__(self, kind: ErrorType, error: Error, trace: Trace) -> Any:
        hold = self.hold
        if hold is None:
            return self.function(self.block, kind, error, trace)
        if self.block is not hold:
            self.block._unlink(hold)
        return hold._end(error)


class _Latest(threading.local):
    """The end of the block that the current thread is about to enter."""

    end: Callable[[], BlockEnd | None] | None = None


_latest = _Latest()


class _BlockEnds:
    """Descriptor: each look-up of ``__exit__``, one for every statement, makes a `BlockEnd`."""

    def __init__(self, function: Callable[..., Any], make: type[BlockEnd]) -> None:
        self._function = function
        self._make = make

    def __get__(self, block: object, kind: type) -> Any:
        if block is None:
            return self._function
        end = self._make(block, self._function)
        _latest.end = weakref.ref(end)
        return end


def block_end_of(function: F, make: type[BlockEnd]) -> F:
    """Make each statement end its block by an object of its own, in place of ``function``."""
    return cast(F, _BlockEnds(cast(Any, function), make))


def end_of(block: object) -> BlockEnd | None:
    """The end of the block that the current thread or task enters by a statement, which has just
    looked it up. Ask before anything is awaited: another task may enter the same lock. None:
    ``__enter__`` was called by hand."""
    latest = _latest.end
    end = None if latest is None else latest()
    return end if end is not None and end.block is block and end.hold is None else None
