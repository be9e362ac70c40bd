"""The runtime of asyncio: every wait suspends the task; wake-ups may come from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from lockfast import clock
from lockfast.core.ports import Signal
from lockfast.runtime.identity import current_owner, task_identity
from lockfast.runtime.stacks import current_stack

T = TypeVar("T")


class TaskSignal:
    """An event flag of one event loop that any thread may set."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def set(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._event.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits there any more

    async def wait(self, timeout: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class TaskRuntime:
    """Runtime of the async API. It has no ``spawn``: the keeper of an asyncio client is a thread,
    because an event loop that is blocked by user code must not lose locks."""

    now = staticmethod(clock.now)
    owner = staticmethod(current_owner)
    identity = staticmethod(task_identity)
    stack = staticmethod(current_stack)
    mutex = staticmethod(threading.RLock)  # a destructor may release inside any statement

    def signal(self) -> Signal:
        return TaskSignal()

    def stuck(self, holds: Mapping[tuple[str, object], T]) -> list[T]:
        return []  # a task that waits stops nobody

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    async def shielded(self, work: Coroutine[Any, Any, object], limit: float) -> None:
        """Run ``work`` to its end. A second cancellation does not stop it either."""
        task = asyncio.ensure_future(work)
        until = clock.now() + limit
        while not task.done() and (rest := until - clock.now()) > 0:
            try:
                await asyncio.wait({task}, timeout=rest)
            except asyncio.CancelledError:
                continue
        if task.done() and not task.cancelled():
            task.exception()  # mark it as retrieved: the exception that is propagating matters more
