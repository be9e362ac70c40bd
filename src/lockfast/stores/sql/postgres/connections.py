"""Connections to PostgreSQL, spoken to through libpq as psycopg wraps it.

psycopg's cursors cost three times what the server does; a step here is one prepared statement, so
libpq is all that is needed, and every call can have a budget to the millisecond. What has to be
waited for is said once, as a generator, for both colours.

Nothing is retried here. Whoever catches an error looks at ``broken``: a link that is, is closed,
because an answer may still come on it.
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
from lockfast.stores.sql.errors import Again, NoTables
from lockfast.stores.sql.postgres import schema
from lockfast.stores.sql.postgres.dialect import Request, Statement
from lockfast.stores.sql.postgres.errors import explained, not_connected
from lockfast.stores.sql.user_connections import LOOKING, Given

READ, WRITE = select.POLLIN, select.POLLOUT
# What to wait for, and on which socket.
Waits = Generator[tuple[int, int], None, Any]
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
SETTLING = 0.25
_POOLED_CODES = ("26000", "42P05")


class Address:
    """How to connect: libpq's own words, checked before; or who makes connections for us."""

    def __init__(self, conninfo: bytes, where: str, given: Given | None = None) -> None:
        self.conninfo = conninfo
        self.where = where
        self.given = given


class Link:
    """One session; for one thread or task at a time. ``pooled``: a pooler stands between, which
    may give each transaction to another session: nothing may be left in it."""

    def __init__(self, pgconn: Any, where: str, owner: object = None) -> None:
        self._pgconn = pgconn
        self._owner = owner  # psycopg's connection, which would complain if nobody had it
        self._where = where
        self._prepared: set[bytes] = set()
        self.pooled = False
        self.broken = False
        self.used = clock.now()
        self.fd: int = pgconn.socket
        self._sleep = Sleep()

    # ---- asking, in either colour --------------------------------------------------------------

    def asking(self, request: Request | list[Request]) -> Waits:
        """One statement, and its result; or a list of them."""
        if isinstance(request, list):
            return (yield from self._asking_all(request))
        statement, said = request
        pgconn = self._pgconn
        if self.pooled:
            pgconn.send_query_params(statement.sql, said, param_formats=statement.formats)
            return (yield from self._answered())
        if statement.name not in self._prepared:
            yield from self._preparing(statement)
        pgconn.send_query_prepared(statement.name, said, statement.formats)
        return (yield from self._answered())

    def _preparing(self, statement: Statement) -> Waits:
        self._pgconn.send_prepare(statement.name, statement.sql)
        yield from self._answered()
        self._prepared.add(statement.name)

    def _asking_all(self, requests: list[Request]) -> Waits:
        """Many at once, each a transaction of its own: nothing is locked from one to the next."""
        if self.pooled:
            results = []
            for request in requests:
                results.append((yield from self.asking(request)))
            return results
        for statement in {request.statement for request in requests}:
            if statement.name not in self._prepared:
                yield from self._preparing(statement)
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        for statement, said in requests:
            pgconn.send_query_prepared(statement.name, said, statement.formats)
            pgconn.pipeline_sync()
        while pgconn.flush():
            yield self.fd, WRITE
        found = []
        for _ in requests:
            found.append((yield from self._next()))
            for _ in range(2):  # the end of this one, and of its transaction
                yield from self._next()
        pgconn.exit_pipeline_mode()
        for result in found:
            if result is None or result.status not in _FINE:
                raise self._refused(result)
        return found

    def _next(self) -> Waits:
        pgconn = self._pgconn
        while pgconn.is_busy():
            yield self.fd, READ
            pgconn.consume_input()
        return pgconn.get_result()

    def saying(self, sql: str) -> Waits:
        """Statements without parameters; the last one's result."""
        self._pgconn.send_query(sql.encode())
        return (yield from self._answered())

    def _answered(self) -> Waits:
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
            if last is None or last.status in _FINE:
                last = result
        if last is None or last.status not in _FINE:
            raise self._refused(last)
        return last

    def _refused(self, result: Any) -> Exception:
        if self._pgconn.status != pq.ConnStatus.OK:
            self.broken = True
        if result is None:
            said = self._pgconn.get_error_message()
            return BackendError(f"the connection to {self._where} is lost: {said}")
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if code in _POOLED_CODES:
            self.pooled = True
        elif code == "0A000":
            self._prepared.clear()
            self.broken = True
        if code.startswith("57P"):
            self.broken = True
        if not code:
            self.broken = True
            return BackendError(f"the connection to {self._where} is lost")
        return explained(code, said.decode(errors="replace"), self._where)

    def furnishing(self) -> Waits:
        """Make the tables, unless somebody did. If it fails, its transaction is still open."""
        try:
            return (yield from self.saying(schema.MAKE_TABLES))
        except BaseException:
            self.broken = True
            raise

    def lost(self, error: Exception) -> BackendError:
        """What a failing socket means."""
        self.broken = True
        return BackendError(f"the connection to {self._where} is lost: {error}")

    def late(self, budget: float) -> BackendError:
        self.broken = True
        return BackendError(f"{self._where} did not answer within {budget:.3g} s")

    # ---- blocking ------------------------------------------------------------------------------

    def ask(self, request: Request | list[Request], budget: float) -> Any:
        return self.run(self.asking(request), budget)

    def furnish(self, budget: float) -> None:
        self.run(self.furnishing(), budget)

    def run(self, waits: Waits, budget: float) -> Any:
        """To its end, here and now."""
        try:
            return _run(waits, clock.now() + budget, self._sleep)
        except TimeoutError:
            raise self.late(budget) from None
        except (BackendError, Again, NoTables):  # in this order: a BackendError is an OSError
            raise
        except (psycopg.Error, OSError) as error:
            raise self.lost(error) from error
        except BaseException:
            # Ctrl-C, say. Whoever was interrupted leaves next, on another connection, and must not
            # be faster than what it gives up: so its end is waited for, if it comes soon.
            self.broken = True
            with contextlib.suppress(Exception):
                _run(waits, clock.now() + SETTLING, self._sleep)
            raise

    # ---- bells ---------------------------------------------------------------------------------

    def notices(self) -> list[str]:
        """What was sent to the channels that we listen to."""
        self._pgconn.consume_input()
        found = []
        while (notice := self._pgconn.notifies()) is not None:
            found.append(notice.extra.decode(errors="replace"))
        return found

    # ---- the end -------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Did the server close it while we did not look? It says why before it does."""
        poll = select.poll()
        poll.register(self.fd, READ)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.broken = True
        self._pgconn.finish()

    def after_fork_in_child(self) -> None:
        """The parent's session is the parent's: only our copy of its socket is closed. libpq's own
        end is not called in a child (psycopg sees to that), so the parent's session goes on."""
        if not self.broken:
            self.broken = True
            try:
                os.close(self.fd)
            except OSError:
                pass


def connect(address: Address, budget: float, made: Any = None) -> Link:
    """A session that was looked at: it can write, and it is ours, or known to be pooled. ``made``:
    what a user's function made already."""
    until = clock.now() + budget
    try:
        if address.given is not None:
            made = made or address.given.blocking(budget)
            link = Link(made.pgconn, address.where, made)
        else:
            link = Link(_run(_connecting(address), until, Sleep()), address.where)
    except TimeoutError:
        raise BackendError(
            f"{address.where} did not answer in time while connecting ({budget:.3g} s)"
        ) from None
    least = 0.001 if address.given is None else LOOKING
    try:
        _check(link, address, max(until - clock.now(), least))
    except BaseException:
        link.close()
        raise
    return link


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


def _check(link: Link, address: Address, budget: float) -> None:
    if address.given is not None:  # whatever was begun, and set, there
        link.run(link.saying(schema.TAKEN_OVER), budget)
    result = link.run(link.saying(schema.CHECK), budget)
    pid, read_only, standby = (result.get_value(0, column) for column in range(3))
    if standby == b"t" or read_only == b"on":
        kind = "a standby" if standby == b"t" else "read-only (default_transaction_read_only)"
        raise BackendError(
            f"{address.where} is {kind}, and a lock must be written down: give the address of "
            "the primary, or a user and a database that may write",
            transient=False,
        )
    link.pooled = int(pid) != link._pgconn.backend_pid
    if not link.pooled:
        link.run(link.saying(schema.SETTINGS), budget)


class Sleep:
    """Waits for a socket; remembers what the kernel was told, which is mostly the same again."""

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
