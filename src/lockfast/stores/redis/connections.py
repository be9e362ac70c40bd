"""Connections. redis-py resolves, connects, secures and authenticates them; from then on we speak
on the socket ourselves, because its way per command costs more than the server does.

Nothing is retried here, and everything has a budget: a call that is over may have been executed, so
it is for the core to ask again, with the same claim id.
"""

from __future__ import annotations

import asyncio
import inspect
import select
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis
import redis
import redis.asyncio

from lockfast import clock
from lockfast.core.acquire import PATIENCE
from lockfast.errors import BackendError, ConfigurationError
from lockfast.stores.redis.errors import ServerError, Unreachable, explained
from lockfast.stores.redis.spin import Near

READ_SIZE = 65536
SHORT = 448  # an answer of ours; memory for more is dearer than most of reading it
LEAST = 0.02  # for a command, when connecting took all of the budget: it must not have been in vain
MOST_BYTES = 64 * 2**20  # of one answer: a server that never ends one must not fill our memory
# What the handshake needs, or what would make redis-py do more than connect.
_OURS: dict[str, Any] = {
    "protocol": 3,  # bells come as pushes, told apart from answers
    "decode_responses": False,
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "driver_info": None,
    "lib_name": None,
    "lib_version": None,
    "retry": None,
    "socket_keepalive": True,
}
_NOT_OURS = (
    "retry_on_error", "maint_notifications_config", "event_dispatcher", "parser_class",
    "connection_pool",
)  # fmt: skip
_KINDS = {
    redis.asyncio.Connection: redis.Connection,
    redis.asyncio.SSLConnection: redis.SSLConnection,
    redis.asyncio.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
}


class Where(Protocol):
    """What leads to a server: an `Address`, or whoever finds it out (`sentinel`)."""

    where: str  # for messages; never a password
    generation: int  # grows when the server is another one: older links lead to where it was
    on_move: Callable[[], None]  # is called when it has grown, on any thread
    replicas: int  # how many there are known to be; 0: only the server itself knows
    least: float  # seconds that connecting may take, whatever the budget
    patience: float  # how long who waits goes on asking while there is no server

    def connect(self, budget: float) -> tuple[Any, int]:
        """A connection of redis-py that is connected, and its generation."""

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        """The same for asyncio."""

    def failed(self, error: BaseException) -> BackendError:
        """Why there is no connection."""

    def after_fork_in_child(self) -> None: ...


class Address:
    """How to connect: a kind of redis-py's connection, and what to tell it."""

    generation = 0
    replicas = 0
    least = 0.0
    patience = PATIENCE

    def __init__(self, kind: type, said: dict[str, Any], what: str = "redis") -> None:
        self._what = what
        self.on_move: Callable[[], None] = lambda: None  # it never does
        self._blocking = _blocking_kind(kind)
        self._tasks = next(
            ours for ours, counterpart in _KINDS.items() if counterpart is self._blocking
        )
        self.said = {key: value for key, value in said.items() if key not in _NOT_OURS}
        self.where = self._described()

    def _described(self) -> str:
        """For messages; never a password."""
        db = f"/{self.said['db']}" if self.said.get("db") else ""
        if "path" in self.said:
            return f"{self._what} at {self.said['path']}{db}"
        return f"{self._what} at {self.endpoint}{db}"

    @property
    def endpoint(self) -> str:
        return f"{self.said.get('host', 'localhost')}:{self.said.get('port', 6379)}"

    def moved_to(self, host: str, port: int) -> Address:
        """The same elsewhere."""
        return Address(self._blocking, {**self.said, "host": host, "port": port}, self._what)

    def connect(self, budget: float) -> tuple[Any, int]:
        connection = self._made(self._blocking, budget)
        try:
            connection.connect()
        except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
            raise self.failed(error) from error
        return connection, self.generation

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        connection = self._made(self._tasks, budget)
        try:
            async with asyncio.timeout(budget):
                await connection.connect()
        except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
            connection._close()
            raise self.failed(error) from error
        except BaseException:
            connection._close()
            raise
        return connection, self.generation

    def _made(self, kind: type, budget: float) -> Any:
        budgets = {"socket_timeout": budget, "socket_connect_timeout": budget}
        wanted = {**self.said, **_OURS, **budgets}
        known = parameters_of(kind)
        if "driver_info" in known:  # what used to be said with two words
            known -= {"lib_name", "lib_version"}
        try:
            return kind(**{key: value for key, value in wanted.items() if key in known})
        except (TypeError, ValueError, redis.exceptions.RedisError) as error:
            raise ConfigurationError(f"{self.where}: {error}") from None

    def check(self) -> None:
        """Refuse now what redis-py would refuse when it connects."""
        foreign = self.said.keys() - parameters_of(self._blocking)
        if foreign:
            raise ConfigurationError(f"{self.where}: unknown option {sorted(foreign)[0]!r}")
        self._made(self._blocking, 1.0)

    def after_fork_in_child(self) -> None:
        """It knows nothing that could be in the middle of something."""

    def failed(self, error: BaseException) -> BackendError:
        where = self.where
        said = str(error) or type(error).__name__
        secured = self._blocking is redis.SSLConnection
        if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
            hint = " (does it speak TLS there?)" if secured else ""
            return Unreachable(f"{where} did not answer in time while connecting{hint}")
        if isinstance(error, ssl.SSLError) or "SSL" in said or "certificate" in said:
            return Unreachable(f"{where}: TLS failed: {said}", transient=False)
        if isinstance(error, redis.exceptions.NoPermissionError):
            return explained(ServerError(f"NOPERM {said}"), where)
        if isinstance(error, redis.exceptions.AuthenticationError):
            # redis-py has cut off the server's word.
            knows = any(self.said.get(key) for key in ("password", "credential_provider"))
            return explained(ServerError(f"{'WRONGPASS' if knows else 'NOAUTH'} {said}"), where)
        if isinstance(error, redis.exceptions.ResponseError | redis.exceptions.BusyLoadingError):
            code = "LOADING " if isinstance(error, redis.exceptions.BusyLoadingError) else ""
            return explained(ServerError(code + said), where)
        if "max number of clients" in said:
            return explained(ServerError(said), where)
        hint = "" if secured or "reset" not in said else " (if it speaks TLS: rediss://)"
        return Unreachable(f"{where} is out of reach: {said}{hint}")


def _blocking_kind(kind: type) -> type:
    for ours, counterpart in _KINDS.items():
        if issubclass(kind, ours) and (kind is ours or issubclass(kind, counterpart | ours)):
            return counterpart if kind is ours else _closest(kind)
    return _closest(kind)


def _closest(kind: type) -> type:
    """The most special of redis-py's own that it is."""
    names = [parent.__name__ for parent in kind.__mro__]
    for name, counterpart in (
        ("UnixDomainSocketConnection", redis.UnixDomainSocketConnection),
        ("SSLConnection", redis.SSLConnection),
        ("Connection", redis.Connection),
    ):
        if name in names:
            return counterpart
    raise ConfigurationError(f"connections of the kind {kind.__name__} are not known here")


def parameters_of(kind: type) -> set[str]:
    names: set[str] = set()
    for parent in kind.__mro__:
        if parent is not object and "__init__" in vars(parent):
            names |= inspect.signature(parent.__init__).parameters.keys()  # type: ignore[misc]
    return names - {"self", "kwargs", "args"}


def new_reader() -> Any:
    return hiredis.Reader(replyError=ServerError)


class _Taken:
    """What is left in the place of a transport that we took over."""

    def is_closing(self) -> bool:
        return True


def taken_over(connection: Any) -> Any:
    """The transport of a connection of redis-py; neither it nor asyncio's streams close it now."""
    writer = connection._writer
    connection._reader = connection._writer = None
    transport, writer._transport = writer.transport, _Taken()
    return transport


class Link:
    """A connected socket, for one thread at a time."""

    __slots__ = (
        "__weakref__", "_connection", "_limit", "_most", "_where", "budget", "generation", "near",
        "pushed", "reader", "sock", "used",
    )  # fmt: skip

    def __init__(self, address: Where, budget: float) -> None:
        began = clock.now()
        self._where = address.where
        self._connection, self.generation = address.connect(budget)
        self.sock: Any = self._connection._sock
        self.sock.settimeout(None)
        waiter = select.poll()
        waiter.register(self.sock, select.POLLIN)
        self.near = Near(waiter.poll)
        self.reader = new_reader()
        self.pushed: Any = None
        self.used = clock.now()
        self.budget = max(began + budget - self.used, LEAST)  # what connecting left of it
        self._limit = -1.0
        # What TLS has decrypted and nobody took, no poll tells of.
        self._most = READ_SIZE if isinstance(self.sock, ssl.SSLSocket) else SHORT

    def ask(self, command: bytes, budget: float) -> Any:
        """One command, one answer. Whoever catches an error closes the link: the answer may still
        come."""
        try:
            if budget != self._limit:
                self._set_limit(budget)
            self.sock.sendall(command)
            self.near.look()
            self.reader.feed(self.sock.recv(self._most))
            answer = self.reader.gets()
            if answer is False or type(answer) is hiredis.PushNotification:
                answer = self._rest(answer, clock.now() + budget)
            if self.reader.has_data():
                self._surplus()
            return answer
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def ask_all(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        """Several at once, in one write."""
        until = clock.now() + budget
        try:
            self._set_limit(budget)
            self.sock.sendall(b"".join(commands))
            answers = [self._rest(self.reader.gets(), until) for _ in commands]
            self._surplus()
            return answers
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def subscribe(self, command: bytes, budget: float) -> Any:
        """The push that answers it, or the error."""
        try:
            self._set_limit(budget)
            self.sock.sendall(command)
            return self._rest(self.reader.gets(), clock.now() + budget, any_push=True)
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def _rest(self, answer: Any, until: float, *, any_push: bool = False) -> Any:
        """The next answer, of which ``answer`` is what was there so far; or the next push."""
        size = 0
        while True:
            if type(answer) is hiredis.PushNotification and not any_push:
                self._push(answer)
                answer = self.reader.gets()
            elif answer is not False:
                return answer
            else:
                rest = until - clock.now()
                if rest <= 0:
                    raise TimeoutError
                self._set_limit(rest)
                data = self.sock.recv(READ_SIZE)
                size += len(data)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                if size > MOST_BYTES:
                    raise hiredis.ProtocolError("an answer without end")
                self.reader.feed(data)
                answer = self.reader.gets()

    def _surplus(self) -> None:
        """What came together with an answer: a bell, which no poll will tell of any more. Another
        answer is one too many: the next command would take it for its own."""
        while (push := self.reader.gets()) is not False:
            if type(push) is not hiredis.PushNotification:
                raise hiredis.ProtocolError("an answer that nobody asked for")
            self._push(push)

    def _push(self, push: Any) -> None:
        if self.pushed is not None:
            self.pushed(push)

    def pushes(self) -> None:
        """Deliver what has arrived unasked; the socket is known to be readable."""
        try:
            data = self.sock.recv(READ_SIZE)
            while data and (more := self._buffered()):
                data += self.sock.recv(more)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self.reader.feed(data)
            self._surplus()
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error

    def _buffered(self) -> int:
        """TLS may have decrypted more than was asked for, which no poll will tell."""
        return self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0

    def _set_limit(self, budget: float) -> None:
        """The kernel's own time-out: Python's would cost a system call more per send and read."""
        self._limit = budget
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(budget)
            return
        seconds = max(budget, 0.001)
        value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _explained(self, error: Exception, budget: float) -> BackendError:
        if isinstance(error, BlockingIOError | TimeoutError | ssl.SSLWantReadError):
            return Unreachable(f"{self._where} did not answer within {budget:.3g} s")
        if isinstance(error, hiredis.HiredisError):
            return Unreachable(f"{self._where} does not speak Redis's protocol: {error}")
        return Unreachable(f"the connection to {self._where} is lost: {error}")

    def is_stale(self) -> bool:
        """Did the server close it while we did not look? (A server may have an idle time-out.) Or
        say something that nobody asked for? Late bells are read, and that is all."""
        try:
            self.sock.setblocking(False)
            if self.pushed is None:
                # Of the kernel also where TLS is spoken: that one has no answer without taking it.
                socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
                return True
            data = self.sock.recv(READ_SIZE)
            self.reader.feed(data)
            self._surplus()
            return not data
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except (OSError, hiredis.HiredisError):
            return True
        finally:
            self._limit = -1.0
            self.sock.setblocking(True)

    def close(self) -> None:
        self._connection.disconnect()
