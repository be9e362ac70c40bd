"""One ZooKeeper session, for the sync API, the async API and the keeper: how requests travel.

The states of a session:

- CONNECTED: requests are sent in order and answered in order.
- SUSPENDED: the connection is lost. The outcome of requests in flight is unknown. Watches are gone,
  so every waiter is woken. The session may be alive: a hold stays valid until its time is over.
- LOST: the server reported that the session has ended. Its holds are lost, which is reported at
  once. kazoo opens another session, in which no node of the old one counts as ours.

A caller waits for replies on a lock (sync API) or a future (async API), which the session's thread
sets: no thread is parked for a task. A caller stops waiting when its budget is used up. The request
stays in flight: it is executed before any later one, because a session is answered in order.

After a fork the child lacks kazoo's thread, and must not touch the parent's session: it discards
the connection, closes its copies of the sockets, and opens its own session when it needs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import KazooException, SessionExpiredError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KazooState

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.errors import REFUSALS, Unreachable, store_error
from lockfast.stores.zookeeper.kazoo_connection import Connection, connect

if TYPE_CHECKING:
    from lockfast.stores.zookeeper.registry import Registry

CLOSE_PATIENCE = 0.5
NEVER = float("inf")


class Address(NamedTuple):
    """The servers, the user and the terms. ``options`` are further arguments of `KazooClient`."""

    where: str  # for messages: without the password
    hosts: str
    chroot: str  # '' or '/a/b'
    timeout: float
    options: dict[str, Any]
    acl: tuple[Any, ...]


class Exchange:
    """The requests of one verb, each batch in one write, within the verb's budget."""

    __slots__ = ("_session", "_until")

    def __init__(self, session: Session, budget: float) -> None:
        self._session = session
        self._until = clock.now() + budget

    def ask(self, requests: Sequence[zk.Request]) -> list[Any]:
        """Send the requests; their answers, or `BackendError` if one is missing."""
        if not requests:
            return []
        session = self._session
        if not session.connected:
            connected = _ThreadEvent()
            session.when_connected(connected.set)
            connected.wait(self._until - clock.now())
            session.remove_listener(connected.set)
            session.check_connected()
        answered = _ThreadEvent()
        batch = session.send(requests, answered.set)
        if not answered.wait(self._until - clock.now()):
            raise Unreachable(f"{session.where} did not answer in time")
        return batch.result()

    async def ask_soon(self, requests: Sequence[zk.Request]) -> list[Any]:
        """Send the requests for a task."""
        if not requests:
            return []
        session = self._session
        if not session.connected:
            connected = _TaskEvent()
            session.when_connected(connected.set)
            try:
                await connected.wait(self._until - clock.now())
            finally:
                session.remove_listener(connected.set)
            session.check_connected()
        answered = _TaskEvent()
        batch = session.send(requests, answered.set)
        if not await answered.wait(self._until - clock.now()):
            raise Unreachable(f"{session.where} did not answer in time")
        return batch.result()


class Session:
    """A session, opened when first needed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address.where
        self._observer: Registry | None = None
        self._mutex = threading.Lock()
        self._connection: Connection | None = None
        self._connect_listeners: list[Callable[[], None]] = []
        self._suspended_at = NEVER
        # Seconds that the server's wall clock is ahead of our own clock, at least.
        self._clock_offset: float | None = None
        self._clock_read_at = float("-inf")
        self.timeout = address.timeout  # replaced by the one that the server grants

    # ---- its state ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The id of the session that is alive as far as we know; 0 if there is none."""
        return 0 if self._connection is None else self._connection.session_id

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.open

    def report_to(self, observer: Registry) -> None:
        self._observer = observer

    def when_connected(self, listener: Callable[[], None]) -> None:
        """Open a session if there is none, and call ``listener`` once it is connected or has no
        prospect of it."""
        with self._mutex:
            if self._connection is None:
                self._open()
            self._connect_listeners.append(listener)
            connection = self._connection
        if connection is not None and (connection.open or connection.rejected):
            self._notify_connected()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._mutex, contextlib.suppress(ValueError):
            self._connect_listeners.remove(listener)

    def check_connected(self) -> None:
        """Raise the reason why there is no connection, as far as it is known."""
        connection = self._connection
        if connection is not None and connection.open:
            return
        if connection is not None and connection.refusal:
            raise BackendError(f"{self.where}: {connection.refusal}", transient=False)
        raise Unreachable(f"{self.where} cannot be reached, or does not answer")

    def _open(self) -> None:
        self._suspended_at = NEVER
        address = self.address
        try:
            self._connection = connect(address.hosts, address.timeout, address.options, self)
        except (KazooException, OSError) as error:
            raise BackendError(f"{self.where}: {error}", transient=False) from error

    # ---- called by kazoo's thread ------------------------------------------------------------

    def connecting(self) -> None:
        """Refuse to resume a session of which no hold is valid any more. If only the answers are
        lost, each attempt would keep the session alive, and its holds with it, for no one."""
        if clock.now() > self._suspended_at + self.timeout:
            raise SessionExpiredError

    def agreed(self, timeout: float) -> None:
        """Record the granted time-out, which kazoo does not keep. Called after authenticating."""
        self._suspended_at = NEVER
        self.timeout = timeout
        self._notify_connected()

    def changed(self, state: Any) -> None:
        assert self._observer is not None, "the registry of this session"
        if state == KazooState.SUSPENDED:
            self._suspended_at = clock.now()
            self._observer.suspended()
        elif state == KazooState.LOST:
            self._suspended_at = NEVER
            self._notify_connected()  # a caller that waits for it learns why there is none
            self._observer.lost()

    def _notify_connected(self) -> None:
        with self._mutex:
            listeners, self._connect_listeners = self._connect_listeners, []
        for listener in listeners:
            listener()

    # ---- requests ----------------------------------------------------------------------------

    def send(self, requests: Sequence[zk.Request], done: Callable[[], None]) -> Batch:
        """Send all requests at once; ``done`` is called when each is answered or has failed."""
        batch = Batch(self, requests, done)
        connection = self._connection
        slots = [_Slot(batch, number) for number in range(len(requests))]
        for request in requests:
            if type(request) is zk.Create and request.observer is not None:
                request.observer.sent()
        encoded = [self._encode(request) for request in requests]
        if connection is None or not connection.ask(encoded, slots):
            for slot in slots:
                slot.set_exception(Unreachable(f"{self.where}: there is no connection"))
        return batch

    def unwatch(self, paths: Iterable[str], wake: zk.WatchCallback) -> None:
        """Remove the callback locally. The server may still send the event."""
        if self._connection is not None:
            self._connection.unwatch(paths, wake)

    def _encode(self, request: zk.Request | zk.Check) -> Any:
        match request:
            case zk.Create(path, data, kind):
                make = CreateContainer if kind is zk.Kind.CONTAINER else wire.Create2
                return make(path, data, self.address.acl, kind.value)
            case zk.Delete(path, version):
                return wire.Delete(path, version)
            case zk.Exists(path, wake):
                return wire.Exists(path, wake)
            case zk.Get(path, wake):
                return wire.GetData(path, wake)
            case zk.Put(path, data, version):
                return wire.SetData(path, data, version)
            case zk.Children(path, wake):
                return wire.GetChildren2(path, wake)
            case zk.Sync(path):
                return wire.Sync(path)
            case zk.Check(path, version):
                return wire.CheckVersion(path, version)
            case zk.Transaction(parts):
                return wire.Transaction([self._part(part) for part in parts])

    def _part(self, request: zk.Create | zk.Delete | zk.Put | zk.Check) -> Any:
        if isinstance(request, zk.Create):
            return wire.Create(request.path, request.data, self.address.acl, request.kind.value)
        return self._encode(request)

    # ---- the server's clock ------------------------------------------------------------------

    def observe_clock(self, stat: Any) -> None:
        """Read the server's clock from the Stat of a write that was just answered. The answer took
        a while, so the server's clock is later still: a lease is judged over late, never early."""
        now = clock.now()
        self._clock_offset, self._clock_read_at = stat.mtime / 1e3 - now, now

    def server_time(self, within: float = NEVER) -> float | None:
        """A lower bound of the server's wall clock; None if not read ``within`` so many seconds."""
        now = clock.now()
        if self._clock_offset is None or now - self._clock_read_at > within:
            return None
        return now + self._clock_offset

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """End the session and its holds at once; by its time-out if no server answers."""
        with self._mutex:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(CLOSE_PATIENCE)
            self._notify_connected()

    def after_fork_in_child(self) -> None:
        connection, self._connection = self._connection, None
        self._mutex = threading.Lock()
        self._connect_listeners = []
        if connection is not None:
            connection.close_copies()


class CreateContainer(wire.Create2):  # type: ignore[misc]
    """Create a container: a node that the server removes when its last child is gone."""

    type = 19


class Batch:
    """Requests that were sent in one write; ``done`` is called when all are answered."""

    __slots__ = ("_answered", "_answers", "_done", "_requests", "_session", "error")

    def __init__(
        self, session: Session, requests: Sequence[zk.Request], done: Callable[[], None]
    ) -> None:
        self._session = session
        self._answered = itertools.count(1)  # counts atomically, on any thread
        self._requests = requests
        self._answers: list[Any] = [None] * len(requests)
        self.error: BackendError | None = None
        self._done = done

    def result(self) -> list[Any]:
        """The answers, or the first error that is no refusal."""
        if self.error is not None:
            raise self.error
        return self._answers

    def answered(self, number: int, answer: Any, error: BaseException | None) -> None:
        request = self._requests[number]
        if error is not None:
            answer = REFUSALS.get(type(error)) if isinstance(error, Exception) else None
            if answer is None and self.error is None:
                self.error = self._failed(request, error)
        elif type(request) is zk.Transaction:
            answer = _outcome(answer)
        elif type(request) in (zk.Create, zk.Put):
            self._session.observe_clock(answer[1] if type(request) is zk.Create else answer)
        if type(request) is zk.Create and request.observer is not None:
            request.observer.created(answer)
        self._answers[number] = answer
        if next(self._answered) == len(self._requests):
            self._done()

    def _failed(self, request: zk.Request, error: BaseException) -> BackendError:
        if isinstance(error, BackendError):
            return error
        path = request.requests[0].path if isinstance(request, zk.Transaction) else request.path
        return store_error(error, self._session.where, path)


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


class _ThreadEvent:
    """An event made of one lock: released means set. Setting it again has no effect."""

    __slots__ = ("_lock",)

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


class _TaskEvent:
    """An event for one task, set from any thread. It costs half of what `asyncio.timeout` does."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self._loop.create_future()

    def set(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, True)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    def _settle(self, is_set: bool) -> None:
        if not self._future.done():
            self._future.set_result(is_set)

    async def wait(self, timeout: float) -> bool:
        timer = self._loop.call_later(timeout, self._settle, False)
        try:
            return await self._future
        finally:
            timer.cancel()


def _outcome(answers: Any) -> Any:
    """The outcome of a transaction: True, or the refusal that made it fail."""
    refusals = [answer for answer in answers if isinstance(answer, Exception)]
    if not refusals:
        return True
    known = [REFUSALS.get(type(error), zk.Refusal.ROLLED_BACK) for error in refusals]
    return next((no for no in known if no is not zk.Refusal.ROLLED_BACK), zk.Refusal.ROLLED_BACK)
