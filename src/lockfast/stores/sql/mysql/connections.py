"""Blocking connections to MariaDB and MySQL: PyMySQL connects, and sends one string at a time.

PyMySQL's cursors are not used: their quoting and buffering are not needed here. Nothing is retried.
After an error the caller checks ``broken``: a broken connection is closed, because a reply may
still arrive on it, and because closing rolls back a transaction that was not finished.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.mysql import schema, user_connections
from lockfast.stores.sql.mysql.dialect import as_text
from lockfast.stores.sql.mysql.errors import exception_for, refuse_unfit
from lockfast.stores.sql.mysql.prepared import (
    FORGOTTEN,
    PREPARE,
    REFUSED,
    Call,
    Result,
    Statement,
    decode_ok,
    decode_prepared,
    execute_packet,
    in_hex,
)
from lockfast.stores.sql.user_connections import LEAST_CHECKING, UserConnections

T = TypeVar("T")
SETTLING, SILENCE = 0.25, 0.1
PACKET_SIZE = 4096


class Address:
    """Connection parameters, as PyMySQL and asyncmy both accept them, or a maker of connections."""

    def __init__(
        self,
        parameters: dict[str, Any],
        where: str,
        connections: UserConnections | None = None,
    ) -> None:
        self.parameters = parameters
        self.where = where
        self.user_connections = connections


@functools.cache
def unverified_context() -> ssl.SSLContext:
    """TLS context for URLs without certificates: encrypted, but the server is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsConnection(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's connection with one shared TLS context. PyMySQL uses TLS wherever the server offers
    it and creates a context each time: 20 ms of CPU to read certificates that it does not check."""

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        return super()._create_ssl_ctx(sslp) if sslp else unverified_context()


class Connection:
    """One session, for one thread at a time."""

    def __init__(self, driver: Any, where: str) -> None:
        self._driver = driver
        self._where = where
        self._prepared: dict[Statement, int] = {}
        self._prepares = True
        self._limited = 0
        self.broken = False
        self.used = clock.now()

    def execute(self, request: Any, budget: float) -> Any:
        """Return the results of a request, one per statement. A tuple is (context, SQL): the
        context is returned with the results."""
        if isinstance(request, Call):
            return [self._guarded(self._call, request, budget)]
        if isinstance(request, tuple):
            return request[0], self._execute_text(request[1], budget)
        if isinstance(request, list):  # each is one statement
            text = ";".join(map(as_text, request))
            return [[result] for result in self._execute_text(text, budget)]
        return self._execute_text(request, budget)

    def _execute_text(self, sql: str, budget: float) -> list[Result]:
        results: list[Result] = self._guarded(self._query, sql, budget)
        return results

    def _query(self, sql: str, budget: float) -> list[Result]:
        driver = self._driver
        until = clock.now() + budget
        driver.query(sql)
        results = [result_of(driver._result)]
        while driver._result.has_next:
            driver._read_timeout = max(until - clock.now(), 0.001)
            driver.next_result()
            results.append(result_of(driver._result))
        return results

    def _call(self, call: Call, budget: float) -> Result:
        driver = self._driver
        call = in_hex(call, driver.server_version)
        statement = call.statement
        try:
            number = self._prepared.get(statement)
            if number is None:
                if not self._prepares:
                    return self._query(as_text(call), budget)[0]
                driver._execute_command(PREPARE, statement.sql)
                number, descriptions = decode_prepared(driver._read_packet().get_all_data())
                for _ in range(descriptions + 1 if descriptions else 0):
                    driver._read_packet()
                self._prepared[statement] = number
            self._limit(budget)
            driver._sock.sendall(execute_packet(number, call.values))
            return decode_ok(self._receive_packet())
        except pymysql.MySQLError as error:
            code, _ = code_and_message(error)
            if code in FORGOTTEN:
                self._prepared.clear()
            if code not in REFUSED:
                raise
            self._prepares = False
            return self._query(as_text(call), budget)[0]

    def _limit(self, budget: float) -> None:
        """Set the kernel's socket time-out, rounded up so that it rarely changes: Python's time-out
        costs three more system calls per statement. With TLS only Python's works."""
        driver, sock = self._driver, self._driver._sock
        if type(sock) is not socket.socket:
            sock.settimeout(budget)
            driver._current_timeout = budget
            return
        if driver._current_timeout is not None:
            sock.settimeout(None)
            driver._current_timeout = None
        hundredths = int(budget * 100) + 1
        if hundredths != self._limited:
            self._limited = hundredths
            limit = struct.pack("ll", hundredths // 100, hundredths % 100 * 10000)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _receive_packet(self) -> bytes:
        """Receive one packet, which comes alone and nearly always in one piece. The driver would
        use a file object, two reads and three objects for it, which takes as long as the server
        does."""
        receive = self._driver._sock.recv
        packet: bytes = receive(PACKET_SIZE)
        while len(packet) < 5 or len(packet) < 4 + int.from_bytes(packet[:3], "little"):
            more = receive(PACKET_SIZE)
            if not more:
                raise ConnectionError("the server closed the connection")
            packet += more
        if packet[4] == 0xFF:
            pymysql.err.raise_mysql_exception(packet[4:])
        return packet[4:]

    def _guarded(self, exchange: Callable[[Any, float], T], request: Any, budget: float) -> T:
        """Run an exchange and map its errors."""
        driver = self._driver
        wire = driver._rfile  # PyMySQL discards it when it is interrupted
        driver._read_timeout = driver._write_timeout = budget
        try:
            return exchange(request, budget)
        except pymysql.MySQLError as error:
            raise self._exception(error, request, budget) from error
        except (TimeoutError, BlockingIOError):  # Python's time-out, or the kernel's
            raise self._late(budget) from None
        except OSError as error:
            self.broken = True
            raise BackendError(f"the connection to {self._where} was lost: {error}") from error
        except BaseException:
            # Ctrl-C, for example. The interrupted waiter leaves the queue next, on another
            # connection, and must not overtake its own claim: so wait briefly for its end.
            self.broken = True
            self._settle(wire)
            raise

    def _settle(self, wire: Any) -> None:
        """Wait until the server has replied completely, or for `SETTLING` seconds."""
        pause, until = SETTLING, clock.now() + SETTLING
        with contextlib.suppress(OSError, ValueError):
            poller = select.poll()
            poller.register(wire.fileno(), select.POLLIN)
            while (rest := until - clock.now()) > 0 and poller.poll(min(rest, pause) * 1000):
                if not os.read(wire.fileno(), 65536):
                    return
                pause = SILENCE  # the reply has begun

    def _exception(self, error: pymysql.MySQLError, request: Any, budget: float) -> Exception:
        code, message = code_and_message(error)
        if not isinstance(error, pymysql.err.ProgrammingError) or request[:5] == "BEGIN":
            self.broken = True  # a transaction may be open, or a reply under way
        if "timed out" in message:
            return self._late(budget)
        return exception_for(code, message, self._where)

    def _late(self, budget: float) -> BackendError:
        self.broken = True
        return BackendError(f"{self._where} did not answer within {budget:.3g} s")

    def create_tables(self, budget: float) -> None:
        for table in schema.TABLES:
            self._execute_text(table, budget)

    def is_stale(self) -> bool:
        """Return whether the server closed the idle connection."""
        sock = self._driver._sock
        try:
            sock.setblocking(False)
            # The kernel's recv also with TLS: an SSLSocket cannot peek.
            socket.socket.recv(sock, 1, socket.MSG_PEEK)
            return True
        except BlockingIOError:
            return False
        except (OSError, AttributeError):
            return True
        finally:
            self._driver._current_timeout = -1
            if sock is not None:
                sock.setblocking(True)

    def close(self) -> None:
        """Close without COM_QUIT: the connection may be in the middle of a reply."""
        self.broken = True
        self._driver._force_close()

    def after_fork_in_child(self) -> None:
        """Close this process's copy of the socket; the parent's session goes on."""
        self.close()


def result_of(result: Any) -> Result:
    return Result(result.affected_rows or 0, result.insert_id or 0, result.rows or ())


def code_and_message(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    return code, message


def connect(address: Address, budget: float) -> Connection:
    """Connect, and check that the server is writable and fit for locks."""
    until = clock.now() + budget
    parameters = address.parameters
    try:
        made = (
            None
            if address.user_connections is None
            else user_connections.connect(address.user_connections, budget)
        )
        if isinstance(made, dict):
            parameters, made = made, None
        driver = made or TlsConnection(
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
        failed = exception_for(code, message, address.where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{address.where} is out of reach: {message}")
        raise failed from error
    except BackendError:
        raise
    except RuntimeError as error:
        raise missing_auth_library(error, address.where) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    connection = Connection(driver, address.where)
    least = 0.001 if address.user_connections is None else LEAST_CHECKING
    try:
        rest = max(until - clock.now(), least)
        check_setup(connection._execute_text(setup_statements(), rest), address.where)
    except BaseException:
        connection.close()
        raise
    return connection


def missing_auth_library(error: RuntimeError, where: str) -> Exception:
    """Map the driver's error for an authentication method that needs another library."""
    if "package is required" not in str(error):
        return error
    return BackendError(
        f"{where}: the password cannot be sent: {error} (install that library, or enable TLS on "
        "the server)",
        transient=False,
    )


def setup_statements() -> str:
    return ";".join((*schema.SETTINGS, schema.CHECK))


def check_setup(results: Sequence[Result], where: str) -> None:
    refuse_unfit({str(name): str(value) for name, value in results[-1].rows}, where)
