"""redis-py resolves, connects, secures and authenticates; from then on its connection is ours.

Commands go through the socket directly, because redis-py's work per command costs more than the
server's. Nothing is retried, and everything has a budget: a call that timed out may have been
executed, so retrying it, with the same claim id, is left to the core.

Private attributes of redis-py and asyncio are used here and nowhere else in the package (redis-py 5
to 8, Python 3.11 to 3.14):

- ``Connection._sock`` of redis-py (`socket_of`): a command takes 6.9 µs of CPU time instead of 7.9,
  and a thread can wait for its wake-up on it. Without it, connecting fails and names the version.
- ``Connection._reader`` and ``_writer`` of redis.asyncio, and ``StreamWriter._transport``
  (`taken_over`): a command takes 12 µs instead of 28, alone, and 2 µs in a batch. Without them,
  connecting fails and names the version.
- ``BaseEventLoop._thread_id`` (`LoopBound`): the running loop costs 0.33 µs to look up (Python
  3.11 asks for the process id each time), 6 % of a command. Loops without it are looked up.
- ``_SelectorTransport._sock`` and ``_closing`` (`close_without_loop`): close the socket of a loop
  that has ended. Without them the socket is closed by the garbage collector.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import redis
import redis.asyncio

from lockfast.core.ports import PATIENCE
from lockfast.errors import BackendError, ConfigurationError
from lockfast.stores.redis.errors import ServerError, Unreachable, explained

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
_KINDS = ("UnixDomainSocketConnection", "SSLConnection", "Connection")


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
        self._tasks = getattr(redis.asyncio, self._blocking.__name__)
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
            close_connection(connection)
            raise self.failed(error) from error
        except BaseException:
            close_connection(connection)
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
    """The class for threads of the most specific class of redis-py that ``kind`` derives from."""
    for parent in kind.__mro__:
        if parent.__name__ in _KINDS:
            return getattr(redis, parent.__name__)  # type: ignore[no-any-return]
    raise ConfigurationError(f"connections of the class {kind.__name__} are not supported")


def parameters_of(kind: type) -> set[str]:
    names: set[str] = set()
    for parent in kind.__mro__:
        if parent is not object and "__init__" in vars(parent):
            names |= inspect.signature(parent.__init__).parameters.keys()  # type: ignore[misc]
    return names - {"self", "kwargs", "args"}


# ---- private attributes ----------------------------------------------------------------------


def socket_of(connection: Any) -> Any:
    """The socket of a connected redis-py connection."""
    return _private(connection, "_sock")


class _Taken:
    """A stand-in for the transport that was taken over."""

    def is_closing(self) -> bool:
        return True


def taken_over(connection: Any) -> Any:
    """Detach asyncio's transport from a connection: neither it nor its streams close it now."""
    writer = _private(connection, "_writer")
    connection._reader = connection._writer = None
    transport, writer._transport = writer.transport, _Taken()
    return transport


def _private(connection: Any, name: str) -> Any:
    found = getattr(connection, name, None)
    if found is None:
        raise ConfigurationError(
            f"redis-py {redis.__version__} is not supported: its {type(connection).__name__} has "
            f"no {name}; versions 5 to 8 have it"
        )
    return found


class LoopBound:
    """A connection that only its event loop may use."""

    loop: asyncio.AbstractEventLoop
    lost: BackendError | None
    generation: int

    def serves(self, generation: int) -> bool:
        """Is the connection usable on this thread, for the server of this generation?"""
        if self.lost is not None or self.generation != generation:
            return False
        known = getattr(self.loop, "_thread_id", None) == get_ident()
        return known or asyncio._get_running_loop() is self.loop


def close_without_loop(transport: Any) -> None:
    """Close a transport whose loop does not run, and may never run again."""
    try:
        transport.pause_reading()  # unregisters the socket: the loop may run again
    except RuntimeError:
        pass  # the loop is closed
    if (sock := getattr(transport, "_sock", None)) is not None:
        transport._sock, transport._closing = None, True
        sock.close()


def close_connection(connection: Any) -> None:
    """Close a redis-py connection of either API, without waiting."""
    getattr(connection, "_close", connection.disconnect)()
