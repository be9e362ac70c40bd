"""Which server: URLs, and the opened store."""

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

from lockfast.stores.sql.backend import RowsBackend, mark_of
from lockfast.stores.sql.listeners import LOOK_BUDGET, PacedEar
from lockfast.stores.sql.mysql.connections import Address, code_and_words, connect
from lockfast.stores.sql.mysql.dialect import MySQLSpeech
from lockfast.stores.sql.mysql.errors import explained
from lockfast.stores.sql.mysql.task_connections import connect_task
from lockfast.stores.sql.mysql.transactions import MySQLTransactions
from lockfast.stores.sql.options import not_a_url, refuse_unknown
from lockfast.stores.sql.tasks import TaskTransport
from lockfast.stores.sql.threads import BlockingTransport
from lockfast.stores.sql.transactions import Transactions
from lockfast.stores.sql.user_connections import Given

CAPABILITIES = Capabilities(
    store="mysql",
    across="network",
    wakes="one paced read per process",
    survives_restart=True,
    transaction_locks=True,
)
SPEECH = MySQLSpeech()
PORT = 3306
OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")


class MySQLStore:
    """One database, seen by one client."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.url = address.where
        self._transports: weakref.WeakSet[BlockingTransport | TaskTransport] = weakref.WeakSet()
        self._ears: weakref.WeakSet[PacedEar] = weakref.WeakSet()
        self._ear: PacedEar | None = None
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> RowsBackend:
        transport = BlockingTransport(partial(connect, self._address), self.url)
        self._ear = PacedEar(partial(_look, transport))
        self._ears.add(self._ear)
        return self._backend(transport, self._ear)

    def tasks(self, signal: Callable[[], Signal]) -> RowsBackend:
        """Its keeper was made just before, and looks for it."""
        transport = TaskTransport(partial(connect_task, self._address), self.url)
        if self._ear is None:
            self.blocking(signal)
        assert self._ear is not None
        return self._backend(transport, self._ear)

    def _backend(self, transport: BlockingTransport | TaskTransport, ear: PacedEar) -> RowsBackend:
        self._transports.add(transport)
        start = secrets.token_bytes(32)
        made = RowsBackend(transport, ear, SPEECH, self.url, CAPABILITIES, start)
        made.transactions = Transactions(transport, MySQLTransactions(self.url), self.url)
        return made

    def health_checks(self) -> Iterator[HealthCheck]:
        """What an examination of the database finds."""
        from lockfast.stores.sql.mysql.health import health_checks  # only the doctor needs it

        return health_checks(self._address)

    def before_fork(self) -> None:
        """Nothing to rest: what crosses a fork is dropped in the child."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        for ear in list(self._ears):
            ear.after_fork_in_child()
        for transport in list(self._transports):
            transport.after_fork_in_child()


def _look(
    transport: BlockingTransport, waiting: Sequence[tuple[str, str]]
) -> list[tuple[str, Granted]]:
    request = SPEECH.granted([(mark_of(name), claim_id) for name, claim_id in waiting])
    return SPEECH.grants(transport.send(request, LOOK_BUDGET))


def open_mysql(url: str) -> MySQLStore:
    """``mysql://user:password@host:port/database``, or ``mariadb://``, which is the same."""
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
    said: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": unquote(user),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    if "unix_socket" in options:
        said["unix_socket"] = options["unix_socket"]
    if any(option.startswith("ssl") for option in options):
        said["ssl"] = _secured(options)
    return MySQLStore(Address(said, f"{parts.scheme} at {host}:{port}/{database}"))


def _secured(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        context.check_hostname = options.get("ssl_check_hostname", "true") != "false"
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"the certificates cannot be read: {error}") from error
    return context


def open_given_mysql(given: Given) -> MySQLStore:
    """What a user's function, or engine, makes."""
    given.explain = partial(_not_made, given.where)  # type: ignore[method-assign]
    return MySQLStore(Address({}, given.where, given))


def _not_made(where: str, error: Exception) -> Exception | None:
    if not isinstance(error, pymysql.MySQLError | asyncmy.errors.MySQLError):
        return None
    found = explained(*code_and_words(error), where)
    return found if isinstance(found, BackendError) else None
