"""Which server: URLs, and the opened store."""

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

from lockfast.stores.sql.backend import RowsBackend, mark_of
from lockfast.stores.sql.listeners import LOOK_BUDGET, PacedEar, PushEar
from lockfast.stores.sql.options import not_a_url, refuse_unknown
from lockfast.stores.sql.postgres.connections import Address, Link, connect
from lockfast.stores.sql.postgres.dialect import PostgresSpeech, channel_of, heard
from lockfast.stores.sql.postgres.errors import not_connected
from lockfast.stores.sql.postgres.task_connections import connect_task
from lockfast.stores.sql.postgres.transactions import PostgresTransactions
from lockfast.stores.sql.tasks import TaskTransport
from lockfast.stores.sql.threads import BlockingTransport
from lockfast.stores.sql.transactions import Transactions
from lockfast.stores.sql.user_connections import Given

CAPABILITIES = Capabilities(
    store="postgresql", across="network", survives_restart=True, transaction_locks=True
)
SPEECH = PostgresSpeech()
_PORTS = re.compile(r"[\d,]*").fullmatch  # of several hosts


class Listener:
    """A connection that hears one channel."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.fd = link.fd

    @property
    def broken(self) -> bool:
        return self._link.broken

    def subscribe(self, wake_address: str, budget: float) -> None:
        # A home is hexadecimal digits that we made, nothing that anybody said.
        self._link.run(self._link.saying(f'LISTEN "{channel_of(wake_address)}"'), budget)

    def wakeups(self) -> list[tuple[str, Granted | None]]:
        try:
            found = [heard(message) for message in self._link.notices()]
        except (psycopg.Error, OSError) as error:
            raise self._link.lost(error) from error
        return [bell for bell in found if bell is not None]

    def close(self) -> None:
        self._link.close()

    def after_fork_in_child(self) -> None:
        self._link.after_fork_in_child()


class PostgresStore:
    """One database, seen by one client."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.url = address.where
        self._transports: weakref.WeakSet[BlockingTransport | TaskTransport] = weakref.WeakSet()
        self._ears: weakref.WeakSet[PushEar] = weakref.WeakSet()
        self._ear: PushEar | None = None
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> RowsBackend:
        transport = BlockingTransport(partial(connect, self._address), self.url)
        self._ear = PushEar(self._listener, PacedEar(partial(_look, transport)))
        self._ears.add(self._ear)
        return self._backend(transport, self._ear)

    def tasks(self, signal: Callable[[], Signal]) -> RowsBackend:
        """Its keeper was made just before, and hears for it."""
        transport = TaskTransport(partial(connect_task, self._address), self.url)
        if self._ear is None:
            self.blocking(signal)
        assert self._ear is not None
        return self._backend(transport, self._ear)

    def _backend(self, transport: BlockingTransport | TaskTransport, ear: PushEar) -> RowsBackend:
        self._transports.add(transport)
        start = secrets.token_bytes(32)
        made = RowsBackend(transport, ear, SPEECH, self.url, CAPABILITIES, start)
        made.transactions = Transactions(transport, PostgresTransactions(self.url), self.url)
        return made

    def _listener(self, budget: float) -> Listener | None:
        link = connect(self._address, budget)
        if link.pooled:  # another session at each transaction: it could hear nothing
            link.close()
            return None
        return Listener(link)

    def health_checks(self) -> Iterator[HealthCheck]:
        """What an examination of the database finds."""
        from lockfast.stores.sql.postgres.health import health_checks  # only the doctor needs it

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


def open_postgres(url: str) -> PostgresStore:
    """``postgresql://`` or ``postgres://``, as libpq reads them."""
    parts = urlsplit(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    pairs = filter(None, parts.query.split("&"))
    refuse_unknown(parts.scheme, [pair.partition("=")[0] for pair in pairs], known)
    try:
        said = conninfo_to_dict(url)
        readable = not parts.fragment and _PORTS(str(said.get("port") or "")) is not None
    except psycopg.Error:
        readable = False  # what it says may quote a password
    if not readable:
        raise not_a_url("PostgreSQL", "postgresql")
    where = f"postgresql at {said.get('host', 'localhost')}:{said.get('port', 5432)}"
    if said.get("dbname"):
        where += f"/{said['dbname']}"
    ours = {"client_encoding": "UTF8", "fallback_application_name": "lockfast"}
    return PostgresStore(Address(make_conninfo(url, **ours).encode(), where))


def open_given_postgres(given: Given) -> PostgresStore:
    """What a user's function, or engine, makes."""
    given.explain = partial(_not_made, given.where)  # type: ignore[method-assign]
    return PostgresStore(Address(b"", given.where, given))


def _not_made(where: str, error: Exception) -> Exception | None:
    return not_connected(str(error), where) if isinstance(error, psycopg.Error) else None
