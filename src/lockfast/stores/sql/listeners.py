"""Listeners: how a client's wake-ups arrive. The keeper listens in its pauses, for both APIs.

Where the server can push, a connection of the listener's own receives grants as soon as they are
committed; it is opened when the first waiter watches. Elsewhere the listener polls: one statement
for all waiters of the client. A wake-up is a hint: a lost one costs the waiter one refresh.

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
from typing import Any

from lockfast import clock
from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

LISTEN_BUDGET = 1.0
LONGEST_PAUSE = 1.0
# The keeper polls, and must not be late to renew because of a hint.
POLL_BUDGET = 0.2
# Polling: the shortest and the longest interval, and the fraction of a wait that it may add.
FASTEST, SLOWEST, PART = 0.001, 0.3, 1 / 20


class Listener:
    """Receiver of one client's wake-ups.

    ``poll_grants`` asks the store which of the given (name, claim id) were granted.
    ``open_connection`` returns a connection on which wake-ups can be pushed, or None where the
    server cannot push.
    """

    def __init__(
        self,
        poll_grants: Callable[[Sequence[tuple[str, str]]], Any],
        open_connection: Callable[[float], Any] | None = None,
    ) -> None:
        self.wake_address = secrets.token_hex(8)
        self.wakeups = Wakeups()
        self._waiting: dict[str, str] = {}  # claim id: name
        self._interrupt = WakeupPipe()
        self._poll_grants = poll_grants
        self._last_activity = -float("inf")  # last grant or new waiter
        self._poll_took = 0.0  # duration of the last poll
        self._open = open_connection  # None: polling
        self._connection: Any = None
        self._since = float("inf")  # when the connection began to listen
        self._pause = self._retry_at = 0.0
        self._closed = False
        self._mutex = threading.Lock()  # the connection is not closed while the keeper reads it

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool:
        """Watch a claim. A waiter that watches before the connection listens is woken as soon as it
        does, and then claims again."""
        self.wakeups.watch(claim_id, wake)
        self._waiting[claim_id] = name
        self._closed = False
        if self._connection is not None:
            return self._since > since
        self._last_activity = clock.now()
        self.interrupt()
        return False  # a poll also finds what was granted meanwhile

    def unwatch(self, claim_id: str) -> None:
        self._waiting.pop(claim_id, None)
        self.wakeups.unwatch(claim_id)

    def interrupt(self) -> None:
        self._interrupt.interrupt()

    def listen(self, timeout: float | None) -> None:
        if self._open is not None and self._connection is None:
            timeout = self._connected(self._open, timeout)
        if self._open is None:
            self._listen_by_polling(timeout)
            return
        interrupted, timeout = self._interrupt.ready(timeout)
        poller = select.poll()
        poller.register(interrupted, select.POLLIN)
        connection = self._connection
        if connection is not None:
            poller.register(connection.fd, select.POLLIN)
        for fd, _ in poller.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            if fd == interrupted:
                self._interrupt.drain()
            elif connection is not None:
                self._deliver(connection)

    # ---- polling -------------------------------------------------------------------------------

    def _listen_by_polling(self, timeout: float | None) -> None:
        until = None if timeout is None else clock.now() + timeout
        while True:
            interrupted, rest = self._interrupt.ready(
                None if until is None else until - clock.now()
            )
            interval = self._interval()
            last = interval is None or (rest is not None and rest <= interval)
            if self._wait(interrupted, rest if last else interval) or last or self._poll():
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

    # ---- pushing -------------------------------------------------------------------------------

    def _connected(self, open_connection: Callable[[float], Any], timeout: float | None) -> Any:
        """Open the connection if anybody waits; return the time-out, or a shorter one after which
        to try again."""
        rest = self._retry_at - clock.now()
        if not self.wakeups or self._closed:
            return timeout
        if rest > 0:
            return rest if timeout is None else min(timeout, rest)
        try:
            connection = open_connection(LISTEN_BUDGET)
            if connection is None:
                self._open = None
                return timeout
            try:
                connection.subscribe(self.wake_address, LISTEN_BUDGET)
            except BaseException:
                connection.close()
                raise
        except BackendError:
            self._pause = min(max(self._pause * 2, 0.05), LONGEST_PAUSE)
            self._retry_at = clock.now() + self._pause
            return self._pause if timeout is None else min(timeout, self._pause)
        self._pause = 0.0
        with self._mutex:
            unwanted = self._closed  # while it was being opened
            if not unwanted:
                self._connection, self._since = connection, clock.now()
        if unwanted:
            connection.close()
        else:
            self.wakeups.wake_all()  # earlier wake-ups were missed
        return timeout

    def _deliver(self, connection: Any) -> None:
        found = None
        with self._mutex:
            if connection.broken:
                return  # closed meanwhile
            try:
                found = connection.wakeups()
            except BackendError:
                self._connection = None
                connection.close()
        if found is None:
            self.wakeups.wake_all()  # a wake-up may have been lost with the connection
            return
        for claim_id, grant in found:
            self.wakeups.deliver(claim_id, grant)

    # ---- closing -------------------------------------------------------------------------------

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
        self.wake_address = secrets.token_hex(8)
        self.wakeups.clear()
        self._waiting.clear()
        self._interrupt.after_fork_in_child()
