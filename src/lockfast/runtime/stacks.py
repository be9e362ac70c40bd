"""The current stack of another thread or task, as text.

No thread, task or frame is kept alive: the stack is read on demand, formatted, and discarded. The
stack of a suspended task is found by following what it awaits, since its frames have no caller
then; a task that is running at this moment is on the stack of the thread that runs its loop.
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

MOST_FRAMES = 40  # the innermost ones: a log entry must end
# Attributes of coroutines, generators and asynchronous generators: the frame in which they are
# suspended, and the object that they await.
FRAMES = ("cr_frame", "gi_frame", "ag_frame")
AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def current_stack() -> Callable[[], str]:
    """A function that formats the stack of the current task or thread, later, from any thread."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    if task is not None:
        return partial(_of_task, weakref.ref(task))
    return partial(_of_thread, weakref.ref(threading.current_thread()), threading.get_ident())


def _of_thread(thread: weakref.ref[threading.Thread], ident: int) -> str:
    # Thread numbers are reused: make sure that it is the same thread, and alive.
    known = thread()
    if known is None or known not in threading.enumerate():
        return "  (the thread has ended)"
    frame = sys._current_frames().get(ident)
    return "  (the thread has ended)" if frame is None else _formatted(_callers(frame))


def _of_task(reference: weakref.ref[asyncio.Task[object]]) -> str:
    task = reference()
    if task is None or task.done():
        return "  (the task has ended)"
    frames = list(_suspended(task.get_coro()))
    if frames:
        for running in sys._current_frames().values():
            stack = _callers(running)
            if frames[0] in stack:
                return _formatted(stack[stack.index(frames[0]) :])
    return _formatted(frames)


def _callers(frame: FrameType | None) -> list[FrameType]:
    """The frame and its callers, the outermost first."""
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack[::-1]


def _suspended(awaited: object) -> Iterator[FrameType]:
    """The frames of a suspended task, from its own function inwards, as far as they are Python."""
    for _ in range(sys.getrecursionlimit()):
        frame = _first(awaited, FRAMES)
        if not isinstance(frame, FrameType):
            return
        yield frame
        awaited = _first(awaited, AWAITED)


def _first(thing: object, names: tuple[str, ...]) -> object:
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)


def _formatted(frames: list[FrameType]) -> str:
    if not frames:
        return "  (no Python frames)"
    lines = [(frame, frame.f_lineno) for frame in frames[-MOST_FRAMES:]]
    return "".join(traceback.StackSummary.extract(iter(lines)).format()).rstrip()
