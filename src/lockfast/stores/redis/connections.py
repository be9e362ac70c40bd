"""Connections. redis-py resolves, connects, secures and authenticates them; from then on commands
go through the socket directly, because redis-py's work per command costs more than the server's.

Nothing is retried here, and everything has a budget: a call that timed out may have been executed,
so retrying it, with the same claim id, is left to the core.
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
from lockfast.stores.redis.spin import Spin

READ_SIZE = 65536
SHORT = 448  # enough for our replies; allocating more costs more than most of the read
LEAST = 0.02  # for a command after connecting took the whole budget, lest that be wasted
MOST_BYTES = 64 * 2**20  # of one reply: a server that never ends one must not fill our memory
# Options that the handshake needs, or that keep redis-py from doing more than connect.
_OWN_OPTIONS: dict[str, Any] = {
    "protocol": 3,  # wake-ups arrive as pushes, distinct from replies
    "decode_responses": False,
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "driver_info": None,
    "lib_name": None,
    "lib_version": None,
    "retry": None,
    "socket_keepalive": True,
}
_IGNORED_OPTIONS = (
    "retry_on_error", "maint_notifications_config", "event_dispatcher", "parser_class",
    "connection_pool",
)  # fmt: skip
_KINDS = {
    redis.asyncio.Connection: redis.Connection,
    redis.asyncio.SSLConnection: redis.SSLConnection,
    redis.asyncio.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
}


class ServerAddress(Protocol):
    """The way to a server: a fixed `Address`, or one that is looked up (`sentinel`)."""

    where: str  # for messages; never a password
    generation: int  # grows when the server changes: older connections lead to the previous one
    on_move: Callable[[], None]  # called when the generation has grown, on any thread
    replicas: int  # the known number; 0: only the server itself knows
    least: float  # seconds that connecting may take at least, whatever the budget
    patience: float  # how long a waiter keeps retrying while there is no server

    def connect(self, budget: float) -> tuple[Any, int]:
        """A connected connection of redis-py, and its generation."""

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        """`connect` for asyncio."""

    def failed(self, error: BaseException) -> BackendError:
        """The exception for a failed attempt to connect."""

    def after_fork_in_child(self) -> None: ...


class Address:
    """A fixed address: a connection class of redis-py and its options."""

    generation = 0
    replicas = 0
    least = 0.0
    patience = PATIENCE

    def __init__(self, kind: type, options: dict[str, Any], what: str = "redis") -> None:
        self._what = what
        self.on_move: Callable[[], None] = lambda: None  # never called: the address is fixed
        self._blocking = _blocking_kind(kind)
        self._tasks = next(
            ours for ours, counterpart in _KINDS.items() if counterpart is self._blocking
        )
        self.options = {key: value for key, value in options.items() if key not in _IGNORED_OPTIONS}
        self.where = self._described()

    def _described(self) -> str:
        """For messages; never a password."""
        db = f"/{self.options['db']}" if self.options.get("db") else ""
        if "path" in self.options:
            return f"{self._what} at {self.options['path']}{db}"
        return f"{self._what} at {self.endpoint}{db}"

    @property
    def endpoint(self) -> str:
        return f"{self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"

    def moved_to(self, host: str, port: int) -> Address:
        """This address with another host and port."""
        return Address(self._blocking, {**self.options, "host": host, "port": port}, self._what)

    def connect(self, budget: float) -> tuple[Any, int]:
        connection = self._new_connection(self._blocking, budget)
        try:
            connection.connect()
        except (redis.exceptions.RedisError, OSError, UnicodeError) as error:
            raise self.failed(error) from error
        return connection, self.generation

    async def connect_task(self, budget: float) -> tuple[Any, int]:
        connection = self._new_connection(self._tasks, budget)
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

    def _new_connection(self, kind: type, budget: float) -> Any:
        budgets = {"socket_timeout": budget, "socket_connect_timeout": budget}
        wanted = {**self.options, **_OWN_OPTIONS, **budgets}
        known = parameters_of(kind)
        if "driver_info" in known:  # it replaced these two options
            known -= {"lib_name", "lib_version"}
        try:
            return kind(**{key: value for key, value in wanted.items() if key in known})
        except (TypeError, ValueError, redis.exceptions.RedisError) as error:
            raise ConfigurationError(f"{self.where}: {error}") from None

    def check(self) -> None:
        """Reject now the options that redis-py would reject when it connects."""
        foreign = self.options.keys() - parameters_of(self._blocking)
        if foreign:
            raise ConfigurationError(f"{self.where}: unknown option {sorted(foreign)[0]!r}")
        self._new_connection(self._blocking, 1.0)

    def after_fork_in_child(self) -> None:
        """Nothing to do: a fixed address has no lock that a fork could leave locked."""

    def failed(self, error: BaseException) -> BackendError:
        where = self.where
        message = str(error) or type(error).__name__
        secured = self._blocking is redis.SSLConnection
        if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
            hint = " (does this port use TLS?)" if secured else ""
            return Unreachable(f"{where} did not answer in time while connecting{hint}")
        if isinstance(error, ssl.SSLError) or "SSL" in message or "certificate" in message:
            return Unreachable(f"{where}: TLS failed: {message}", transient=False)
        if isinstance(error, redis.exceptions.NoPermissionError):
            return explained(ServerError(f"NOPERM {message}"), where)
        if isinstance(error, redis.exceptions.AuthenticationError):
            # redis-py has removed the error's code.
            knows = any(self.options.get(key) for key in ("password", "credential_provider"))
            return explained(ServerError(f"{'WRONGPASS' if knows else 'NOAUTH'} {message}"), where)
        if isinstance(error, redis.exceptions.ResponseError | redis.exceptions.BusyLoadingError):
            code = "LOADING " if isinstance(error, redis.exceptions.BusyLoadingError) else ""
            return explained(ServerError(code + message), where)
        if "max number of clients" in message:
            return explained(ServerError(message), where)
        hint = "" if secured or "reset" not in message else " (if the server uses TLS: rediss://)"
        return Unreachable(f"{where} is out of reach: {message}{hint}")


def _blocking_kind(kind: type) -> type:
    for ours, counterpart in _KINDS.items():
        if issubclass(kind, ours) and (kind is ours or issubclass(kind, counterpart | ours)):
            return counterpart if kind is ours else _closest(kind)
    return _closest(kind)


def _closest(kind: type) -> type:
    """The most specific class of redis-py that ``kind`` derives from."""
    names = [parent.__name__ for parent in kind.__mro__]
    for name, counterpart in (
        ("UnixDomainSocketConnection", redis.UnixDomainSocketConnection),
        ("SSLConnection", redis.SSLConnection),
        ("Connection", redis.Connection),
    ):
        if name in names:
            return counterpart
    raise ConfigurationError(f"connections of the class {kind.__name__} are not supported")


def parameters_of(kind: type) -> set[str]:
    names: set[str] = set()
    for parent in kind.__mro__:
        if parent is not object and "__init__" in vars(parent):
            names |= inspect.signature(parent.__init__).parameters.keys()  # type: ignore[misc]
    return names - {"self", "kwargs", "args"}


def new_reader() -> Any:
    return hiredis.Reader(replyError=ServerError)


class _Taken:
    """A stand-in for the transport that was taken over."""

    def is_closing(self) -> bool:
        return True


def taken_over(connection: Any) -> Any:
    """Detach the transport of a redis-py connection: neither it nor its streams close it now."""
    writer = connection._writer
    connection._reader = connection._writer = None
    transport, writer._transport = writer.transport, _Taken()
    return transport


class Connection:
    """A connected socket, for one thread at a time."""

    __slots__ = (
        "__weakref__", "_connection", "_limit", "_most", "_where", "budget", "generation", "pushed",
        "reader", "sock", "spin", "used",
    )  # fmt: skip

    def __init__(self, address: ServerAddress, budget: float) -> None:
        began = clock.now()
        self._where = address.where
        self._connection, self.generation = address.connect(budget)
        self.sock: Any = self._connection._sock
        self.sock.settimeout(None)
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        self.spin = Spin(poller.poll)
        self.reader = new_reader()
        self.pushed: Any = None
        self.used = clock.now()
        self.budget = max(began + budget - self.used, LEAST)  # what connecting has left of it
        self._limit = -1.0
        # TLS data that is decrypted but not read is invisible to poll, so it is read at once.
        self._most = READ_SIZE if isinstance(self.sock, ssl.SSLSocket) else SHORT

    def ask(self, command: bytes, budget: float) -> Any:
        """Send one command and read its reply. After an error the caller must close the
        connection: the reply may still arrive."""
        try:
            if budget != self._limit:
                self._set_limit(budget)
            self.sock.sendall(command)
            self.spin.poll()
            self.reader.feed(self.sock.recv(self._most))
            answer = self.reader.gets()
            if answer is False or type(answer) is hiredis.PushNotification:
                answer = self._read_reply(answer, clock.now() + budget)
            if self.reader.has_data():
                self._read_pushes()
            return answer
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def ask_all(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        """Send several commands in one write, and read their replies."""
        until = clock.now() + budget
        try:
            self._set_limit(budget)
            self.sock.sendall(b"".join(commands))
            answers = [self._read_reply(self.reader.gets(), until) for _ in commands]
            self._read_pushes()
            return answers
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def subscribe(self, command: bytes, budget: float) -> Any:
        """Send a SUBSCRIBE; return the push that confirms it, or the error reply."""
        try:
            self._set_limit(budget)
            self.sock.sendall(command)
            return self._read_reply(self.reader.gets(), clock.now() + budget, any_push=True)
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def _read_reply(self, answer: Any, until: float, *, any_push: bool = False) -> Any:
        """Read until there is a reply (or, with ``any_push``, a push) unless ``answer`` is one."""
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
                    raise ConnectionResetError("the server closed the connection")
                if size > MOST_BYTES:
                    raise hiredis.ProtocolError("a reply without end")
                self.reader.feed(data)
                answer = self.reader.gets()

    def _read_pushes(self) -> None:
        """Deliver pushes that arrived together with a reply, since poll will not report them again.
        Another reply is an error: the next command would take it for its own."""
        while (push := self.reader.gets()) is not False:
            if type(push) is not hiredis.PushNotification:
                raise hiredis.ProtocolError("a reply without a command")
            self._push(push)

    def _push(self, push: Any) -> None:
        if self.pushed is not None:
            self.pushed(push)

    def pushes(self) -> None:
        """Deliver the pushes that have arrived; the socket is known to be readable."""
        try:
            data = self.sock.recv(READ_SIZE)
            while data and (more := self._buffered()):
                data += self.sock.recv(more)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self.reader.feed(data)
            self._read_pushes()
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error

    def _buffered(self) -> int:
        """How many bytes TLS has decrypted beyond those read, which poll does not report."""
        return self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0

    def _set_limit(self, budget: float) -> None:
        """Set the kernel's time-out: Python's would cost one more system call per send and read."""
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
            return Unreachable(f"{self._where} does not follow the Redis protocol: {error}")
        return Unreachable(f"the connection to {self._where} is lost: {error}")

    def is_stale(self) -> bool:
        """Has the server closed the idle connection, or sent anything but late wake-ups? Those are
        read and delivered. (A server may have an idle time-out.)"""
        try:
            self.sock.setblocking(False)
            if self.pushed is None:
                # Peek at the kernel's socket also under TLS, which cannot peek.
                socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
                return True
            data = self.sock.recv(READ_SIZE)
            self.reader.feed(data)
            self._read_pushes()
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
