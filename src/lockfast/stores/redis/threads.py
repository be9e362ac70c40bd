"""The channel of threads: one connection per thread, for commands and wake-ups, and one more for
the keeper.

A thread that has to wait subscribes its connection to a channel of its own, once, and from then on
sends its wake address with each claim. While it waits it reads that connection itself: a wake-up
reaches just the thread that it is for, without another thread in between. If the connection breaks,
the waiting thread notices at once, and claims again on a new one.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.commands import channel_of, deliver
from lockfast.stores.redis.connections import LEAST, Connection, Spin
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.redis_py import ServerAddress
from lockfast.stores.redis.scripts import packed
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

IDLE = 1.0  # seconds without use after which a connection may have been closed
SUBSCRIBE_BUDGET = 0.25
RESUBSCRIBE_PAUSE = 0.1
FOREVER = float("inf")


class _Local(threading.local):
    """A thread's part of a channel."""

    connection: Connection | None = None
    wake_address: str = "."
    interrupt: WakeupPipe | None = None


class ThreadChannel:
    """The way of all threads of one client to one server."""

    suspends = False

    def __init__(
        self, address: ServerAddress, wake_address: str, connected: Callable[[Connection], None]
    ) -> None:
        self.wakeups = Wakeups()
        self._address = address
        self._connected = connected
        self._wake_addresses = map((wake_address + "t%d").__mod__, itertools.count(1))
        self._local = _Local()
        self._interrupt = WakeupPipe()
        self._latest: Spin | None = None  # of the thread that sent the last command
        self._pushed = partial(deliver, wakeups=self.wakeups)
        # Weakly: the connection of a thread that has ended is closed with it.
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    # ---- requests ----------------------------------------------------------------------------

    def send(self, command: bytes, budget: float) -> Any:
        connection = self._local.connection
        now = clock.now()
        if (
            connection is None
            or now - connection.used > IDLE
            or connection.generation != self._address.generation
        ):
            connection, budget = self._usable(connection, now, budget)
        connection.used = now
        if self._latest is not connection.spin:
            self._latest = connection.spin
            self._latest.back_off()
        try:
            return connection.ask(command, budget)
        except BaseException:
            self._discard(connection)
            raise

    def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        now = clock.now()
        connection, budget = self._usable(self._local.connection, now, budget)
        connection.used = now
        try:
            return connection.ask_all(
                commands if wait is None else [*commands, packed("WAIT", *wait)], budget
            )
        except BaseException:
            self._discard(connection)
            raise

    def join(self, *_: Any) -> Any:
        raise AssertionError("threads share no script calls: they would wait for each other")

    def _usable(
        self, connection: Connection | None, now: float, budget: float
    ) -> tuple[Connection, float]:
        """This thread's connection, or a new one, and what connecting has left of the budget."""
        if connection is not None:
            if connection.generation == self._address.generation and (
                now - connection.used <= IDLE or not connection.is_stale()
            ):
                return connection, budget
            self._discard(connection)
        connection = Connection(self._address, budget)
        try:
            self._connected(connection)
        except BaseException:
            connection.close()  # a reply may still arrive
            raise
        self._local.connection = connection
        self._connections.add(connection)
        return connection, max(now + budget - clock.now(), LEAST)

    def _discard(self, connection: Connection) -> None:
        """Close a connection, which may be in the middle of a reply."""
        self._connections.discard(connection)
        connection.close()
        if self._local.connection is connection:
            self._local.connection, self._local.wake_address = None, "."

    # ---- wake-ups ----------------------------------------------------------------------------

    @property
    def wake_address(self) -> str:
        """The address for this thread's wake-ups; '.' while it does not listen."""
        return self._local.wake_address

    def subscribe(self, since: float) -> bool:
        """Make this thread listen. True: its claim was sent without a wake address."""
        if self._local.wake_address != ".":
            return False
        try:
            connection, budget = self._usable(self._local.connection, clock.now(), SUBSCRIBE_BUDGET)
            try:
                wake_address = next(self._wake_addresses)
                reply = connection.subscribe(packed("SUBSCRIBE", channel_of(wake_address)), budget)
                if isinstance(reply, ServerError):
                    raise explained(reply, self._address.where)
                if type(reply) is not hiredis.PushNotification:
                    raise BackendError(f"{self._address.where} did not confirm the subscription")
            except BaseException:
                self._discard(connection)
                raise
            connection.pushed = self._pushed
            self._local.wake_address = wake_address
        except BackendError as error:
            if not error.transient:  # subscribing is not allowed, say
                raise
            time.sleep(RESUBSCRIBE_PAUSE)  # the waiter claims again, and subscribes again
        return True

    def signal(self, listens: bool) -> ThreadListener:
        """The signal with which this thread waits. Nothing ``listens`` for a plain lock."""
        interrupt = self._local.interrupt
        if interrupt is None:
            interrupt = self._local.interrupt = WakeupPipe()
        return ThreadListener(self, interrupt, listens)

    def listening(self) -> Connection | None:
        """The connection on which this thread listens; None if it does not (any more)."""
        local = self._local
        connection = local.connection
        if connection is not None and connection.generation != self._address.generation:
            self._discard(connection)  # the previous server sends no more wake-ups
        return None if local.wake_address == "." else connection

    def receive(self, connection: Connection) -> bool:
        """Deliver the wake-ups of this thread. False: some may have been lost."""
        try:
            connection.used = clock.now()
            connection.spin.back_off()
            connection.pushes()
        except BaseException as error:
            self._discard(connection)
            if not isinstance(error, BackendError):
                raise
            return False
        return True

    def listen(self, timeout: float | None) -> None:
        """Pause the keeper, which receives no wake-ups: each thread reads its own."""
        _ready(self._interrupt, timeout)

    def interrupt(self) -> None:
        self._interrupt.interrupt()

    # ---- the end -----------------------------------------------------------------------------

    def moved(self) -> None:
        """Make waiters claim again: the server has changed."""
        self.wakeups.wake_all()

    def distrust(self, why: str) -> None:
        connection = self._local.connection
        if connection is not None:
            self._discard(connection)

    def close(self) -> None:
        """Close the connections of all threads; a thread that goes on connects again."""
        self._local = _Local()
        for connection in list(self._connections):
            self._connections.discard(connection)
            connection.close()
        self._interrupt.interrupt()

    def after_fork_in_child(self) -> None:
        """Close only this process's copies of the sockets: the parent goes on using them."""
        self._local = _Local()
        for connection in list(self._connections):
            connection.sock.close()
        self._connections.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()


class ThreadListener:
    """The signal of a waiting thread: set by its own wake-up, which it reads itself, or by another
    thread (the keeper, or one that closes the client)."""

    __slots__ = ("_channel", "_inside", "_interrupt", "_listens", "_woken")

    def __init__(self, channel: ThreadChannel, interrupt: WakeupPipe, listens: bool) -> None:
        self._channel = channel
        self._interrupt = interrupt
        self._listens = listens
        self._woken = False
        self._inside = False

    def set(self) -> None:
        self._woken = True
        if self._inside:  # otherwise the thread checks the flag before it sleeps
            self._interrupt.interrupt()

    async def wait(self, timeout: float | None) -> bool:
        until = FOREVER if timeout is None else clock.now() + timeout
        channel = self._channel
        while not self._woken:
            rest = until - clock.now()
            if rest <= 0:
                return False
            connection = channel.listening() if self._listens else None
            if connection is None and self._listens:
                channel.subscribe(0.0)
                break
            # A wake-up that this thread reads sets the flag without an interrupt: it is awake.
            self._inside = True
            try:
                readable = not self._woken and _ready(
                    self._interrupt, None if rest == FOREVER else rest, connection
                )
            finally:
                self._inside = False
            if readable and connection is not None and not channel.receive(connection):
                channel.subscribe(0.0)
                break
        self._woken = False
        return True


def _ready(
    interrupt: WakeupPipe, timeout: float | None, connection: Connection | None = None
) -> bool:
    """Wait for an interrupt or for a reply on the connection; is there one?"""
    interrupted, timeout = interrupt.ready(timeout)
    poller = select.poll()
    poller.register(interrupted, select.POLLIN)
    if connection is not None:
        poller.register(connection.sock, select.POLLIN)
    readable = False
    for descriptor, _ in poller.poll(None if timeout is None else max(timeout, 0.0) * 1000.0):
        if descriptor == interrupted:
            interrupt.drain()
        else:
            readable = True
    return readable
