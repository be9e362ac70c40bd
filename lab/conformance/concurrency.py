"""Concurrent parts of a case, and events between them: threads and tasks behind one interface."""

from __future__ import annotations

import asyncio
import functools
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from lockfast.runtime.threads import run

Work = Callable[..., Coroutine[Any, Any, Any]]

# The longest time, in seconds, that an expected event may take on a busy machine.
SOON = 15.0


class AnyTask(ABC):
    """A thread or a task that runs a part of a case."""

    @abstractmethod
    async def join(self, within: float = SOON) -> Any:
        """Return the result of the work, or raise its exception."""

    @property
    @abstractmethod
    def done(self) -> bool: ...

    def cancel(self) -> None:
        raise TypeError("a thread cannot be cancelled")

    async def outcome(self) -> Any:
        """Return the result of the work, or None if it was cancelled."""
        try:
            return await self.join()
        except asyncio.CancelledError:
            return None


class Event(ABC):
    """An event between two parts of a case."""

    @abstractmethod
    def set(self) -> None: ...

    @abstractmethod
    async def wait(self, within: float = SOON) -> None: ...


class ThreadTask(AnyTask):
    def __init__(self, work: Work) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def target() -> None:
            try:
                self._result = run(work())
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()

    async def join(self, within: float = SOON) -> Any:
        self._thread.join(within)
        assert self.done, f"a thread did not end within {within} s"
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()


class AsyncioTask(AnyTask):
    def __init__(self, work: Work) -> None:
        self._task = asyncio.ensure_future(work())

    async def join(self, within: float = SOON) -> Any:
        await asyncio.wait({self._task}, timeout=within)
        assert self.done, f"a task did not end within {within} s"
        return self._task.result()

    @property
    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()


class ThreadEvent(Event):
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, within: float = SOON) -> None:
        assert self._event.wait(within), f"the event was not set within {within} s"


class AsyncioEvent(Event):
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, within: float = SOON) -> None:
        await asyncio.wait_for(self._event.wait(), within)


async def cancelled_at(step: int, work: Coroutine[Any, Any, Any]) -> Any:
    """Run ``work``, and cancel the current task exactly at its ``step``-th suspension."""
    return await _drive(step, work)


@types.coroutine
def _drive(step: int, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    resume: Callable[[], Any] = functools.partial(work.send, None)
    suspensions = 0
    while True:
        try:
            awaited = resume()
        except StopIteration as end:
            return end.value
        if suspensions == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        suspensions += 1
        try:
            resume = functools.partial(work.send, (yield awaited))
        except BaseException as error:
            resume = functools.partial(work.throw, error)
