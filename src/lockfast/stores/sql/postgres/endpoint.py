"""The PostgreSQL store: opened from a URL or from a user's connections. Its sessions go through
libpq as psycopg wraps it (``psycopg.pq``, which is public).

psycopg's cursors cost three times what the server does. A request here is one prepared statement,
so libpq suffices, and every call can have a budget to the millisecond.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError
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

from lockfast.stores.sql.book import ReadOnly, Result
from lockfast.stores.sql.connections import READ, WRITE, Connection, Exchange, wait
from lockfast.stores.sql.endpoint import SqlEndpoint, not_a_url, refuse_unknown
from lockfast.stores.sql.listeners import Listener
from lockfast.stores.sql.postgres import schema
from lockfast.stores.sql.postgres.dialect import (
    PostgresDialect,
    Request,
    Statement,
    channel_of,
    decode_message,
    exception_for,
    not_connected,
)
from lockfast.stores.sql.postgres.transactions import PostgresSession
from lockfast.stores.sql.user_connections import LEAST_CHECKING, UserConnections

_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_POOLED_CODES = ("26000", "42P05")
READ_ONLY = "25006"


class PostgresConnection(Connection):
    """One session. ``pooled``: a pooler is in between, which may give each transaction another
    session: no state may be left in it."""

    lost_by = (psycopg.Error, OSError)

    def __init__(self, pgconn: Any, where: str, owner: object = None) -> None:
        super().__init__(pgconn.socket, where)
        self._pgconn = pgconn
        self._owner = owner  # psycopg's connection, which warns if it is garbage-collected
        self._prepared: set[bytes] = set()
        self.pooled = False
        self._search_path = b""

    # ---- exchanges -----------------------------------------------------------------------------

    def executing(self, request: Request | list[Request]) -> Exchange:
        if isinstance(request, list):
            return self._executing_all(request)
        return self._executing_one(request)

    def _executing_one(self, request: Request) -> Exchange:
        statement, parameters = request
        pgconn = self._pgconn
        if self.pooled:
            return (yield from self._executing_pooled(request))
        if statement.name not in self._prepared:
            yield from self._preparing(statement)
        pgconn.send_query_prepared(statement.name, parameters, statement.formats)
        return [_decoded((yield from self._result()))]

    def _executing_pooled(self, request: Request) -> Exchange:
        """Execute a statement in a transaction that sets all that its meaning depends on, in one
        round trip: the session is another one each time, and keeps what other clients have set."""
        pgconn, (statement, parameters) = self._pgconn, request
        pgconn.enter_pipeline_mode()
        pgconn.send_query_params(schema.BEGIN, ())
        pgconn.send_query_params(schema.SET_LOCAL, (self._search_path,))
        pgconn.send_query_params(statement.sql, parameters, param_formats=statement.formats)
        pgconn.send_query_params(b"COMMIT", ())
        pgconn.pipeline_sync()
        while pgconn.flush():
            yield WRITE
        found = []
        for _ in range(4):
            found.append((yield from self._next()))
            yield from self._next()  # the end of this result
        yield from self._next()  # the end of the pipeline
        pgconn.exit_pipeline_mode()
        for result in found:
            if result is None or result.status not in _SUCCESS:
                error = self._exception(result)
                if not self.broken:
                    yield from self.executing_script("ROLLBACK")
                raise error
        return [_decoded(found[2])]

    def _preparing(self, statement: Statement) -> Exchange:
        self._pgconn.send_prepare(statement.name, statement.sql)
        yield from self._result()
        self._prepared.add(statement.name)

    def _executing_all(self, requests: list[Request]) -> Exchange:
        """Execute a pipeline, each statement in its own transaction: no lock spans two of them."""
        if self.pooled:
            results = []
            for request in requests:
                results.append((yield from self.executing(request)))
            return results
        for statement in {request.statement for request in requests}:
            if statement.name not in self._prepared:
                yield from self._preparing(statement)
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        for statement, parameters in requests:
            pgconn.send_query_prepared(statement.name, parameters, statement.formats)
            pgconn.pipeline_sync()
        while pgconn.flush():
            yield WRITE
        found = []
        for _ in requests:
            found.append((yield from self._next()))
            for _ in range(2):  # the end of this result, and of its transaction
                yield from self._next()
        pgconn.exit_pipeline_mode()
        for result in found:
            if result is None or result.status not in _SUCCESS:
                raise self._exception(result)
        return [[_decoded(result)] for result in found]

    def _next(self) -> Exchange:
        pgconn = self._pgconn
        while pgconn.is_busy():
            yield READ
            pgconn.consume_input()
        return pgconn.get_result()

    def executing_script(self, sql: str) -> Exchange:
        """Execute statements without parameters; return the last one's result."""
        self._pgconn.send_query(sql.encode())
        return _decoded((yield from self._result()))

    def _result(self) -> Exchange:
        pgconn = self._pgconn
        while pgconn.flush():
            yield WRITE
        last: Any = None
        while True:
            while pgconn.is_busy():
                yield READ
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if last is None or last.status in _SUCCESS:
                last = result
        if last is None or last.status not in _SUCCESS:
            raise self._exception(last)
        return last

    def creating_tables(self) -> Exchange:
        """If that fails, its transaction is still open: so the connection is broken."""
        path = pq.Escaping(self._pgconn).escape_literal(self._search_path).decode()
        set_path = f"SELECT set_config('search_path', {path}, true);" if self.pooled else ""
        try:
            return (yield from self.executing_script(schema.MAKE_TABLES.format(set_path)))
        except BaseException:
            self.broken = True
            raise

    def _exception(self, result: Any) -> Exception:
        if self._pgconn.status != pq.ConnStatus.OK:
            self.broken = True
        if result is None:
            return self.lost(ConnectionError(self._pgconn.get_error_message()))
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if code in _POOLED_CODES:
            self.pooled = True
        elif code == "0A000":
            self._prepared.clear()
            self.broken = True
        if code.startswith("57P") or code == READ_ONLY:
            self.broken = True
        if not code:
            self.broken = True
            return BackendError(f"the connection to {self.where} was lost")
        mapped = exception_for(code, message.decode(errors="replace"), self.where)
        # The server became read-only after lockfast had connected: see `SqlEndpoint`.
        return BackendError(str(mapped)) if code == READ_ONLY else mapped

    # ---- notifications -------------------------------------------------------------------------

    def subscribe(self, wake_address: str, budget: float) -> None:
        # Nothing to quote: a wake address is hexadecimal digits that lockfast generated.
        self.run(self.executing_script(f'LISTEN "{channel_of(wake_address)}"'), budget)

    def wakeups(self) -> list[tuple[str, Granted | None]]:
        """Return the wake-ups received on the channel that this connection listens to."""
        found = []
        try:
            self._pgconn.consume_input()
            while (notification := self._pgconn.notifies()) is not None:
                found.append(decode_message(notification.extra.decode(errors="replace")))
        except self.lost_by as error:
            raise self.lost(error) from error
        return [wakeup for wakeup in found if wakeup is not None]

    # ---- setting up, closing -------------------------------------------------------------------

    def set_up(self, taken_over: bool, until: float, least: float) -> None:
        """Check that the server is writable, and whether a pooler is in between."""

        def execute(sql: str) -> Any:
            return self.run(self.executing_script(sql), max(until - clock.now(), least))

        if taken_over:  # discard its transaction and settings
            execute(schema.TAKEN_OVER)
        pid, read_only, standby = execute(schema.CHECK).rows[0]
        self.pooled = int(pid) != self._pgconn.backend_pid
        if self.pooled:
            read_only, self._search_path = execute(schema.DEFAULTS).rows[0]
        if standby == b"t" or read_only == b"on":
            kind = "a standby" if standby == b"t" else "read-only (default_transaction_read_only)"
            raise ReadOnly(
                f"{self.where} is {kind}, and taking a lock is a write: use the address of the "
                "primary, or a user and a database that may write",
                transient=False,
            )
        if not self.pooled:
            execute(schema.SETTINGS)

    def _finish(self) -> None:
        self._pgconn.finish()

    def after_fork_in_child(self) -> None:
        """psycopg does not call PQfinish in a child, so the parent's session goes on."""
        if not self.broken:
            self.broken = True
            with contextlib.suppress(OSError):
                os.close(self.fd)


def _decoded(result: Any) -> Result:
    if not (count := result.ntuples):
        return Result(result.command_tuples or 0)
    value, columns = result.get_value, range(result.nfields)
    return Result(count, 0, [[value(row, column) for column in columns] for row in range(count)])


def connected(conninfo: bytes, where: str, budget: float) -> PostgresConnection:
    """Connect, in this thread: libpq blocks while it resolves host names."""
    until = clock.now() + budget
    pgconn = pq.PGconn.connect_start(conninfo)
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise not_connected(pgconn.get_error_message(), where)
        match pgconn.connect_poll():
            case pq.PollingStatus.OK:
                pgconn.nonblocking = 1
                return PostgresConnection(pgconn, where)
            case pq.PollingStatus.READING:
                wanted = READ
            case pq.PollingStatus.WRITING:
                wanted = WRITE
            case _:
                raise not_connected(pgconn.get_error_message(), where)
        if not wait(pgconn.socket, wanted, until - clock.now()):
            pgconn.finish()
            raise TimeoutError


# ---- the endpoint ------------------------------------------------------------------------------

_PORTS = re.compile(r"[\d,]*").fullmatch  # a list, for several hosts


class PostgresEndpoint(SqlEndpoint):
    dialect = PostgresDialect()
    session = PostgresSession
    offers = Capabilities(
        store="postgresql", across="network", survives_restart=True, transaction_locks=True
    )

    def opened(self, made: Any, budget: float) -> PostgresConnection:
        until, least = clock.now() + budget, 0.001
        if made is None:
            try:
                connection = connected(self.parameters, self.url, budget)
            except TimeoutError:
                raise self.not_in_time(budget) from None
        else:
            connection = PostgresConnection(made.pgconn, self.url, made)
            least = LEAST_CHECKING
        try:
            connection.set_up(made is not None, until, least)
        except BaseException:
            connection.close()
            raise
        return connection

    def _listening(self, poll_grants: Callable[[Sequence[tuple[str, str]]], Any]) -> Listener:
        return Listener(poll_grants, self._listening_connection)

    def _listening_connection(self, budget: float) -> PostgresConnection | None:
        connection = self.connect(budget)
        assert isinstance(connection, PostgresConnection)
        if connection.pooled:  # each transaction may get another session: LISTEN does not work
            connection.close()
            return None
        return connection

    def health_checks(self) -> Iterator[HealthCheck]:
        from lockfast.stores.sql.health import postgres_checks  # used by `lockfast doctor` only

        return postgres_checks(self)


def open_postgres(url: str) -> PostgresEndpoint:
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
    return PostgresEndpoint(make_conninfo(url, **ours).encode(), where)


def open_postgres_connections(user_connections: UserConnections) -> PostgresEndpoint:
    """Open the store on connections that a user's function or engine makes."""
    user_connections.explain = _map_driver_error
    return PostgresEndpoint(b"", user_connections.where, user_connections)


def _map_driver_error(where: str, error: Exception) -> Exception | None:
    return not_connected(str(error), where) if isinstance(error, psycopg.Error) else None
