"""What runs beside a case, and how its parts tell each other: threads and tasks, of one shape."""

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

# How long something that must happen may take on a machine that is busy with other things.
SOON = 15.0


class AnyTask(ABC):
    """A thread or a task that runs a piece of a case."""

    @abstractmethod
    async def join(self, within: float = SOON) -> Any:
        """Its result; raises what it raised."""

    @property
    @abstractmethod
    def done(self) -> bool: ...

    def cancel(self) -> None:
        raise TypeError("nobody can cancel a thread")

    async def outcome(self) -> Any:
        """Its result, or None if it was cancelled."""
        try:
            return await self.join()
        except asyncio.CancelledError:
            return None


class Event(ABC):
    """One part of a case tells another."""

    @abstractmethod
    def set(self) -> None: ...

    @abstractmethod
    async def wait(self, within: float = SOON) -> None: ...


class ThreadTask(AnyTask):
    def __init__(self, work: Work) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def whole() -> None:
            try:
                self._result = run(work())
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=whole, daemon=True)
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


class TaskTask(AnyTask):
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
        assert self._event.wait(within), f"not told within {within} s"


class TaskEvent(Event):
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, within: float = SOON) -> None:
        await asyncio.wait_for(self._event.wait(), within)


async def cancelled_at(step: int, work: Coroutine[Any, Any, Any]) -> Any:
    return await _driven(step, work)


@types.coroutine
def _driven(step: int, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Drive ``work`` by hand, and cancel the current task exactly at its ``step``-th suspension."""
    go: Callable[[], Any] = functools.partial(work.send, None)
    at = 0
    while True:
        try:
            waits_for = go()
        except StopIteration as end:
            return end.value
        if at == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        at += 1
        try:
            go = functools.partial(work.send, (yield waits_for))
        except BaseException as error:
            go = functools.partial(work.throw, error)
