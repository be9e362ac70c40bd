"""One session of ZooKeeper, kept by kazoo, for both colours and the keeper: nodes belong to it.

kazoo connects, authenticates, reconnects, pings and speaks the protocol, on one thread. What it
offers besides (retries, queues of callbacks, recipes) is not used: answers and watches are told on
that thread, to functions that do not block.

What a session is to us:

- CONNECTED: requests are sent, in order, and answered in order.
- SUSPENDED: the connection is lost. What was under way is unknown. Watches are gone, so everybody
  who
  waits is rung. The session may be alive: what is held is believed in until its time is over.
- LOST: the server said that the session is over. What was held in it is lost, and is told so at
  once.
  kazoo begins another session, in which nothing of the old one is taken for ours.

After a fork the child has no thread of kazoo's, and must not touch the parent's session: it forgets
the client, closes its copies of the sockets, and opens a session of its own when it needs one.
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
from lockfast.stores.zookeeper.errors import REFUSALS, Unreachable, explained
from lockfast.stores.zookeeper.handler import CreateContainer, Handler
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Kind,
    No,
    Put,
    Request,
    Ring,
    Sync,
    Together,
)

log = logging.getLogger("lockfast")
# kazoo tells of each failed attempt to connect. What matters of it we say ourselves.
_kazoo_log = logging.getLogger("lockfast.kazoo")
if _kazoo_log.level == logging.NOTSET:
    _kazoo_log.setLevel(logging.ERROR)

# To open a session takes longer than a request, and is done once.
OPEN_PATIENCE = 3.0
CLOSE_PATIENCE = 0.5
_NOBODY: set[Any] = set()
NEVER = float("inf")
_FLAGS = {Kind.PERSISTENT: 0, Kind.EPHEMERAL: 1, Kind.NUMBERED: 2, Kind.PLACE: 3}


class Address(NamedTuple):
    """Where, as whom, on what terms. ``said`` is all that `KazooClient` is told besides."""

    where: str  # for people: no password
    hosts: str
    chroot: str  # '' or '/a/b'
    timeout: float
    said: dict[str, Any]
    acl: tuple[Any, ...]


class Batch:
    """Requests that were sent together; ``done`` is called when all are answered."""

    __slots__ = ("_answered", "_session", "answers", "done", "error", "requests")

    def __init__(
        self, session: Session, requests: Sequence[Request], done: Callable[[], None]
    ) -> None:
        self._session = session
        self._answered = itertools.count(1)  # counts in one step, whichever thread it is
        self.requests = requests
        self.answers: list[Any] = [None] * len(requests)
        self.error: BackendError | None = None
        self.done = done

    def answered(self, number: int, answer: Any, error: BaseException | None) -> None:
        request = self.requests[number]
        if error is not None:
            refusal = REFUSALS.get(type(error)) if isinstance(error, Exception) else None
            if refusal is not None:
                answer = refusal
            else:
                answer = None
                self.error = self.error or self._session.explained(error, request)
        elif type(request) is Together:
            answer = _outcome(answer)
        elif type(request) in (Create, Put):
            self._session.dated(answer[1] if type(request) is Create else answer)
        if type(request) is Create and request.maker is not None:
            request.maker.made(answer)
        self.answers[number] = answer
        if next(self._answered) == len(self.requests):
            self.done()


class _Slot:
    """What kazoo puts one answer into. It may say twice that a connection is gone."""

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
    """Opened when it is first needed. ``on_suspended`` and ``on_lost`` are told on its thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address.where
        self.on_suspended: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._mutex = threading.Lock()
        self._client: Any = None
        self._connected: list[Callable[[], None]] = []
        self._opened_at = 0.0
        self._suspended_at = NEVER
        self._was_connected = False
        # Seconds that the server's wall clock is ahead of our own clock, at least.
        self._offset: float | None = None
        self._dated_at = float("-inf")
        self.timeout = address.timeout  # what the server agreed to

    # ---- its state ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Of the session that is alive as far as we know; 0 if there is none."""
        client = self._client
        return (client._session_id or 0) if client is not None else 0

    @property
    def connected(self) -> bool:
        client = self._client
        return client is not None and client._connection.open

    def when_connected(self, tell: Callable[[], None], budget: float) -> float:
        """Open a session if there is none; ``tell`` when there is one. How long that may take."""
        with self._mutex:
            if self._client is None:
                self._open()
            self._connected.append(tell)
        if self.connected or self._refused() is not None:
            self._tell_connected()
        patience = 0.0 if self._was_connected else self._opened_at + OPEN_PATIENCE - clock.now()
        return max(budget, patience)

    def forget(self, tell: Callable[[], None]) -> None:
        with self._mutex, contextlib.suppress(ValueError):
            self._connected.remove(tell)

    def unreachable(self) -> BackendError:
        """Why there is no connection, as far as that is known."""
        client, refused = self._client, self._refused()
        if client is not None and client._connection.refusal:
            why = client._connection.refusal
            refused = BackendError(
                f"{self.where}: no encrypted connection ({why}): look at ssl_ca, ssl_cert and the "
                "server's certificate",
                transient=False,
            )
        return refused or Unreachable(f"{self.where} cannot be reached, or does not answer")

    def _refused(self) -> BackendError | None:
        client = self._client
        if client is not None and client._state == KeeperState.AUTH_FAILED:
            return BackendError(
                f"{self.where} refused who we say we are: look at the credentials", transient=False
            )
        return None

    def _open(self) -> None:
        handler = Handler()
        hosts = self.address.hosts
        handler.attempt = self.address.timeout / (2 + hosts.count(",")) / 2
        retry = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}
        try:
            client = KazooClient(
                hosts,
                timeout=self.address.timeout,
                handler=handler,
                connection_retry=retry,
                command_retry={"max_tries": 0},
                logger=_kazoo_log,
                **self.address.said,
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
            # Nothing is believed in any more. If only the answers are lost, each attempt to go on
            # with the session would keep it alive, and what is held in it, for nobody.
            raise SessionExpiredError

    def _agreed(self, timeout: float) -> None:
        """Connected: the user is known to the server by now. Nobody else knows what time-out the
        server agreed to."""
        self._suspended_at = NEVER
        self.timeout = timeout
        self._was_connected = True
        self._tell_connected()

    def _tell_connected(self) -> None:
        with self._mutex:
            told, self._connected = self._connected, []
        for tell in told:
            tell()

    def _changed(self, state: Any) -> None:
        if state == KazooState.SUSPENDED:
            self._suspended_at = clock.now()
            self.on_suspended()
        elif state == KazooState.LOST:
            self._suspended_at = NEVER
            self._tell_connected()  # who waits for it finds out why there is none
            self.on_lost()

    # ---- requests ----------------------------------------------------------------------------

    def send(self, requests: Sequence[Request], done: Callable[[], None]) -> Batch:
        """All of them at once; ``done`` when all are answered, or known not to be."""
        batch = Batch(self, requests, done)
        client = self._client
        slots = [_Slot(batch, number) for number in range(len(requests))]
        for request in requests:
            if type(request) is Create and request.maker is not None:
                request.maker.sent()
        packed = [self._packed(request) for request in requests]
        if client is None or not client._connection.ask(packed, slots):
            for slot in slots:
                slot.set_exception(Unreachable(f"{self.where}: there is no connection"))
        return batch

    def unwatch(self, paths: Iterable[str], wake: Ring) -> None:
        """Nobody is to be rung any more. The server may still tell of it."""
        client = self._client
        if client is not None:
            for path in paths:
                for watchers in (client._data_watchers, client._child_watchers):
                    watchers.get(path, _NOBODY).discard(wake)

    def explained(self, error: BaseException, request: Request) -> BackendError:
        if isinstance(error, BackendError):
            return error
        path = request.requests[0].path if isinstance(request, Together) else request.path
        return explained(error, self.where, path)

    def _packed(self, request: Request) -> Any:
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
            case Together(parts):
                return wire.Transaction([self._part(part) for part in parts])

    def _part(self, request: Create | Delete | Put) -> Any:
        if isinstance(request, Create):
            flags = _FLAGS[request.kind]
            return wire.Create(request.path, request.data, self.address.acl, flags)
        return self._packed(request)

    # ---- the server's clock ------------------------------------------------------------------

    def dated(self, stat: Any) -> None:
        """It was written just now. The answer took a while, so the server's clock is later still:
        who judges by this judges late, never early."""
        now = clock.now()
        self._offset, self._dated_at = stat.mtime / 1e3 - now, now

    def server_time(self, within: float = float("inf")) -> float | None:
        """The server's wall clock, at least, if it was seen so lately."""
        now = clock.now()
        if self._offset is None or now - self._dated_at > within:
            return None
        return now + self._offset

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """The server ends the session at once, with all that is held in it. If it does not answer,
        the session ends by its time-out."""
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
        # Not kazoo's stop(): it waits at least ten seconds for a server that is away.
        connection.end(CLOSE_PATIENCE)
        self._tell_connected()

    def after_fork_in_child(self) -> None:
        client, self._client = self._client, None
        self._mutex = threading.Lock()
        self._connected = []
        if client is not None:
            connection = client._connection
            for sock in (connection._socket, connection._read_sock, connection._write_sock):
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.close()  # our copy alone


def _outcome(answers: Any) -> Any:
    """Of a transaction: True, or the refusal that it failed by."""
    refusals = [answer for answer in answers if isinstance(answer, Exception)]
    if not refusals:
        return True
    known = [REFUSALS.get(type(error), No.ROLLED_BACK) for error in refusals]
    return next((no for no in known if no is not No.ROLLED_BACK), No.ROLLED_BACK)
