"""The runtime of threads: every wait blocks, so a coroutine of the core never suspends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockfast import clock
from lockfast.core.ports import Signal
from lockfast.runtime.identity import current_identity, current_owner
from lockfast.runtime.stacks import current_stack

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, here and now."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking port suspended: the sync API was given a port of asyncio")


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


class BlockingRuntime:
    """Runtime of the sync API: waits block, and the keeper is a daemon thread."""

    now = staticmethod(clock.now)
    owner = staticmethod(current_owner)
    identity = staticmethod(current_identity)
    stack = staticmethod(current_stack)
    mutex = staticmethod(threading.Lock)

    def signal(self) -> Signal:
        return ThreadSignal()

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))

    async def shielded(self, work: Coroutine[Any, Any, object], limit: float) -> None:
        await work  # a thread cannot be cancelled; the work has a budget of its own

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        threading.Thread(target=lambda: run(work()), name=name, daemon=True).start()
