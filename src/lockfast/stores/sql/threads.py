"""Transport of the sync API: a few connections that all threads of a client share.

A thread takes a connection for one request and puts it back, so no state of a step stays in it. The
connection used last is taken first, so surplus ones become idle and are closed. Connections belong
to lockfast, never to the user's pool.

Requests that fail for a passing reason (a deadlock, tables that do not exist yet) are retried here,
within the budget.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry

MOST_CONNECTIONS = 8  # they are expensive for a database; a statement takes < 1 ms
PROBE_AFTER = 0.05  # a connection idle for longer is probed: the server may have closed it
IDLE = 60.0
# Connecting costs a server more than a statement does, and a short lease has a small budget: so
# connecting gets at least CONNECTING seconds, and the first statement on it at least LEAST.
CONNECTING, LEAST = 0.5, 0.05
# Creating the tables, once in the life of a database, may take longer than a budget allows.
CREATING_TABLES = 5.0


class Connection(Protocol):
    """A dialect's blocking connection."""

    used: float
    broken: bool

    def execute(self, request: Any, budget: float) -> Any: ...

    def create_tables(self, budget: float) -> None:
        """Create the tables."""

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
        self._permits = _new_permits()
        self._generation = 0

    def send(self, request: Any, budget: float) -> Any:
        until = clock.now() + budget
        attempt = 0
        while True:
            try:
                return self._once(request, until)
            except Retry as why:
                attempt += 1
                if clock.now() >= until:
                    raise BackendError(
                        f"{self._where}: {why}, on every attempt ({attempt}) within the budget"
                    ) from None
                time.sleep(backoff(attempt))

    def _once(self, request: Any, until: float) -> Any:
        permits, generation = self._permits, self._generation
        try:
            permits.get(timeout=max(until - clock.now(), 0.0))
        except queue.Empty:
            raise BackendError(
                f"{self._where}: all {MOST_CONNECTIONS} connections stayed busy"
            ) from None
        connection = None
        try:
            connection = self._ready(until)
            connection.used = now = clock.now()
            try:
                return connection.execute(request, max(until - now, LEAST))
            except NoTables:
                connection.create_tables(CREATING_TABLES)
                return connection.execute(request, max(until - clock.now(), CONNECTING))
        except NoTables:
            raise BackendError(
                f"{self._where}: its tables disappeared right after they were created"
            ) from None
        except BaseException as error:
            if connection is not None and not isinstance(error, BackendError | Retry):
                connection.broken = True  # interrupted: the reply may still arrive
            raise
        finally:
            if connection is not None:
                if connection.broken or generation != self._generation:
                    self._discard(connection)
                else:
                    self._free.append(connection)
            permits.put(None)

    def _ready(self, until: float) -> Any:
        now = clock.now()
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:
                break
            if now - connection.used <= PROBE_AFTER:
                self._close_one_idle(now)
                return connection
            if now - connection.used <= IDLE and not connection.is_stale():
                return connection
            self._discard(connection)
        connection = self._connect(max(until - now, CONNECTING))
        self._all.add(connection)
        return connection

    def _close_one_idle(self, now: float) -> None:
        try:
            if self._free and now - self._free[0].used > IDLE:
                self._discard(self._free.pop(0))
        except IndexError:
            pass  # another thread took it

    def _discard(self, connection: Any) -> None:
        self._all.discard(connection)
        connection.close()

    async def pause(self, attempt: int) -> None:
        time.sleep(backoff(attempt))

    def close(self) -> None:
        """Close the free connections. A connection in use is closed by its user when it is put
        back. Later requests connect again."""
        self._generation += 1
        while self._free:
            try:
                self._discard(self._free.pop())
            except IndexError:
                return

    def after_fork_in_child(self) -> None:
        self._permits = _new_permits()
        self._generation += 1
        self._free.clear()
        connections, self._all = list(self._all), set()
        for connection in connections:
            connection.after_fork_in_child()


def _new_permits() -> queue.SimpleQueue[None]:
    """Return one permit per connection. (A semaphore would do; this queue is written in C.)"""
    permits: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(MOST_CONNECTIONS):
        permits.put(None)
    return permits


def backoff(attempt: int) -> float:
    """Return a random pause in seconds: 0 after the first attempt, later at most 20 ms."""
    return random.random() * min(0.0002 * (2.0 ** min(attempt, 9) - 2.0), 0.02)
