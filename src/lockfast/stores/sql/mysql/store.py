"""The MariaDB and MySQL store: opened from a URL or from a user's connections."""

from __future__ import annotations

import secrets
import ssl
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Capabilities, Granted
from lockfast.stores.health_checks import HealthCheck

try:
    import asyncmy.errors
    import pymysql
except ImportError as missing:
    raise ConfigurationError(
        f"MariaDB and MySQL need a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[mysql]'"
    ) from None

from lockfast.stores.sql.backend import RowsBackend, hash_of
from lockfast.stores.sql.listeners import POLL_BUDGET, PollingListener
from lockfast.stores.sql.mysql.connections import Address, code_and_message, connect
from lockfast.stores.sql.mysql.dialect import MySQLDialect
from lockfast.stores.sql.mysql.errors import exception_for
from lockfast.stores.sql.mysql.task_connections import connect_task
from lockfast.stores.sql.mysql.transactions import MySQLTransactions
from lockfast.stores.sql.options import not_a_url, refuse_unknown
from lockfast.stores.sql.tasks import TaskTransport
from lockfast.stores.sql.threads import BlockingTransport
from lockfast.stores.sql.transactions import Transactions
from lockfast.stores.sql.user_connections import UserConnections

CAPABILITIES = Capabilities(
    store="mysql",
    across="network",
    wakes="one paced read per process",
    survives_restart=True,
    transaction_locks=True,
)
DIALECT = MySQLDialect()
PORT = 3306
OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")


class MySQLStore:
    """One database, as one client uses it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.url = address.where
        self._transports: weakref.WeakSet[BlockingTransport | TaskTransport] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[PollingListener] = weakref.WeakSet()
        self._listener: PollingListener | None = None
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> RowsBackend:
        transport = BlockingTransport(partial(connect, self._address), self.url)
        self._listener = PollingListener(partial(_poll_grants, transport))
        self._listeners.add(self._listener)
        return self._backend(transport, self._listener)

    def tasks(self, signal: Callable[[], Signal]) -> RowsBackend:
        """Make the backend of the async API. Its keeper's backend, made before, polls for it."""
        transport = TaskTransport(partial(connect_task, self._address), self.url)
        if self._listener is None:
            self.blocking(signal)
        assert self._listener is not None
        return self._backend(transport, self._listener)

    def _backend(
        self, transport: BlockingTransport | TaskTransport, listener: PollingListener
    ) -> RowsBackend:
        self._transports.add(transport)
        start = secrets.token_bytes(32)
        made = RowsBackend(transport, listener, DIALECT, self.url, CAPABILITIES, start)
        made.transactions = Transactions(transport, MySQLTransactions(self.url), self.url)
        return made

    def health_checks(self) -> Iterator[HealthCheck]:
        """Examine the database."""
        from lockfast.stores.sql.mysql.health import health_checks  # used by `lockfast doctor` only

        return health_checks(self._address)

    def before_fork(self) -> None:
        """Do nothing: connections that cross a fork are discarded in the child."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps its connections."""

    def after_fork_in_child(self) -> None:
        for listener in list(self._listeners):
            listener.after_fork_in_child()
        for transport in list(self._transports):
            transport.after_fork_in_child()


def _poll_grants(
    transport: BlockingTransport, waiting: Sequence[tuple[str, str]]
) -> list[tuple[str, Granted]]:
    request = DIALECT.poll_grants([(hash_of(name), claim_id) for name, claim_id in waiting])
    return DIALECT.decode_grants(transport.send(request, POLL_BUDGET))


def open_mysql(url: str) -> MySQLStore:
    """Open ``mysql://user:password@host:port/database``, or ``mariadb://``, which is the same."""
    parts = urlsplit(url)
    try:
        port, host, user = parts.port or PORT, parts.hostname or "localhost", parts.username or ""
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        port = 0
    database = unquote(parts.path.strip("/"))
    if not port or not database or "/" in database or parts.fragment:
        raise not_a_url(f"{parts.scheme}://", parts.scheme)
    refuse_unknown(parts.scheme, options, OPTIONS)
    parameters: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": unquote(user),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    if "unix_socket" in options:
        parameters["unix_socket"] = options["unix_socket"]
    if any(option.startswith("ssl") for option in options):
        parameters["ssl"] = _tls_context(options)
    return MySQLStore(Address(parameters, f"{parts.scheme} at {host}:{port}/{database}"))


def _tls_context(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        context.check_hostname = options.get("ssl_check_hostname", "true") != "false"
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"the TLS certificates cannot be read: {error}") from error
    return context


def open_mysql_connections(user_connections: UserConnections) -> MySQLStore:
    """Open the store on connections that a user's function or engine makes."""
    user_connections.explain = partial(_map_driver_error, user_connections.where)  # type: ignore[method-assign]
    return MySQLStore(Address({}, user_connections.where, user_connections))


def _map_driver_error(where: str, error: Exception) -> Exception | None:
    if not isinstance(error, pymysql.MySQLError | asyncmy.errors.MySQLError):
        return None
    found = exception_for(*code_and_message(error), where)
    return found if isinstance(found, BackendError) else None
