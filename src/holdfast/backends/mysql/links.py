"""Connections to MariaDB and MySQL, blocking: PyMySQL connects, and carries one string at a time.

Its cursors are left out: they quote, and remember, what is not needed here. Nothing is retried.
Whoever catches an error looks at ``broken``: a link that is, is closed, because an answer may still
come on it, and because a transaction that did not come to its end is undone so.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT

from holdfast import clock
from holdfast.backends.mysql import given, schema
from holdfast.backends.mysql.conditions import NOT_RUNG, explained, refuse_unfit
from holdfast.backends.mysql.prepared import (
    EXECUTE,
    FORGOTTEN,
    PREPARE,
    REFUSED,
    Call,
    Result,
    Statement,
    done,
    numbered,
    packed,
)
from holdfast.backends.mysql.words import spoken
from holdfast.backends.rows.given import LOOKING, Given
from holdfast.errors import BackendError

T = TypeVar("T")
SETTLING, SILENCE = 0.25, 0.1


class Address:
    """How to connect: words that PyMySQL and asyncmy both understand; or who makes connections for
    us."""

    def __init__(self, said: dict[str, Any], where: str, maker: Given | None = None) -> None:
        self.said = said
        self.where = where
        self.given = maker


class Link:
    """One session; for one thread at a time."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self._prepared: dict[Statement, int] = {}
        self._prepares = True
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
        results: list[Result] = []
        try:
            connection.query(sql)
            results.append(result_of(connection._result))
            while connection._result.has_next:
                connection._read_timeout = max(until - clock.now(), 0.001)
                connection.next_result()
                results.append(result_of(connection._result))
        except pymysql.MySQLError as error:
            if code_and_words(error)[0] not in NOT_RUNG:
                raise
        return results

    def _called(self, call: Call, budget: float) -> Result:
        connection = self._connection
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
            connection._execute_command(EXECUTE, packed(number, call.values))
            return done(connection._read_packet().get_all_data())
        except pymysql.MySQLError as error:
            code, _ = code_and_words(error)
            if code in FORGOTTEN:
                self._prepared.clear()
            if code not in REFUSED:
                raise
            self._prepares = False
            return self._said(spoken(call), budget)[0]

    def _careful(self, exchange: Callable[[Any, float], T], said: Any, budget: float) -> T:
        """Its errors as ours."""
        connection = self._connection
        connection._read_timeout = connection._write_timeout = budget
        try:
            return exchange(said, budget)
        except pymysql.MySQLError as error:
            raise self._refused(error, said, budget) from error
        except OSError as error:
            self.broken = True
            raise BackendError(f"the connection to {self._where} is lost: {error}") from error
        except BaseException:
            # Ctrl-C, say. Whoever was interrupted leaves next, on another connection, and must not
            # be faster than what it gives up: so its end is waited for, if it comes soon.
            self.broken = True
            self._settle()
            raise

    def _settle(self) -> None:
        """Until the server has said all that it had to say, or long enough."""
        sock, until = self._connection._sock, clock.now() + SETTLING
        with contextlib.suppress(OSError, AttributeError):
            while (rest := until - clock.now()) > 0:
                sock.settimeout(min(rest, SILENCE))
                if not sock.recv(65536):
                    return

    def _refused(self, error: pymysql.MySQLError, request: Any, budget: float) -> Exception:
        code, said = code_and_words(error)
        if not isinstance(error, pymysql.err.ProgrammingError) or request[:5] == "BEGIN":
            self.broken = True  # a transaction may be open, or an answer on its way
        if "timed out" in said:
            return BackendError(f"{self._where} did not answer within {budget:.3g} s")
        return explained(code, said, self._where)

    def furnish(self, budget: float) -> None:
        for table in schema.TABLES:
            self._ask(table, budget)

    def is_stale(self) -> bool:
        """Did the server close it while we did not look?"""
        sock = self._connection._sock
        try:
            sock.setblocking(False)
            sock.recv(1, socket.MSG_PEEK)
            return True
        except (BlockingIOError, ValueError):
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
        made = None if address.given is None else given.blocking(address.given, budget)
        if isinstance(made, dict):
            words, made = made, None
        connection = made or pymysql.connect(
            **words,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=budget,
            read_timeout=budget,
            write_timeout=budget,
            client_flag=CLIENT.MULTI_STATEMENTS,
        )
    except pymysql.MySQLError as error:
        code, said = code_and_words(error)
        failed = explained(code, said, address.where)
        if code == 2003 or not isinstance(failed, BackendError):
            failed = BackendError(f"{address.where} is out of reach: {said}")
        raise failed from error
    except BackendError:
        raise
    except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
        raise BackendError(f"{address.where} is out of reach: {error}") from error
    link = Link(connection, address.where)
    least = 0.001 if address.given is None else LOOKING
    try:
        prepare(link._ask(preparing(), max(until - clock.now(), least)), address.where)
    except BaseException:
        link.close()
        raise
    return link


def preparing() -> str:
    return ";".join((*schema.SETTINGS, schema.CHECK))


def prepare(results: Sequence[Result], where: str) -> None:
    refuse_unfit({str(name): str(value) for name, value in results[-1].rows}, where)
