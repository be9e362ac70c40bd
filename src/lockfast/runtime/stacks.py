"""Where a thread or a task is just now, for whoever looks at it from outside.

Neither is kept alive, nor a frame: a stack is taken when it is asked for, turned into text, and let
go. A task that waits is found along what it awaits, since its frames have no caller then; one that
runs at this moment stands on the stack of the thread that runs its loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

MOST_FRAMES = 40  # the innermost: a log entry must end
# What a coroutine, a generator or an asynchronous generator is suspended in, and what it awaits.
FRAMES = ("cr_frame", "gi_frame", "ag_frame")
AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def current_stack() -> Callable[[], str]:
    """Called later, from any thread: what the current task, or else thread, does then."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    if task is not None:
        return partial(_of_task, weakref.ref(task))
    return partial(_of_thread, weakref.ref(threading.current_thread()), threading.get_ident())


def _of_thread(thread: weakref.ref[threading.Thread], ident: int) -> str:
    # Numbers are used again: it has to be the same thread, and alive.
    known = thread()
    if known is None or known not in threading.enumerate():
        return "  (the thread has ended)"
    frame = sys._current_frames().get(ident)
    return "  (the thread has ended)" if frame is None else _told(_callers(frame))


def _of_task(reference: weakref.ref[asyncio.Task[object]]) -> str:
    task = reference()
    if task is None or task.done():
        return "  (the task has ended)"
    frames = list(_suspended(task.get_coro()))
    if frames:
        for running in sys._current_frames().values():
            stack = _callers(running)
            if frames[0] in stack:
                return _told(stack[stack.index(frames[0]) :])
    return _told(frames)


def _callers(frame: FrameType | None) -> list[FrameType]:
    """The outermost first."""
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack[::-1]


def _suspended(awaited: object) -> Iterator[FrameType]:
    """From the task's own function inwards, as far as it is Python."""
    for _ in range(sys.getrecursionlimit()):
        frame = _first(awaited, FRAMES)
        if not isinstance(frame, FrameType):
            return
        yield frame
        awaited = _first(awaited, AWAITED)


def _first(thing: object, names: tuple[str, ...]) -> object:
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)


def _told(frames: list[FrameType]) -> str:
    if not frames:
        return "  (it has no frames of Python)"
    lines = [(frame, frame.f_lineno) for frame in frames[-MOST_FRAMES:]]
    return "".join(traceback.StackSummary.extract(iter(lines)).format()).rstrip()
