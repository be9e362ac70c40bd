"""One interface to three databases, so that a test is written once for all of them."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 30.0
READ_COMMITTED = "READ COMMITTED"
REPEATABLE_READ = "REPEATABLE READ"


class Database:
    """Connections without autocommit, and a table of its own with one row of ``id, value``."""

    kind = ""
    style = "pyformat"
    # Errors after which a writer must run its transaction again.
    retry_errors: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self.marks = f"marks_{uuid.uuid4().hex[:12]}"
        self.data = f"data_{uuid.uuid4().hex[:12]}"
        self._open: list[Any] = []

    def connect(self, **options: Any) -> Any:
        connection = self._connect(**options)
        self._open.append(connection)
        return connection

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a connection; commit at the end, or roll back after an exception."""
        connection = self.connect()
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def close(self) -> None:
        for connection in self._open:
            connection.close()

    def _connect(self, **options: Any) -> Any:
        raise NotImplementedError

    def begin(self, connection: Any, isolation: str) -> None:
        """Begin a transaction that has already read the data, so that its snapshot is fixed."""
        raise NotImplementedError

    def waits(self, connection: Any) -> Callable[[], bool]:
        """Return a predicate: does the connection wait for a lock of another one?"""
        raise NotImplementedError

    def shorten_lock_wait(self, connection: Any) -> None:
        """Let the connection wait only briefly for locks from now on."""
        raise NotImplementedError

    def placeholder(self, name: str) -> str:
        return f"%({name})s"

    def run(self, connection: Any, statement: str, **parameters: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, parameters)
        return cursor

    def make_data(self) -> None:
        connection = self.connect()
        table = f"CREATE TABLE {self.data} (id INTEGER PRIMARY KEY, value VARCHAR(99))"
        self.run(connection, table)
        self.run(connection, f"INSERT INTO {self.data} (id, value) VALUES (1, 'first')")
        connection.commit()

    def write(self, connection: Any, value: str) -> None:
        statement = f"UPDATE {self.data} SET value = {self.placeholder('value')} WHERE id = 1"
        self.run(connection, statement, value=value)

    def value(self) -> str:
        connection = self.connect()
        found = self.run(connection, f"SELECT value FROM {self.data} WHERE id = 1").fetchone()[0]
        connection.rollback()
        return str(found)


class SQLite(Database):
    kind = "sqlite"
    style = "named"
    retry_errors = (sqlite3.OperationalError,)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "app.db"
        self._connect().execute("PRAGMA journal_mode=wal").connection.close()

    def _connect(self, **options: Any) -> sqlite3.Connection:
        defaults = {"timeout": PATIENCE, "check_same_thread": False}
        return sqlite3.connect(self._path, **defaults | options)

    def begin(self, connection: Any, isolation: str) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def waits(self, connection: Any) -> Callable[[], bool]:
        return lambda: True  # SQLite does not show it: the other either waits or has not begun

    def shorten_lock_wait(self, connection: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 1")

    def placeholder(self, name: str) -> str:
        return f":{name}"


class MariaDB(Database):
    kind = "mariadb"

    def __init__(self, server: Any) -> None:
        import pymysql

        super().__init__()
        self._server = server
        self.retry_errors = (pymysql.OperationalError,)

    def _connect(self, **options: Any) -> Any:
        return self._server.connect(**options)

    def begin(self, connection: Any, isolation: str) -> None:
        connection.rollback()
        self.run(connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        # In SERIALIZABLE a SELECT locks, and no other transaction could write.
        if isolation != "SERIALIZABLE":
            self.run(connection, f"SELECT * FROM {self.data}").fetchall()

    def waits(self, connection: Any) -> Callable[[], bool]:
        query = (
            "SELECT count(*) FROM information_schema.innodb_trx "
            "WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = %s"
        )
        return lambda: self._server.call(query, connection.thread_id()) == ((1,),)

    def shorten_lock_wait(self, connection: Any) -> None:
        self.run(connection, "SET SESSION innodb_lock_wait_timeout = 1")


class PostgreSQL(Database):
    kind = "postgresql"

    def __init__(self, server: Any) -> None:
        import psycopg

        super().__init__()
        self._server = server
        self.retry_errors = (psycopg.OperationalError,)

    def _connect(self, **options: Any) -> Any:
        return self._server.connect(**options)

    def begin(self, connection: Any, isolation: str) -> None:
        connection.rollback()
        self.run(connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        self.run(connection, f"SELECT * FROM {self.data}").fetchall()

    def waits(self, connection: Any) -> Callable[[], bool]:
        query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        pid = connection.info.backend_pid
        return lambda: self._server.call(query, pid) == [(True,)]

    def shorten_lock_wait(self, connection: Any) -> None:
        self.run(connection, "SET lock_timeout = '100ms'")


class InThread:
    """A call that runs in a thread, and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except Exception as error:  # returned by outcome()
            self._outcome.append(error)

    @property
    def is_over(self) -> bool:
        return bool(self._outcome)

    def outcome(self) -> Any:
        self._thread.join(PATIENCE)
        assert self._outcome, "the thread is still running"
        return self._outcome[0]


def wait_until(predicate: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not predicate():
        assert time.monotonic() < until, f"still false after {PATIENCE} s"
        time.sleep(0.01)


def race(
    database: Database, isolation: str, first: int, second: int, write: Callable[[Any, int], None]
) -> Exception | None:
    """Run two transactions at once, and return the guard's refusal of the second, or None.

    Both have begun and read; the first has written but not committed when the second writes. The
    second runs again after each retry error of the database.
    """
    one, other = database.connect(), database.connect()
    begun, go = threading.Event(), threading.Event()

    def attempt() -> Exception | None:
        try:
            database.begin(other, isolation)
            begun.set()
            assert go.wait(PATIENCE)
            write(other, second)
            other.commit()
        except Exception as error:
            other.rollback()
            return error
        return None

    def second_writer() -> Exception | None:
        error = attempt()
        while isinstance(error, database.retry_errors):
            error = attempt()
        return error

    database.begin(one, isolation)
    writer = InThread(second_writer)
    # A transaction of SQLite begins with the lock, so the second one cannot begin yet.
    if database.kind != "sqlite":
        assert begun.wait(PATIENCE)
    write(one, first)
    go.set()
    waits = database.waits(other)
    wait_until(lambda: writer.is_over or waits())
    one.commit()
    refusal = writer.outcome()
    assert not isinstance(refusal, AssertionError), refusal
    return refusal
