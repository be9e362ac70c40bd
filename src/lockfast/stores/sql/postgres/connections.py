"""Connections to PostgreSQL, through libpq as psycopg wraps it.

psycopg's cursors cost three times what the server does. A request here is one prepared statement,
so libpq suffices, and every call can have a budget to the millisecond. Exchanges with the server
are generators that yield what to wait for, and serve both APIs.

Nothing is retried here. After an error the caller checks ``broken``: a broken connection is closed,
because a reply may still arrive on it.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import pq

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry
from lockfast.stores.sql.postgres import schema
from lockfast.stores.sql.postgres.dialect import Request, Statement
from lockfast.stores.sql.postgres.errors import exception_for, not_connected
from lockfast.stores.sql.user_connections import LEAST_CHECKING, UserConnections

READ, WRITE = select.POLLIN, select.POLLOUT
# An exchange: yields (socket, event to wait for), returns its result.
Waits = Generator[tuple[int, int], None, Any]
_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
SETTLING = 0.25
_POOLED_CODES = ("26000", "42P05")


class Address:
    """Connection parameters of libpq, checked before, or a maker of connections."""

    def __init__(
        self, conninfo: bytes, where: str, user_connections: UserConnections | None = None
    ) -> None:
        self.conninfo = conninfo
        self.where = where
        self.user_connections = user_connections


class Connection:
    """One session, for one thread or task at a time. ``pooled``: a pooler is in between, which may
    give each transaction another session: no state may be left in it."""

    def __init__(self, pgconn: Any, where: str, owner: object = None) -> None:
        self._pgconn = pgconn
        self._owner = owner  # psycopg's connection, which warns if it is garbage-collected
        self._where = where
        self._prepared: set[bytes] = set()
        self.pooled = False
        self.broken = False
        self.used = clock.now()
        self.fd: int = pgconn.socket
        self._sleep = Sleep()

    # ---- exchanges, for both APIs --------------------------------------------------------------

    def executing(self, request: Request | list[Request]) -> Waits:
        """Execute one statement, or a list of them; return its result, or theirs."""
        if isinstance(request, list):
            return (yield from self._executing_all(request))
        statement, parameters = request
        pgconn = self._pgconn
        if self.pooled:
            pgconn.send_query_params(statement.sql, parameters, param_formats=statement.formats)
            return (yield from self._result())
        if statement.name not in self._prepared:
            yield from self._preparing(statement)
        pgconn.send_query_prepared(statement.name, parameters, statement.formats)
        return (yield from self._result())

    def _preparing(self, statement: Statement) -> Waits:
        self._pgconn.send_prepare(statement.name, statement.sql)
        yield from self._result()
        self._prepared.add(statement.name)

    def _executing_all(self, requests: list[Request]) -> Waits:
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
            yield self.fd, WRITE
        found = []
        for _ in requests:
            found.append((yield from self._next()))
            for _ in range(2):  # the end of this result, and of its transaction
                yield from self._next()
        pgconn.exit_pipeline_mode()
        for result in found:
            if result is None or result.status not in _SUCCESS:
                raise self._exception(result)
        return found

    def _next(self) -> Waits:
        pgconn = self._pgconn
        while pgconn.is_busy():
            yield self.fd, READ
            pgconn.consume_input()
        return pgconn.get_result()

    def executing_script(self, sql: str) -> Waits:
        """Execute statements without parameters; return the last one's result."""
        self._pgconn.send_query(sql.encode())
        return (yield from self._result())

    def _result(self) -> Waits:
        pgconn = self._pgconn
        while pgconn.flush():
            yield self.fd, WRITE
        last: Any = None
        while True:
            while pgconn.is_busy():
                yield self.fd, READ
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if last is None or last.status in _SUCCESS:
                last = result
        if last is None or last.status not in _SUCCESS:
            raise self._exception(last)
        return last

    def _exception(self, result: Any) -> Exception:
        if self._pgconn.status != pq.ConnStatus.OK:
            self.broken = True
        if result is None:
            message = self._pgconn.get_error_message()
            return BackendError(f"the connection to {self._where} was lost: {message}")
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if code in _POOLED_CODES:
            self.pooled = True
        elif code == "0A000":
            self._prepared.clear()
            self.broken = True
        if code.startswith("57P"):
            self.broken = True
        if not code:
            self.broken = True
            return BackendError(f"the connection to {self._where} was lost")
        return exception_for(code, message.decode(errors="replace"), self._where)

    def creating_tables(self) -> Waits:
        """Create the tables unless they exist. If that fails, its transaction is still open."""
        try:
            return (yield from self.executing_script(schema.MAKE_TABLES))
        except BaseException:
            self.broken = True
            raise

    def lost(self, error: Exception) -> BackendError:
        """Mark the connection broken and map a socket error."""
        self.broken = True
        return BackendError(f"the connection to {self._where} was lost: {error}")

    def late(self, budget: float) -> BackendError:
        self.broken = True
        return BackendError(f"{self._where} did not answer within {budget:.3g} s")

    # ---- blocking ------------------------------------------------------------------------------

    def execute(self, request: Request | list[Request], budget: float) -> Any:
        return self.run(self.executing(request), budget)

    def create_tables(self, budget: float) -> None:
        self.run(self.creating_tables(), budget)

    def run(self, waits: Waits, budget: float) -> Any:
        """Run an exchange to its end, blocking."""
        try:
            return _run(waits, clock.now() + budget, self._sleep)
        except TimeoutError:
            raise self.late(budget) from None
        except (BackendError, Retry, NoTables):  # in this order: a BackendError is an OSError
            raise
        except (psycopg.Error, OSError) as error:
            raise self.lost(error) from error
        except BaseException:
            # Ctrl-C, for example. The interrupted waiter leaves the queue next, on another
            # connection, and must not overtake its own claim: so wait briefly for its end.
            self.broken = True
            with contextlib.suppress(Exception):
                _run(waits, clock.now() + SETTLING, self._sleep)
            raise

    # ---- notifications -------------------------------------------------------------------------

    def notifications(self) -> list[str]:
        """Return the payloads received on the channels that this connection listens to."""
        self._pgconn.consume_input()
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append(notification.extra.decode(errors="replace"))
        return found

    # ---- closing -------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Return whether the server closed the idle connection: it sends the reason before it
        does."""
        poll = select.poll()
        poll.register(self.fd, READ)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.broken = True
        self._pgconn.finish()

    def after_fork_in_child(self) -> None:
        """Close this process's copy of the socket. psycopg does not call PQfinish in a child, so
        the parent's session goes on."""
        if not self.broken:
            self.broken = True
            try:
                os.close(self.fd)
            except OSError:
                pass


def connect(address: Address, budget: float, made: Any = None) -> Connection:
    """Connect; check that the server is writable, and whether a pooler is in between. ``made`` is a
    connection that a user's function has made already."""
    until = clock.now() + budget
    try:
        if address.user_connections is not None:
            made = made or address.user_connections.connect(budget)
            connection = Connection(made.pgconn, address.where, made)
        else:
            connection = Connection(_run(_connecting(address), until, Sleep()), address.where)
    except TimeoutError:
        raise BackendError(
            f"{address.where} did not answer in time while connecting ({budget:.3g} s)"
        ) from None
    least = 0.001 if address.user_connections is None else LEAST_CHECKING
    try:
        _check(connection, address, max(until - clock.now(), least))
    except BaseException:
        connection.close()
        raise
    return connection


def _connecting(address: Address) -> Waits:
    pgconn = pq.PGconn.connect_start(address.conninfo)
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise not_connected(pgconn.get_error_message(), address.where)
        match pgconn.connect_poll():
            case pq.PollingStatus.OK:
                pgconn.nonblocking = 1
                return pgconn
            case pq.PollingStatus.READING:
                yield pgconn.socket, READ
            case pq.PollingStatus.WRITING:
                yield pgconn.socket, WRITE
            case _:
                raise not_connected(pgconn.get_error_message(), address.where)


def _check(connection: Connection, address: Address, budget: float) -> None:
    if address.user_connections is not None:  # discard its transaction and settings
        connection.run(connection.executing_script(schema.TAKEN_OVER), budget)
    result = connection.run(connection.executing_script(schema.CHECK), budget)
    pid, read_only, standby = (result.get_value(0, column) for column in range(3))
    if standby == b"t" or read_only == b"on":
        kind = "a standby" if standby == b"t" else "read-only (default_transaction_read_only)"
        raise BackendError(
            f"{address.where} is {kind}, and taking a lock is a write: use the address of the "
            "primary, or a user and a database that may write",
            transient=False,
        )
    connection.pooled = int(pid) != connection._pgconn.backend_pid
    if not connection.pooled:
        connection.run(connection.executing_script(schema.SETTINGS), budget)


class Sleep:
    """Wait on a socket. The registration is kept, since most waits are for the same event."""

    __slots__ = ("_known", "_poll")

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known = (-1, 0)

    def until(self, wanted: tuple[int, int], seconds: float) -> bool:
        if wanted != self._known:
            if wanted[0] != self._known[0]:
                self._poll = select.poll()
            self._poll.register(*wanted)
            self._known = wanted
        return bool(self._poll.poll(seconds * 1000))


def _run(waits: Waits, until: float, sleep: Sleep) -> Any:
    try:
        wanted = next(waits)
        while True:
            rest = until - clock.now()
            if rest <= 0 or not sleep.until(wanted, rest):
                raise TimeoutError
            wanted = waits.send(None)
    except StopIteration as end:
        return end.value
