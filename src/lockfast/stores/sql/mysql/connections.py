"""Connections to MariaDB and MySQL, blocking: PyMySQL connects, and carries one string at a time.

Its cursors are left out: they quote, and remember, what is not needed here. Nothing is retried.
Whoever catches an error looks at ``broken``: a link that is, is closed, because an answer may still
come on it, and because a transaction that did not come to its end is undone so.
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
from lockfast.stores.sql.mysql.dialect import spoken
from lockfast.stores.sql.mysql.errors import explained, refuse_unfit
from lockfast.stores.sql.mysql.prepared import (
    FORGOTTEN,
    PREPARE,
    REFUSED,
    Call,
    Result,
    Statement,
    done,
    in_digits,
    numbered,
    packed,
)
from lockfast.stores.sql.user_connections import LOOKING, Given

T = TypeVar("T")
SETTLING, SILENCE = 0.25, 0.1
ANSWER = 4096


class Address:
    """How to connect: words that PyMySQL and asyncmy both understand; or who makes connections for
    us."""

    def __init__(self, said: dict[str, Any], where: str, maker: Given | None = None) -> None:
        self.said = said
        self.where = where
        self.user_connections = maker


@functools.cache
def unchecked() -> ssl.SSLContext:
    """For who gave no certificates: nobody can listen, but it may be anybody who answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Session(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's, which speaks TLS to a server that can, and makes a context for it each time: 20 ms
    of CPU to read certificates that it does not check then. Here all have the same."""

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        return super()._create_ssl_ctx(sslp) if sslp else unchecked()


class Link:
    """One session; for one thread at a time."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self._prepared: dict[Statement, int] = {}
        self._prepares = True
        self._limited = 0
        self.broken = False
        self.used = clock.now()

    def ask(self, request: Any, budget: float) -> Any:
        """What one string says, statement by statement. A request may carry something along."""
        if isinstance(request, Call):
            return [self._careful(self._called, request, budget)]
        if isinstance(request, tuple):
            return request[0], self._ask(request[1], budget)
        if isinstance(request, list):  # each is one statement
            text = ";".join(map(spoken, request))
            return [[result] for result in self._ask(text, budget)]
        return self._ask(request, budget)

    def _ask(self, sql: str, budget: float) -> list[Result]:
        results: list[Result] = self._careful(self._said, sql, budget)
        return results

    def _said(self, sql: str, budget: float) -> list[Result]:
        connection = self._connection
        until = clock.now() + budget
        connection.query(sql)
        results = [result_of(connection._result)]
        while connection._result.has_next:
            connection._read_timeout = max(until - clock.now(), 0.001)
            connection.next_result()
            results.append(result_of(connection._result))
        return results

    def _called(self, call: Call, budget: float) -> Result:
        connection = self._connection
        call = in_digits(call, connection.server_version)
        statement = call.statement
        try:
            number = self._prepared.get(statement)
            if number is None:
                if not self._prepares:
                    return self._said(spoken(call), budget)[0]
                connection._execute_command(PREPARE, statement.sql)
                number, descriptions = numbered(connection._read_packet().get_all_data())
                for _ in range(descriptions + 1 if descriptions else 0):
                    connection._read_packet()
                self._prepared[statement] = number
            self._limit(budget)
            connection._sock.sendall(packed(number, call.values))
            return done(self._answer())
        except pymysql.MySQLError as error:
            code, _ = code_and_words(error)
            if code in FORGOTTEN:
                self._prepared.clear()
            if code not in REFUSED:
                raise
            self._prepares = False
            return self._said(spoken(call), budget)[0]

    def _limit(self, budget: float) -> None:
        """The kernel's own limit, rounded up, mostly the one that it has: Python's costs three
        system calls more for each statement. With TLS only Python's works."""
        connection, sock = self._connection, self._connection._sock
        if type(sock) is not socket.socket:
            sock.settimeout(budget)
            connection._current_timeout = budget
            return
        if connection._current_timeout is not None:
            sock.settimeout(None)
            connection._current_timeout = None
        hundredths = int(budget * 100) + 1
        if hundredths != self._limited:
            self._limited = hundredths
            limit = struct.pack("ll", hundredths // 100, hundredths % 100 * 10000)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _answer(self) -> bytes:
        """One packet: it comes alone, and in one piece nearly always. The driver makes a file, two
        reads and three objects of it, which takes as long as the server does."""
        receive = self._connection._sock.recv
        answer: bytes = receive(ANSWER)
        while len(answer) < 5 or len(answer) < 4 + int.from_bytes(answer[:3], "little"):
            more = receive(ANSWER)
            if not more:
                raise ConnectionError("the server closed it")
            answer += more
        if answer[4] == 0xFF:
            pymysql.err.raise_mysql_exception(answer[4:])
        return answer[4:]

    def _careful(self, exchange: Callable[[Any, float], T], said: Any, budget: float) -> T:
        """Its errors as ours."""
        connection = self._connection
        wire = connection._rfile  # PyMySQL lets go of it when it is interrupted
        connection._read_timeout = connection._write_timeout = budget
        try:
            return exchange(said, budget)
        except pymysql.MySQLError as error:
            raise self._refused(error, said, budget) from error
        except (TimeoutError, BlockingIOError):  # Python's limit, or the kernel's
            raise self._late(budget) from None
        except OSError as error:
            self.broken = True
            raise BackendError(f"the connection to {self._where} is lost: {error}") from error
        except BaseException:
            # Ctrl-C, say. Whoever was interrupted leaves next, on another connection, and must not
            # be faster than what it gives up: so its end is waited for, if it comes soon.
            self.broken = True
            self._settle(wire)
            raise

    def _settle(self, wire: Any) -> None:
        """Until the server has said all that it had to say, or long enough."""
        pause, until = SETTLING, clock.now() + SETTLING
        with contextlib.suppress(OSError, ValueError):
            waiter = select.poll()
            waiter.register(wire.fileno(), select.POLLIN)
            while (rest := until - clock.now()) > 0 and waiter.poll(min(rest, pause) * 1000):
                if not os.read(wire.fileno(), 65536):
                    return
                pause = SILENCE  # it has begun to speak

    def _refused(self, error: pymysql.MySQLError, request: Any, budget: float) -> Exception:
        code, said = code_and_words(error)
        if not isinstance(error, pymysql.err.ProgrammingError) or request[:5] == "BEGIN":
            self.broken = True  # a transaction may be open, or an answer on its way
        return self._late(budget) if "timed out" in said else explained(code, said, self._where)

    def _late(self, budget: float) -> BackendError:
        self.broken = True
        return BackendError(f"{self._where} did not answer within {budget:.3g} s")

    def furnish(self, budget: float) -> None:
        for table in schema.TABLES:
            self._ask(table, budget)

    def is_stale(self) -> bool:
        """Did the server close it while we did not look?"""
        sock = self._connection._sock
        try:
            sock.setblocking(False)
            # Of the kernel also where TLS is spoken: that one has no answer without taking it.
            socket.socket.recv(sock, 1, socket.MSG_PEEK)
            return True
        except BlockingIOError:
            return False
        except (OSError, AttributeError):
            return True
        finally:
            self._connection._current_timeout = -1
            if sock is not None:
                sock.setblocking(True)

    def close(self) -> None:
        """Without a word: it may be in the middle of an answer."""
        self.broken = True
        self._connection._force_close()

    def after_fork_in_child(self) -> None:
        """The parent's session is the parent's: only our copy of its socket is closed."""
        self.close()


def result_of(result: Any) -> Result:
    return Result(result.affected_rows or 0, result.insert_id or 0, result.rows or ())


def code_and_words(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = str(error.args[1]) if len(error.args) > 1 else str(error)
    return code, said


def connect(address: Address, budget: float) -> Link:
    """A session that was looked at: it can write."""
    until = clock.now() + budget
    words = address.said
    try:
        made = (
            None
            if address.user_connections is None
            else user_connections.blocking(address.user_connections, budget)
        )
        if isinstance(made, dict):
            words, made = made, None
        connection = made or Session(
            **words,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=budget,
            read_timeout=budget,
            write_timeout=budget,
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl_disabled="unix_socket" in words and "ssl" not in words,
        )
    except pymysql.MySQLError as error:
        code, said = code_and_words(error)
        failed = explained(code, said, address.where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{address.where} is out of reach: {said}")
        raise failed from error
    except BackendError:
        raise
    except RuntimeError as error:
        raise unspeakable(error, address.where) from None
    except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    link = Link(connection, address.where)
    least = 0.001 if address.user_connections is None else LOOKING
    try:
        prepare(link._ask(preparing(), max(until - clock.now(), least)), address.where)
    except BaseException:
        link.close()
        raise
    return link


def unspeakable(error: RuntimeError, where: str) -> Exception:
    """Is it a way to say the password for which a driver needs one library more?"""
    if "package is required" not in str(error):
        return error
    return BackendError(
        f"{where} cannot be told the password: {error} (install that library, or let the server "
        "speak TLS)",
        transient=False,
    )


def preparing() -> str:
    return ";".join((*schema.SETTINGS, schema.CHECK))


def prepare(results: Sequence[Result], where: str) -> None:
    refuse_unfit({str(name): str(value) for name, value in results[-1].rows}, where)
