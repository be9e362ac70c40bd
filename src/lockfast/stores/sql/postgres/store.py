"""The PostgreSQL store: opened from a URL or from a user's connections."""

from __future__ import annotations

import re
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.model import Capabilities, Granted
from lockfast.stores.health_checks import HealthCheck

try:
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as missing:
    raise ConfigurationError(
        f"PostgreSQL needs a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[postgres]'"
    ) from None

from lockfast.stores.sql.backend import RowsBackend, hash_of
from lockfast.stores.sql.listeners import POLL_BUDGET, PollingListener, PushListener
from lockfast.stores.sql.options import not_a_url, refuse_unknown
from lockfast.stores.sql.postgres.connections import Address, Connection, connect
from lockfast.stores.sql.postgres.dialect import PostgresDialect, channel_of, decode_message
from lockfast.stores.sql.postgres.errors import not_connected
from lockfast.stores.sql.postgres.task_connections import connect_task
from lockfast.stores.sql.postgres.transactions import PostgresTransactions
from lockfast.stores.sql.tasks import TaskTransport
from lockfast.stores.sql.threads import BlockingTransport
from lockfast.stores.sql.transactions import Transactions
from lockfast.stores.sql.user_connections import UserConnections

CAPABILITIES = Capabilities(
    store="postgresql", across="network", survives_restart=True, transaction_locks=True
)
DIALECT = PostgresDialect()
_PORTS = re.compile(r"[\d,]*").fullmatch  # a list, for several hosts


class NotifyConnection:
    """A connection that LISTENs to one channel."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.fd = connection.fd

    @property
    def broken(self) -> bool:
        return self._connection.broken

    def subscribe(self, wake_address: str, budget: float) -> None:
        # Nothing to quote: a wake address is hexadecimal digits that lockfast generated.
        self._connection.run(
            self._connection.executing_script(f'LISTEN "{channel_of(wake_address)}"'), budget
        )

    def wakeups(self) -> list[tuple[str, Granted | None]]:
        try:
            found = [decode_message(message) for message in self._connection.notifications()]
        except (psycopg.Error, OSError) as error:
            raise self._connection.lost(error) from error
        return [wakeup for wakeup in found if wakeup is not None]

    def close(self) -> None:
        self._connection.close()

    def after_fork_in_child(self) -> None:
        self._connection.after_fork_in_child()


class PostgresStore:
    """One database, as one client uses it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.url = address.where
        self._transports: weakref.WeakSet[BlockingTransport | TaskTransport] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[PushListener] = weakref.WeakSet()
        self._listener: PushListener | None = None
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> RowsBackend:
        transport = BlockingTransport(partial(connect, self._address), self.url)
        self._listener = PushListener(
            self._open_notify_connection, PollingListener(partial(_poll_grants, transport))
        )
        self._listeners.add(self._listener)
        return self._backend(transport, self._listener)

    def tasks(self, signal: Callable[[], Signal]) -> RowsBackend:
        """Make the backend of the async API. Its keeper's backend, made before, listens for it."""
        transport = TaskTransport(partial(connect_task, self._address), self.url)
        if self._listener is None:
            self.blocking(signal)
        assert self._listener is not None
        return self._backend(transport, self._listener)

    def _backend(
        self, transport: BlockingTransport | TaskTransport, listener: PushListener
    ) -> RowsBackend:
        self._transports.add(transport)
        start = secrets.token_bytes(32)
        made = RowsBackend(transport, listener, DIALECT, self.url, CAPABILITIES, start)
        made.transactions = Transactions(transport, PostgresTransactions(self.url), self.url)
        return made

    def _open_notify_connection(self, budget: float) -> NotifyConnection | None:
        connection = connect(self._address, budget)
        if connection.pooled:  # each transaction may get another session: LISTEN does not work
            connection.close()
            return None
        return NotifyConnection(connection)

    def health_checks(self) -> Iterator[HealthCheck]:
        """Examine the database."""
        from lockfast.stores.sql.postgres.health import (
            health_checks,
        )  # used by `lockfast doctor` only

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


def open_postgres(url: str) -> PostgresStore:
    """Open ``postgresql://`` or ``postgres://``, as libpq reads them."""
    parts = urlsplit(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    pairs = filter(None, parts.query.split("&"))
    refuse_unknown(parts.scheme, [pair.partition("=")[0] for pair in pairs], known)
    try:
        parameters = conninfo_to_dict(url)
        readable = not parts.fragment and _PORTS(str(parameters.get("port") or "")) is not None
    except psycopg.Error:
        readable = False  # psycopg's message may quote a password
    if not readable:
        raise not_a_url("PostgreSQL", "postgresql")
    where = f"postgresql at {parameters.get('host', 'localhost')}:{parameters.get('port', 5432)}"
    if parameters.get("dbname"):
        where += f"/{parameters['dbname']}"
    ours = {"client_encoding": "UTF8", "fallback_application_name": "lockfast"}
    return PostgresStore(Address(make_conninfo(url, **ours).encode(), where))


def open_postgres_connections(user_connections: UserConnections) -> PostgresStore:
    """Open the store on connections that a user's function or engine makes."""
    user_connections.explain = partial(_map_driver_error, user_connections.where)  # type: ignore[method-assign]
    return PostgresStore(Address(b"", user_connections.where, user_connections))


def _map_driver_error(where: str, error: Exception) -> Exception | None:
    return not_connected(str(error), where) if isinstance(error, psycopg.Error) else None
