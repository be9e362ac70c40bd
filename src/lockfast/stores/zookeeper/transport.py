"""How each colour waits for the answers of the one session: threads on a lock, asyncio on a future
that the session's thread sets. No thread is parked for a task.

An answer that does not come in time is not waited for any longer. The request stays under way: it
is answered before any later one, because a session is answered in order.
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

LEAST = 0.001


class BlockingTransport:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]:
        """Send them together; their answers. `BackendError` if one of them is not known."""
        session = self._session
        if not session.connected:
            budget = self._connect(budget)
        waits = _Bell()
        batch = session.send(requests, waits.wake)
        if not waits.rang(budget):
            raise _too_late(session)
        return _answers(batch)

    def _connect(self, budget: float) -> float:
        """Wait for a connection; what is left of the budget then."""
        session = self._session
        began = clock.now()
        bell = _Bell()
        patience = session.when_connected(bell.wake, budget)
        bell.rang(patience)
        if not session.connected:
            session.forget(bell.wake)
            raise session.unreachable()
        return _left(budget, patience, began)


class TaskTransport:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]:
        """Send them together; their answers. `BackendError` if one of them is not known."""
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
            pass  # what follows says it
        finally:
            session.forget(done)
        if not session.connected:
            raise session.unreachable()
        return _left(budget, patience, began)


class _Bell:
    """A lock: released means rung. Once; more often does no harm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # rung already

    def rang(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=max(timeout, 0.0))


def _future() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """A future of this loop, and what sets it from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def done() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # its loop is closed: nobody waits there any more

    return future, done


def _left(budget: float, patience: float, began: float) -> float:
    """After connecting. Who was given more time than it asked for, to open the session, still has
    all of its own."""
    return budget if patience > budget else max(began + budget - clock.now(), LEAST)


def _answers(batch: Batch) -> list[Any]:
    if batch.error is not None:
        raise batch.error
    return batch.answers


def _too_late(session: Session) -> Unreachable:
    return Unreachable(f"{session.where} did not answer in time")
