"""One ZooKeeper session, maintained by kazoo, for the sync API, the async API and the keeper.

kazoo connects, authenticates, reconnects, pings and implements the protocol, on one thread. Its
other features (retries, callback queues, recipes) are not used: answers and watch events are
delivered on that thread, to functions that do not block.

The states of a session:

- CONNECTED: requests are sent in order and answered in order.
- SUSPENDED: the connection is lost. The outcome of requests in flight is unknown. Watches are gone,
  so every waiter is woken. The session may be alive: a hold stays valid until its time is over.
- LOST: the server reported that the session has ended. Its holds are lost, which is reported at
  once. kazoo opens another session, in which no node of the old one counts as ours.

After a fork the child lacks kazoo's thread, and must not touch the parent's session: it discards
the client, closes its copies of the sockets, and opens its own session when it needs one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, SessionExpiredError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KazooState, KeeperState

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.zookeeper.connection import Connection
from lockfast.stores.zookeeper.errors import REFUSALS, Unreachable, backend_error
from lockfast.stores.zookeeper.handler import CreateContainer, Handler
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Kind,
    Put,
    Refusal,
    Request,
    Sync,
    Transaction,
    WatchCallback,
)

log = logging.getLogger("lockfast")
# kazoo logs each failed attempt to connect. We log what matters ourselves.
_kazoo_log = logging.getLogger("lockfast.kazoo")
if _kazoo_log.level == logging.NOTSET:
    _kazoo_log.setLevel(logging.ERROR)

# Seconds to open a session: that takes longer than a request, and happens once.
OPEN_PATIENCE = 3.0
CLOSE_PATIENCE = 0.5
_NOBODY: set[Any] = set()
NEVER = float("inf")
_FLAGS = {Kind.PERSISTENT: 0, Kind.EPHEMERAL: 1, Kind.SEQUENTIAL: 2, Kind.EPHEMERAL_SEQUENTIAL: 3}


class Address(NamedTuple):
    """The servers, the user and the terms. ``options`` are further arguments of `KazooClient`."""

    where: str  # for messages: without the password
    hosts: str
    chroot: str  # '' or '/a/b'
    timeout: float
    options: dict[str, Any]
    acl: tuple[Any, ...]


class Batch:
    """Requests that were sent in one write; ``done`` is called when all are answered."""

    __slots__ = ("_answered", "_session", "answers", "done", "error", "requests")

    def __init__(
        self, session: Session, requests: Sequence[Request], done: Callable[[], None]
    ) -> None:
        self._session = session
        self._answered = itertools.count(1)  # counts atomically, on any thread
        self.requests = requests
        self.answers: list[Any] = [None] * len(requests)
        self.error: BackendError | None = None
        self.done = done

    def answered(self, number: int, answer: Any, error: BaseException | None) -> None:
        request = self.requests[number]
        if error is not None:
            answer = REFUSALS.get(type(error)) if isinstance(error, Exception) else None
            if answer is None:
                self.error = self.error or self._session.backend_error(error, request)
        elif type(request) is Transaction:
            answer = _outcome(answer)
        elif type(request) in (Create, Put):
            self._session.observe_clock(answer[1] if type(request) is Create else answer)
        if type(request) is Create and request.observer is not None:
            request.observer.created(answer)
        self.answers[number] = answer
        if next(self._answered) == len(self.requests):
            self.done()


class _Slot:
    """The receiver of one answer, as kazoo needs it. kazoo may report a lost connection twice."""

    __slots__ = ("_batch", "_number", "_set")

    def __init__(self, batch: Batch, number: int) -> None:
        self._batch = batch
        self._number = number
        self._set = False

    def set(self, value: Any = None) -> None:
        if not self._set:
            self._set = True
            self._batch.answered(self._number, value, None)

    def set_exception(self, error: BaseException) -> None:
        if not self._set:
            self._set = True
            self._batch.answered(self._number, None, error)


class Session:
    """A session, opened when first needed. Its thread calls ``on_suspended`` and ``on_lost``."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address.where
        self.on_suspended: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._mutex = threading.Lock()
        self._client: Any = None
        self._connect_listeners: list[Callable[[], None]] = []
        self._opened_at = 0.0
        self._suspended_at = NEVER
        self._was_connected = False
        # Seconds that the server's wall clock is ahead of our own clock, at least.
        self._clock_offset: float | None = None
        self._clock_read_at = float("-inf")
        self.timeout = address.timeout  # replaced by the one that the server grants

    # ---- its state ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The id of the session that is alive as far as we know; 0 if there is none."""
        client = self._client
        return (client._session_id or 0) if client is not None else 0

    @property
    def connected(self) -> bool:
        client = self._client
        return client is not None and client._connection.open

    def when_connected(self, listener: Callable[[], None], budget: float) -> float:
        """Open a session if there is none, and call ``listener`` once it is connected or refused.
        Returns how long to wait for that."""
        with self._mutex:
            if self._client is None:
                self._open()
            self._connect_listeners.append(listener)
        if self.connected or self._refused() is not None:
            self._notify_connected()
        patience = 0.0 if self._was_connected else self._opened_at + OPEN_PATIENCE - clock.now()
        return max(budget, patience)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._mutex, contextlib.suppress(ValueError):
            self._connect_listeners.remove(listener)

    def unreachable(self) -> BackendError:
        """The reason why there is no connection, as far as it is known."""
        client, refused = self._client, self._refused()
        if client is not None and (why := client._connection.refusal):
            refused = BackendError(
                f"{self.where}: no encrypted connection ({why}): check ssl_ca, ssl_cert and the "
                "server's certificate",
                transient=False,
            )
        return refused or Unreachable(f"{self.where} cannot be reached, or does not answer")

    def _refused(self) -> BackendError | None:
        client = self._client
        if client is not None and client._state == KeeperState.AUTH_FAILED:
            return BackendError(
                f"{self.where}: authentication failed: check the credentials", transient=False
            )
        return None

    def _open(self) -> None:
        handler = Handler()
        handler.attempt = self.address.timeout / (2 + self.address.hosts.count(",")) / 2
        retry = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}
        try:
            client = KazooClient(
                self.address.hosts,
                timeout=self.address.timeout,
                handler=handler,
                connection_retry=retry,
                command_retry={"max_tries": 0},
                logger=_kazoo_log,
                **self.address.options,
            )
        except (KazooException, OSError) as error:
            raise BackendError(f"{self.where}: {error}", transient=False) from error
        Connection(client, handler.attempt, self._about_to_connect, self._agreed)
        client.add_listener(self._changed)
        self._opened_at, self._was_connected = clock.now(), False
        self._client = client
        client.start_async()

    def _about_to_connect(self) -> None:
        if clock.now() > self._suspended_at + self.timeout:
            # No hold is valid any more. If only the answers are lost, each attempt to resume the
            # session would keep it alive, and its holds with it, for no one.
            raise SessionExpiredError

    def _agreed(self, timeout: float) -> None:
        """Record the granted time-out, which kazoo does not keep. Called after authenticating."""
        self._suspended_at = NEVER
        self.timeout = timeout
        self._was_connected = True
        self._notify_connected()

    def _notify_connected(self) -> None:
        with self._mutex:
            listeners, self._connect_listeners = self._connect_listeners, []
        for listener in listeners:
            listener()

    def _changed(self, state: Any) -> None:
        if state == KazooState.SUSPENDED:
            self._suspended_at = clock.now()
            self.on_suspended()
        elif state == KazooState.LOST:
            self._suspended_at = NEVER
            self._notify_connected()  # a caller that waits for it learns why there is none
            self.on_lost()

    # ---- requests ----------------------------------------------------------------------------

    def send(self, requests: Sequence[Request], done: Callable[[], None]) -> Batch:
        """Send all requests at once; ``done`` is called when each is answered or has failed."""
        batch = Batch(self, requests, done)
        client = self._client
        slots = [_Slot(batch, number) for number in range(len(requests))]
        for request in requests:
            if type(request) is Create and request.observer is not None:
                request.observer.sent()
        encoded = [self._encode(request) for request in requests]
        if client is None or not client._connection.ask(encoded, slots):
            for slot in slots:
                slot.set_exception(Unreachable(f"{self.where}: there is no connection"))
        return batch

    def unwatch(self, paths: Iterable[str], wake: WatchCallback) -> None:
        """Remove the callback locally. The server may still send the event."""
        client = self._client
        if client is not None:
            for path in paths:
                for watchers in (client._data_watchers, client._child_watchers):
                    watchers.get(path, _NOBODY).discard(wake)

    def backend_error(self, error: BaseException, request: Request) -> BackendError:
        if isinstance(error, BackendError):
            return error
        path = request.requests[0].path if isinstance(request, Transaction) else request.path
        return backend_error(error, self.where, path)

    def _encode(self, request: Request) -> Any:
        match request:
            case Create(path, data, Kind.CONTAINER):
                return CreateContainer(path, data, self.address.acl, 4)
            case Create(path, data, kind):
                return wire.Create2(path, data, self.address.acl, _FLAGS[kind])
            case Delete(path, version):
                return wire.Delete(path, version)
            case Exists(path, wake):
                return wire.Exists(path, wake)
            case Get(path, wake):
                return wire.GetData(path, wake)
            case Put(path, data, version):
                return wire.SetData(path, data, version)
            case Children(path, wake):
                return wire.GetChildren2(path, wake)
            case Sync(path):
                return wire.Sync(path)
            case Transaction(parts):
                return wire.Transaction([self._part(part) for part in parts])

    def _part(self, request: Create | Delete | Put) -> Any:
        if isinstance(request, Create):
            return wire.Create(request.path, request.data, self.address.acl, _FLAGS[request.kind])
        return self._encode(request)

    # ---- the server's clock ------------------------------------------------------------------

    def observe_clock(self, stat: Any) -> None:
        """Read the server's clock from the Stat of a write that was just answered. The answer took
        a while, so the server's clock is later still: a lease is judged over late, never early."""
        now = clock.now()
        self._clock_offset, self._clock_read_at = stat.mtime / 1e3 - now, now

    def server_time(self, within: float = float("inf")) -> float | None:
        """A lower bound of the server's wall clock; None if not read ``within`` so many seconds."""
        now = clock.now()
        if self._clock_offset is None or now - self._clock_read_at > within:
            return None
        return now + self._clock_offset

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """End the session and its holds at once; by its time-out if no server answers."""
        with self._mutex:
            client, self._client = self._client, None
        if client is None:
            return
        client.remove_listener(self._changed)
        connection = client._connection
        client._stopped.set()
        client._queue.append((wire.CloseInstance, None))
        with contextlib.suppress(OSError, AttributeError):
            connection._write_sock.send(b"\0")
        # Not kazoo's stop(): it waits at least ten seconds for an unreachable server.
        connection.end(CLOSE_PATIENCE)
        self._notify_connected()

    def after_fork_in_child(self) -> None:
        client, self._client = self._client, None
        self._mutex = threading.Lock()
        self._connect_listeners = []
        if client is not None:
            connection = client._connection
            for sock in (connection._socket, connection._read_sock, connection._write_sock):
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.close()  # the child's copy alone


def _outcome(answers: Any) -> Any:
    """The outcome of a transaction: True, or the refusal that made it fail."""
    refusals = [answer for answer in answers if isinstance(answer, Exception)]
    if not refusals:
        return True
    known = [REFUSALS.get(type(error), Refusal.ROLLED_BACK) for error in refusals]
    return next((no for no in known if no is not Refusal.ROLLED_BACK), Refusal.ROLLED_BACK)
