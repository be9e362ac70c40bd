"""The runtime of threads: every wait blocks, so a coroutine of the core never suspends."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from lockfast import clock
from lockfast.core.ports import Signal
from lockfast.runtime.identity import ThreadOwner, current_owner, encoded, local, task_identity
from lockfast.runtime.stacks import current_stack

T = TypeVar("T")
# All signals but those of a fault, which must still end the process. Empty without this call.
FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
BLOCKED = (
    {number for number in signal.valid_signals() if getattr(number, "name", "") not in FAULTS}
    if hasattr(signal, "pthread_sigmask")
    else set()
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, here and now."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking port suspended: the sync API was given a port of asyncio")


class _Here(threading.local):
    """Whether the current thread is a keeper's."""

    keeps = False


_here = _Here()
_warned = False


def _start(name: str, work: Callable[[], object]) -> None:
    """Start a daemon thread. No signal handler of the caller runs meanwhile: an exception in the
    middle of `threading.Thread.start` corrupts its locks. The new thread takes no signals."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    if not BLOCKED:
        thread.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # In here, because the handler of a signal that has already come may still raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ThreadSignal:
    """An event flag made of a lock: the flag is set while the lock is free."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already set

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


def blocking_identity(label: str) -> tuple[object, str]:
    """The current owner and its description: a task if a loop is running, which a wait blocks."""
    if asyncio._get_running_loop() is None:
        return local.owner, encoded(local.thread.name, label)
    if not _warned:
        _warn()
    return task_identity(label)


def _warn() -> None:
    """Warn once, with the line of the user's code."""
    global _warned
    _warned = True
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("lockfast."):
        level, frame = level + 1, frame.f_back
    text = "a blocking call of lockfast in a running event loop stops all tasks: use lockfast.aio"
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _is_stuck(owner: object, loop: asyncio.AbstractEventLoop) -> bool:
    """True if the owner cannot go on while this thread, in which ``loop`` runs, waits."""
    owner = getattr(owner, "taker", owner)  # each permit of a semaphore has an owner of its own
    if isinstance(owner, asyncio.Task):
        return owner.get_loop() is loop
    return isinstance(owner, ThreadOwner) and owner is local.owner


class BlockingRuntime:
    """Runtime of the sync API: waits block, and the keeper is a daemon thread."""

    now = staticmethod(clock.now)
    owner = staticmethod(current_owner)
    identity = staticmethod(blocking_identity)
    stack = staticmethod(current_stack)
    mutex = staticmethod(threading.RLock)  # a destructor may release inside any statement

    def signal(self) -> Signal:
        return ThreadSignal()

    def stuck(self, holds: Mapping[tuple[str, object], T]) -> list[T]:
        loop = asyncio._get_running_loop()
        if loop is None:
            return []
        return [held for (_, owner), held in list(holds.items()) if _is_stuck(owner, loop)]

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))

    async def shielded(self, work: Coroutine[Any, Any, object], limit: float) -> None:
        await work  # a thread cannot be cancelled; the work has a budget of its own

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def keep() -> None:
            _here.keeps = True
            run(work())

        _start(name, keep)

    def background(self, name: str, work: Callable[[], object]) -> None:
        if not _here.keeps:
            work()
            return
        try:
            _start(name, work)
        except RuntimeError:  # no thread can be started
            work()
