"""Sessions of MariaDB and MySQL: PyMySQL connects, then lockfast speaks the protocol on its socket.

The drivers' cursors and packets are not used: their quoting, buffering and objects take longer than
the server does, and each API would need a driver of its own.

**Private attributes of the drivers**, all used in this file:

- PyMySQL ``_sock``, the socket that it authenticated. One exchange then serves both APIs, in half
  the time that its cursor takes. There is no public access to a socket that TLS has wrapped;
  without the attribute connecting fails, and the error says so (`_socket_of`).
- PyMySQL ``_force_close``: closes without COM_QUIT, which an exchange in progress would take for
  its reply. Without it: `close`.
- PyMySQL ``_create_ssl_ctx``, overridden with one shared context where no certificate is checked:
  PyMySQL reads the machine's certificates for each connection, 20 ms of CPU. A version that does
  not call it connects as before.
- asyncmy ``_host``, ``_port``, ``_user``, ``_password``, ``_db``, ``_unix_socket``,
  ``_ssl_context``: the parameters of a user's connection. One that is missing is left out.
"""

from __future__ import annotations

import functools
import socket
import ssl
import struct
from collections.abc import Generator
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError
from lockfast.stores.sql.book import Cells, NoTables, Result
from lockfast.stores.sql.connections import READ, WRITE, Connection, Exchange
from lockfast.stores.sql.mysql import schema
from lockfast.stores.sql.mysql.dialect import READ_ONLY, as_text, exception_for, refuse_unfit
from lockfast.stores.sql.mysql.protocol import (
    FORGOTTEN,
    LARGEST,
    MORE_RESULTS,
    PREPARE,
    QUERY,
    REFUSED,
    SET_OPTION,
    Call,
    Malformed,
    ServerError,
    Statement,
    command_packets,
    decode_columns,
    decode_error,
    decode_ok,
    decode_prepared,
    decode_row,
    end_of_rows,
    execute_packet,
    in_hex,
    status_of,
)

RECEIVED = 65536
_MULTI_STATEMENTS_ON = b"\0\0"
# A user's connection: before the rollback, which would begin another transaction (CHAIN) or
# disconnect (RELEASE).
TAKEN_OVER = "SET SESSION completion_type = 0;ROLLBACK;SET NAMES utf8mb4"


class MySQLConnection(Connection):
    """One session, for one thread or task at a time."""

    lost_by = (OSError, Malformed)

    def __init__(self, driver: Any, where: str) -> None:
        self._driver = driver
        self._sock = _socket_of(driver)
        super().__init__(self._sock.fileno(), where)
        self._is_tls = isinstance(self._sock, ssl.SSLSocket)
        self._sock.settimeout(0 if self._is_tls else None)
        self._limited, self._waited = -1, -1.0  # the limit in 1/100 s, and what it was set for
        self._is_mariadb = "MariaDB" in driver.server_version
        self._received, self._at = b"", 0
        self._prepared: dict[Statement, int] = {}
        self._prepares = True

    # ---- exchanges -----------------------------------------------------------------------------

    def executing(self, request: Any) -> Exchange:
        """Execute a `Call`, a string of statements, or a list of requests of one statement each."""
        if isinstance(request, Call):
            return self._calling(request)
        if isinstance(request, list):
            return self._executing_all(request)
        return self._querying(request)

    def _executing_all(self, requests: list[Any]) -> Exchange:
        results = yield from self._querying(";".join(map(as_text, requests)))
        return [[result] for result in results]

    def _querying(self, sql: str) -> Exchange:
        results: list[Result] = []
        try:
            yield from self._sending(command_packets(QUERY, sql.encode()))
            more = True
            while more:
                result, more = yield from self._receiving()
                results.append(result)
        except ServerError as error:
            mapped = self._error(error)
            if not isinstance(mapped, NoTables) or sql.startswith("BEGIN"):
                self.broken = True  # a transaction may be open
            raise mapped from error
        return results

    def _calling(self, call: Call) -> Exchange:
        if not self._is_mariadb:
            call = in_hex(call)
        statement = call.statement
        try:
            number = self._prepared.get(statement)
            if number is None:
                if not self._prepares:
                    return (yield from self._querying(as_text(call)))
                number = yield from self._preparing(statement)
            yield from self._sending(execute_packet(number, call.values))
            yield READ
            packet = self._only_packet() or (yield from self._packet())
            affected, insert_id, _ = decode_ok(packet)
            return [Result(affected, insert_id)]
        except ServerError as error:
            if error.code in FORGOTTEN:
                self._prepared.clear()
            if error.code not in REFUSED:
                mapped = self._error(error)
                self.broken = self.broken or isinstance(mapped, BackendError)
                raise mapped from error
            self._prepares = False
            return (yield from self._querying(as_text(call)))

    def _error(self, error: ServerError) -> Exception:
        mapped = exception_for(error.code, error.message, self.where)
        if error.code in READ_ONLY:
            mapped = BackendError(str(mapped))
        return mapped

    def _preparing(self, statement: Statement) -> Exchange:
        yield from self._sending(command_packets(PREPARE, statement.sql))
        number, descriptions = decode_prepared((yield from self._packet()))
        for _ in range(descriptions):
            yield from self._packet()
        self._prepared[statement] = number
        return number

    def creating_tables(self) -> Exchange:
        for table in schema.TABLES:
            yield from self._querying(table)

    def _receiving(self) -> Generator[int, None, tuple[Result, bool]]:
        """Receive one result; return it, and whether another one follows."""
        packet = yield from self._packet()
        if packet[:1] == b"\0":
            affected, insert_id, at = decode_ok(packet)
            return Result(affected, insert_id), bool(status_of(packet, at) & MORE_RESULTS)
        columns = decode_columns(packet)
        for _ in range(columns):
            yield from self._packet()
        if end_of_rows((yield from self._packet())) is None:
            raise Malformed("more descriptions than columns")
        rows: list[Cells] = []
        while True:
            packet = yield from self._packet()
            end = end_of_rows(packet)
            if end is not None:
                return Result(0, 0, rows), bool(end & MORE_RESULTS)
            rows.append(decode_row(packet, columns))

    def _packet(self) -> Generator[int, None, bytes]:
        while True:
            received, at = self._received, self._at + 4
            if len(received) >= at:
                length = int.from_bytes(received[at - 4 : at - 1], "little")
                if length in (0, LARGEST):
                    raise Malformed("a packet without content, or too long")
                if len(received) >= at + length:
                    self._at = at + length
                    packet = received[at : self._at]
                    if packet[0] == 0xFF:
                        raise decode_error(packet)
                    return packet
            if not self._is_tls or not self._sock.pending():
                yield READ
            try:
                more = self._sock.recv(RECEIVED)
            except ssl.SSLWantWriteError:
                yield WRITE
                continue
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            if not more:
                raise ConnectionError("the server closed the connection")
            self._received, self._at = received[self._at :] + more, 0

    def _only_packet(self) -> bytes | None:
        """Receive a reply of one short packet, in the common case that it comes in one piece."""
        try:
            received: bytes = self._sock.recv(RECEIVED)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not received:
            raise ConnectionError("the server closed the connection")
        self._received = received
        if received[1:4] != b"\0\0\1" or received[0] != len(received) - 4 or received[4:5] != b"\0":
            return None
        self._at = len(received)
        return received[4:]

    def _sending(self, rest: bytes) -> Exchange:
        self._received, self._at = b"", 0
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except ssl.SSLWantReadError:
                yield READ
            except (BlockingIOError, ssl.SSLWantWriteError):
                yield WRITE

    def bind(self) -> None:
        self._sock.settimeout(0)
        super().bind()

    def _wait(self, wanted: int, seconds: float) -> bool:
        """Let the kernel limit the call that follows, instead of polling: one system call less per
        request, 5 % of the CPU time of a cycle. The limit is rounded up, so that it rarely changes.
        TLS has buffers of its own, and is polled."""
        if self._is_tls:
            return super()._wait(wanted, seconds)
        if seconds == self._waited:
            return True
        self._waited = seconds
        hundredths = int(seconds * 100) + 1
        if hundredths > self._limited or hundredths < self._limited - 1:
            self._limited = hundredths
            limit = struct.pack("ll", hundredths // 100, hundredths % 100 * 10000)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return True

    # ---- setting up, closing -------------------------------------------------------------------

    def set_up(self, taken_over: bool, until: float, least: float) -> None:
        """Set the session up as lockfast needs it, and check that the server is fit."""

        def run(exchange: Exchange) -> Any:
            return self.run(exchange, max(until - clock.now(), least))

        if taken_over:
            run(self._switching(_MULTI_STATEMENTS_ON))
            run(self._querying(TAKEN_OVER))
        *_, found = run(self._querying(";".join((*schema.SETTINGS, schema.CHECK))))
        refuse_unfit({name.decode(): value.decode() for name, value in found.rows}, self.where)

    def _switching(self, option: bytes) -> Exchange:
        yield from self._sending(command_packets(SET_OPTION, option))
        yield from self._packet()

    def _finish(self) -> None:
        getattr(self._driver, "_force_close", self._driver.close)()

    def after_fork_in_child(self) -> None:
        self.broken = True
        self._finish()


def _socket_of(driver: Any) -> Any:
    sock = getattr(driver, "_sock", None)
    if sock is None or driver.client_flag & CLIENT.DEPRECATE_EOF:
        raise ConfigurationError(
            f"PyMySQL {pymysql.__version__} connects in a way that lockfast does not know, or the "
            "connection is closed: use a version of PyMySQL that lockfast has been tested with"
        )
    return sock


# ---- connecting --------------------------------------------------------------------------------


@functools.cache
def _unverified_context() -> ssl.SSLContext:
    """TLS context for URLs without certificates: encrypted, but the server is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsConnection(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's connection with one shared TLS context. PyMySQL uses TLS wherever the server offers
    it."""

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        return super()._create_ssl_ctx(sslp) if sslp else _unverified_context()


def connected(parameters: dict[str, Any], where: str, budget: float) -> MySQLConnection:
    """Connect, in this thread."""
    try:
        driver = TlsConnection(
            **parameters,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=budget,
            read_timeout=budget,
            write_timeout=budget,
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl_disabled="unix_socket" in parameters and "ssl" not in parameters,
        )
    except pymysql.MySQLError as error:
        code, message = code_and_message(error)
        failed = exception_for(code, message, where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{where} is out of reach: {message}")
        raise failed from error
    except RuntimeError as error:
        if "package is required" not in str(error):
            raise
        raise BackendError(
            f"{where}: the password cannot be sent: {error} (install that library, or enable TLS "
            "on the server)",
            transient=False,
        ) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise BackendError(f"{where} is out of reach: {error}") from error
    return MySQLConnection(driver, where)


def code_and_message(error: Exception) -> tuple[int, str]:
    """Return what a driver's error, or one of ours, says."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    return code, message


# ---- connections made by a user's function or engine ---------------------------------------------
#
# Some cannot be used: those of asyncmy, and those that count matched rows instead of changed rows
# (SQLAlchemy's do), by which lockfast decides whether a write took effect. Such a connection
# provides the connection parameters and is closed. A new one is made each time, because a password
# may be valid for one connection only.


async def usable(made: Any) -> Any:
    """Return a connection of PyMySQL, or the parameters of asyncmy's, which is closed."""
    if isinstance(made, pymysql.Connection):
        return made
    parameters = _parameters(made, "_")
    await made.ensure_closed()
    return parameters


def taken_over(made: Any, where: str, budget: float) -> tuple[MySQLConnection, bool]:
    """Return a connection to use, and whether it is the one that the user's function made."""
    if isinstance(made, pymysql.Connection):
        if not made.client_flag & CLIENT.FOUND_ROWS:
            return MySQLConnection(made, where), True
        parameters = _parameters(made, "")
        made.close()
        made = parameters
    return connected(made, where, budget), False


def _parameters(made: Any, prefix: str) -> dict[str, Any]:
    """Return the parameters with which a connection was made."""

    def attribute(name: str) -> Any:
        value = getattr(made, f"{prefix}{name}", None)
        return value.decode() if isinstance(value, bytes) and name != "password" else value

    names = ("host", "port", "user", "password", "unix_socket")
    parameters = {name: value for name in names if (value := attribute(name))}
    parameters["database"] = attribute("db")
    # An encrypted connection stays so. PyMySQL has a context even if the server has no TLS.
    if prefix:
        context = getattr(made, "_ssl_context", None)
    else:
        context = made.ctx if isinstance(_socket_of(made), ssl.SSLSocket) else None
    if context is not None:
        parameters["ssl"] = context
    return parameters
