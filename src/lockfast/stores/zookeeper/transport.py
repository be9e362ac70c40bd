"""Transports: how each API waits for the answers of the one session.

The sync API waits on a lock, the async API on a future; the session's thread sets both. No thread
is parked for a task.

A transport stops waiting when the budget is used up. The request stays in flight: it is executed
before any later one, because a session is answered in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.stores.zookeeper.errors import Unreachable
from lockfast.stores.zookeeper.requests import Request
from lockfast.stores.zookeeper.session import Batch, Session

MIN_BUDGET = 0.001


class BlockingTransport:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]:
        """Send the requests in one batch; their answers, or `BackendError` if one is missing."""
        session = self._session
        if not session.connected:
            budget = self._connect(budget)
        answered = _OneShotEvent()
        batch = session.send(requests, answered.set)
        if not answered.wait(budget):
            raise _too_late(session)
        return _answers(batch)

    def _connect(self, budget: float) -> float:
        """Wait for a connection; the rest of the budget."""
        session = self._session
        began = clock.now()
        connected = _OneShotEvent()
        patience = session.when_connected(connected.set, budget)
        connected.wait(patience)
        if not session.connected:
            session.remove_listener(connected.set)
            raise session.unreachable()
        return _left(budget, patience, began)


class TaskTransport:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]:
        """Send the requests in one batch; their answers, or `BackendError` if one is missing."""
        session = self._session
        if not session.connected:
            budget = await self._connect(budget)
        future, done = _future()
        batch = session.send(requests, done)
        try:
            async with asyncio.timeout(budget):
                await future
        except TimeoutError:
            raise _too_late(session) from None
        return _answers(batch)

    async def _connect(self, budget: float) -> float:
        session = self._session
        began = clock.now()
        future, done = _future()
        patience = session.when_connected(done, budget)
        try:
            async with asyncio.timeout(patience):
                await future
        except TimeoutError:
            pass  # reported below
        finally:
            session.remove_listener(done)
        if not session.connected:
            raise session.unreachable()
        return _left(budget, patience, began)


class _OneShotEvent:
    """An event made of one lock: released means set. Setting it again has no effect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # set already

    def wait(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=max(timeout, 0.0))


def _future() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """A future of the running loop, and a function that sets it from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def done() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    return future, done


def _left(budget: float, patience: float, began: float) -> float:
    """The rest of the budget; all of it, if extra time was granted to open the session."""
    return budget if patience > budget else max(began + budget - clock.now(), MIN_BUDGET)


def _answers(batch: Batch) -> list[Any]:
    if batch.error is not None:
        raise batch.error
    return batch.answers


def _too_late(session: Session) -> Unreachable:
    return Unreachable(f"{session.where} did not answer in time")
