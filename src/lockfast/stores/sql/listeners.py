"""Listeners: how a client's wake-ups arrive. The keeper listens in its pauses, for both APIs.

A `PushListener` has a connection on which the server pushes grants as soon as they are committed;
it is opened when the first waiter watches. A `PollingListener` polls: one statement for all waiters
of the client. Either way a wake-up is a hint: a lost one costs the waiter one refresh.

**The polling interval.** After a grant or a new waiter, another grant is likely soon; a waiter that
has waited long is likely to wait on. So the interval is a twentieth of the time since the last
activity: polling delays a hand-over by at most a twentieth of that time, and by at most `SLOWEST`,
and 50 long waits cost no more statements than one. The interval is also at least as long as the
last poll took, so that a slow server is polled less.

**Why MySQL is polled** (``python bench/run.py sql_wakeups`` measures both again). The only
statement there with which a releaser could end another session's wait is KILL QUERY of a session
that sleeps, found by a lock that it owns (``KILL QUERY IS_USED_LOCK(…)``). That woke a waiter
within 0.2 ms, and was rejected all the same: under load MariaDB repeatedly spends up to two seconds
in such a KILL and accepts no connections meanwhile. GET_LOCK needs a connection for each hold,
since only its owner can free it.
"""

from __future__ import annotations

import random
import secrets
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockfast import clock
from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.model import Granted
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

LISTEN_BUDGET = 1.0
LONGEST_PAUSE = 1.0
# The keeper polls, and must not be late to renew because of a hint.
POLL_BUDGET = 0.2
# Polling: the shortest and the longest interval, and the fraction of a wait that it may add.
FASTEST, SLOWEST, PART = 0.001, 0.3, 1 / 20


class PushConnection(Protocol):
    """A dialect's connection on which wake-ups are pushed."""

    fd: int

    @property
    def broken(self) -> bool: ...

    def subscribe(self, wake_address: str, budget: float) -> None: ...

    def wakeups(self) -> list[tuple[str, Granted | None]]: ...

    def close(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class PollingListener:
    """Listener that polls. ``poll_grants`` asks the store which of the given (name, claim id) were
    granted."""

    def __init__(self, poll_grants: Callable[[Sequence[tuple[str, str]]], Any]) -> None:
        self.wake_address = secrets.token_hex(8)
        self.wakeups = Wakeups()
        self._poll_grants = poll_grants
        self._waiting: dict[str, str] = {}  # claim id: name
        self._last_activity = -float("inf")  # last grant or new waiter
        self._poll_took = 0.0  # duration of the last poll
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool:
        self.wakeups.watch(claim_id, wake)
        self._last_activity = clock.now()
        self._waiting[claim_id] = name
        self._interrupt.interrupt()
        return False  # a poll also finds what was granted meanwhile

    def unwatch(self, claim_id: str) -> None:
        self._waiting.pop(claim_id, None)
        self.wakeups.unwatch(claim_id)

    async def listen(self, timeout: float | None) -> None:
        until = None if timeout is None else clock.now() + timeout
        while True:
            interrupted, rest = self._interrupt.ready(
                None if until is None else until - clock.now()
            )
            interval = self._interval()
            last = interval is None or (rest is not None and rest <= interval)
            if self._wait(interrupted, rest if last else interval) or last:
                return
            if self._poll():
                return

    def _interval(self) -> float | None:
        """Return the time until the next poll; None: nobody waits."""
        if not self._waiting:
            return None
        silence = clock.now() - self._last_activity
        interval = min(max(silence * PART, self._poll_took, FASTEST), SLOWEST)
        return interval * (0.75 + random.random() / 2)

    def _wait(self, interrupted: int, timeout: float | None) -> bool:
        """Wait for the interrupt; return whether it came."""
        poller = select.poll()
        poller.register(interrupted, select.POLLIN)
        if poller.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            self._interrupt.drain()
            return True
        return False

    def _poll(self) -> bool:
        waiting = [(name, claim_id) for claim_id, name in list(self._waiting.items())]
        began = clock.now()
        try:
            found = self._poll_grants(waiting)
        except BackendError:
            return True  # the keeper's next request reports it
        finally:
            self._poll_took = clock.now() - began
        for claim_id, grant in found:
            self._waiting.pop(claim_id, None)
            self.wakeups.deliver(claim_id, grant)
        if found:
            self._last_activity = clock.now()
        return bool(found)

    def close(self) -> None:
        self._interrupt.interrupt()

    def after_fork_in_child(self) -> None:
        self.wake_address = secrets.token_hex(8)
        self.wakeups.clear()
        self._waiting.clear()
        self._interrupt.after_fork_in_child()


class PushListener:
    """Listener on a connection of its own. ``open_connection`` returns one, or None where the
    server cannot push: then ``polling`` is used instead."""

    def __init__(
        self, open_connection: Callable[[float], PushConnection | None], polling: PollingListener
    ) -> None:
        self._open = open_connection
        self._polling = polling
        self._connection: PushConnection | None = None
        self._since = float("inf")
        self._pushes = True
        self._pause = 0.0
        self._retry_at = 0.0
        self._closed = False
        self._mutex = threading.Lock()  # the connection is not closed while the keeper reads it
        self.interrupt = polling.interrupt
        self.wakeups = polling.wakeups

    @property
    def wake_address(self) -> str:
        return self._polling.wake_address

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool:
        """Watch a claim. A waiter that watches before the connection listens is woken as soon as it
        does, and then claims again."""
        if not self._pushes:
            return self._polling.watch(name, claim_id, wake, since)
        self.wakeups.watch(claim_id, wake)
        self._polling._waiting[claim_id] = name
        self._closed = False
        if self._connection is None:
            self.interrupt()
            return False
        return self._since > since

    def unwatch(self, claim_id: str) -> None:
        self._polling.unwatch(claim_id)

    async def listen(self, timeout: float | None) -> None:
        if self._pushes and self._connection is None and self.wakeups and not self._closed:
            timeout = self._open_connection(timeout)
        if not self._pushes:
            await self._polling.listen(timeout)
            return
        interrupt = self._polling._interrupt
        interrupted, timeout = interrupt.ready(timeout)
        poller = select.poll()
        poller.register(interrupted, select.POLLIN)
        connection = self._connection
        if connection is not None:
            poller.register(connection.fd, select.POLLIN)
        for fd, _ in poller.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            if fd == interrupted:
                interrupt.drain()
            elif connection is not None:
                self._deliver(connection)

    def _open_connection(self, timeout: float | None) -> float | None:
        """Open the connection, or return the time-out after which to try again."""
        now = clock.now()
        if now < self._retry_at:
            return self._sooner(timeout, self._retry_at - now)
        try:
            connection = self._open(LISTEN_BUDGET)
            if connection is None:
                self._pushes = False
                return timeout
            try:
                connection.subscribe(self.wake_address, LISTEN_BUDGET)
            except BaseException:
                connection.close()
                raise
        except BackendError:
            self._pause = min(max(self._pause * 2, 0.05), LONGEST_PAUSE)
            self._retry_at = clock.now() + self._pause
            return self._sooner(timeout, self._pause)
        self._pause = 0.0
        with self._mutex:
            unwanted = self._closed  # while it was being opened
            if not unwanted:
                self._connection, self._since = connection, clock.now()
        if unwanted:
            connection.close()
            return timeout
        self.wakeups.wake_all()  # earlier wake-ups were missed
        return timeout

    def _sooner(self, timeout: float | None, pause: float) -> float:
        return pause if timeout is None else min(timeout, pause)

    def _deliver(self, connection: PushConnection) -> None:
        with self._mutex:
            if connection.broken:
                return  # closed meanwhile
            try:
                found = connection.wakeups()
            except BackendError:
                self._connection = None
                connection.close()
                found = None
        if found is None:
            self.wakeups.wake_all()  # a wake-up may have been lost with the connection
            return
        for claim_id, grant in found:
            self.wakeups.deliver(claim_id, grant)

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        self.interrupt()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        connection, self._connection = self._connection, None
        self._since = float("inf")
        if connection is not None:
            connection.after_fork_in_child()
        self._polling.after_fork_in_child()
