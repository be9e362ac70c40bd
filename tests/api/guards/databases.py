"""The three databases behind one face, so that a test says once what must hold on all of them."""

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
    """Connections without autocommit, and a table ``id, value, fence`` with one row, of its own."""

    kind = ""
    style = "pyformat"
    # What a writer may be told instead of being let in or refused: it does it all again.
    again: tuple[type[Exception], ...] = ()

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
        """A connection, and commit at the end, or rollback."""
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
        """Begin a transaction that has looked at the data already: what it sees is what was."""
        raise NotImplementedError

    def waits(self, connection: Any) -> Callable[[], bool]:
        """Asked whether that connection waits for another's lock just now."""
        raise NotImplementedError

    def impatient(self, connection: Any) -> None:
        """From now on it waits for locks for a moment only."""
        raise NotImplementedError

    def waiter(self, word: str) -> str:
        return f"%({word})s"

    def run(self, connection: Any, statement: str, **said: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, said)
        return cursor

    def make_data(self) -> None:
        connection = self.connect()
        table = f"CREATE TABLE {self.data} (id INTEGER PRIMARY KEY, value VARCHAR(99))"
        self.run(connection, table)
        self.run(connection, f"INSERT INTO {self.data} (id, value) VALUES (1, 'first')")
        connection.commit()

    def write(self, connection: Any, value: str) -> None:
        waiter = self.waiter("value")
        self.run(connection, f"UPDATE {self.data} SET value = {waiter} WHERE id = 1", value=value)

    def value(self) -> str:
        connection = self.connect()
        found = self.run(connection, f"SELECT value FROM {self.data} WHERE id = 1").fetchone()[0]
        connection.rollback()
        return str(found)


class SQLite(Database):
    kind = "sqlite"
    style = "named"
    again = (sqlite3.OperationalError,)

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
        return lambda: True  # it does not tell; it either does or has not begun to

    def impatient(self, connection: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 1")

    def waiter(self, word: str) -> str:
        return f":{word}"


class MariaDB(Database):
    kind = "mariadb"

    def __init__(self, server: Any) -> None:
        import pymysql

        super().__init__()
        self._server = server
        self.again = (pymysql.OperationalError,)

    def _connect(self, **options: Any) -> Any:
        return self._server.connect(**options)

    def begin(self, connection: Any, isolation: str) -> None:
        connection.rollback()
        self.run(connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        if isolation != "SERIALIZABLE":  # there, who looks locks, and nobody could write any more
            self.run(connection, f"SELECT * FROM {self.data}").fetchall()

    def waits(self, connection: Any) -> Callable[[], bool]:
        asked = (
            "SELECT count(*) FROM information_schema.innodb_trx "
            "WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = %s"
        )
        return lambda: self._server.call(asked, connection.thread_id()) == ((1,),)

    def impatient(self, connection: Any) -> None:
        self.run(connection, "SET SESSION innodb_lock_wait_timeout = 1")


class PostgreSQL(Database):
    kind = "postgresql"

    def __init__(self, server: Any) -> None:
        import psycopg

        super().__init__()
        self._server = server
        self.again = (psycopg.OperationalError,)

    def _connect(self, **options: Any) -> Any:
        return self._server.connect(**options)

    def begin(self, connection: Any, isolation: str) -> None:
        connection.rollback()
        self.run(connection, f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        self.run(connection, f"SELECT * FROM {self.data}").fetchall()

    def waits(self, connection: Any) -> Callable[[], bool]:
        asked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        pid = connection.info.backend_pid
        return lambda: self._server.call(asked, pid) == [(True,)]

    def impatient(self, connection: Any) -> None:
        self.run(connection, "SET lock_timeout = '100ms'")


class Beside:
    """Something that runs in a thread, and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except Exception as error:  # told to who asks for the outcome
            self._outcome.append(error)

    @property
    def is_over(self) -> bool:
        return bool(self._outcome)

    def outcome(self) -> Any:
        self._thread.join(PATIENCE)
        assert self._outcome, "it is still at it"
        return self._outcome[0]


def wait_until(so: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.01)


def race(
    database: Database, isolation: str, first: int, second: int, write: Callable[[Any, int], None]
) -> Exception | None:
    """Two transactions at once. Both have begun and looked; the first has written and not yet
    committed when the second writes. If the database tells that one to, it does it all again. What
    it was told in the end: None, or the guard's refusal."""
    one, other = database.connect(), database.connect()
    looked, go = threading.Event(), threading.Event()

    def attempt() -> Exception | None:
        try:
            database.begin(other, isolation)
            looked.set()
            assert go.wait(PATIENCE)
            write(other, second)
            other.commit()
        except Exception as error:
            other.rollback()
            return error
        return None

    def second_writer() -> Exception | None:
        told = attempt()
        while isinstance(told, database.again):
            told = attempt()
        return told

    database.begin(one, isolation)
    beside = Beside(second_writer)
    if database.kind != "sqlite":  # there it cannot even begin: a transaction begins with the lock
        assert looked.wait(PATIENCE)
    write(one, first)
    go.set()
    waits = database.waits(other)
    wait_until(lambda: beside.is_over or waits())
    one.commit()
    told = beside.outcome()
    assert not isinstance(told, AssertionError), told
    return told
