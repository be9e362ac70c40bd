"""How threads speak to a database: a few connections that they share, however many they are.

A thread takes a connection for one statement and puts it back, so nothing of a step stays in it.
The one that was used last is taken first, so those that are not needed grow idle, and are closed.
Connections are our own, never those of the user's pool.

What asking again cures (a deadlock, tables that are not made yet) is asked again here, inside the
budget.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import Again, NoTables

MOST_LINKS = 8  # a database's connections are dear; a statement takes less than a millisecond
LOOK_AFTER = 0.05  # a connection that was not used for so long is looked at: it may be closed
IDLE = 60.0
# A new connection costs a server more than a statement does, and a short lease has a small budget:
# connecting has so long, at least, and the statement that it was made for so long.
CONNECTING, LEAST = 0.5, 0.05
# Making the tables, once in the life of a database, may take longer than a budget allows.
FURNISHING = 5.0


class Link(Protocol):
    """A connection of a dialect, blocking."""

    used: float
    broken: bool

    def ask(self, request: Any, budget: float) -> Any: ...

    def furnish(self, budget: float) -> None:
        """Make the tables."""

    def is_stale(self) -> bool: ...

    def close(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class BlockingTransport:
    suspends = False
    now = staticmethod(clock.now)

    def __init__(self, connect: Callable[[float], Any], where: str) -> None:
        self._connect = connect
        self._where = where
        self._free: list[Any] = []
        self._all: set[Any] = set()
        self._room = _rooms()
        self._generation = 0

    def send(self, request: Any, budget: float) -> Any:
        until = clock.now() + budget
        attempt = 0
        while True:
            try:
                return self._once(request, until)
            except Again as why:
                attempt += 1
                if clock.now() >= until:
                    raise BackendError(f"{self._where}: {why}, again and again") from None
                time.sleep(breath(attempt))

    def _once(self, request: Any, until: float) -> Any:
        room, generation = self._room, self._generation
        try:
            room.get(timeout=max(until - clock.now(), 0.0))
        except queue.Empty:
            raise BackendError(f"{self._where}: all {MOST_LINKS} connections stayed busy") from None
        link = None
        try:
            link = self._ready(until)
            link.used = now = clock.now()
            try:
                return link.ask(request, max(until - now, LEAST))
            except NoTables:
                link.furnish(FURNISHING)
                return link.ask(request, max(until - clock.now(), CONNECTING))
        except NoTables:
            raise BackendError(
                f"{self._where}: its tables are gone as soon as they are made"
            ) from None
        except BaseException as error:
            if link is not None and not isinstance(error, BackendError | Again):
                link.broken = True  # interrupted: an answer may still come
            raise
        finally:
            if link is not None:
                if link.broken or generation != self._generation:
                    self._drop(link)
                else:
                    self._free.append(link)
            room.put(None)

    def _ready(self, until: float) -> Any:
        now = clock.now()
        while self._free:
            try:
                link = self._free.pop()
            except IndexError:
                break
            if now - link.used <= LOOK_AFTER:
                self._close_one_that_is_idle(now)
                return link
            if now - link.used <= IDLE and not link.is_stale():
                return link
            self._drop(link)
        link = self._connect(max(until - now, CONNECTING))
        self._all.add(link)
        return link

    def _close_one_that_is_idle(self, now: float) -> None:
        try:
            if self._free and now - self._free[0].used > IDLE:
                self._drop(self._free.pop(0))
        except IndexError:
            pass  # another thread was faster

    def _drop(self, link: Any) -> None:
        self._all.discard(link)
        link.close()

    async def pause(self, attempt: int) -> None:
        time.sleep(breath(attempt))

    def close(self) -> None:
        """Close what is free; what is in use is closed by who uses it. Who goes on connects
        again."""
        self._generation += 1
        while self._free:
            try:
                self._drop(self._free.pop())
            except IndexError:
                return

    def after_fork_in_child(self) -> None:
        self._room = _rooms()
        self._generation += 1
        self._free.clear()
        links, self._all = list(self._all), set()
        for link in links:
            link.after_fork_in_child()


def _rooms() -> queue.SimpleQueue[None]:
    """So many may have a connection. (A semaphore would do; this one is written in C.)"""
    rooms: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(MOST_LINKS):
        rooms.put(None)
    return rooms


def breath(attempt: int) -> float:
    """How long to rest after so many attempts: at random, growing, short, and at first not."""
    return random.random() * min(0.0002 * (2.0 ** min(attempt, 9) - 2.0), 0.02)
