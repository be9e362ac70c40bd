"""The SQL stores give the same answers and wake-ups as the memory store.

The histories, the law and the invariants are those of `test_law_in_every_store`. The statements are
the shipped ones, on real servers, on a clock that only the history moves: PostgreSQL finds the
test's `clock_timestamp` before its own, and MariaDB's sessions get their time by SET timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from core.test_law_in_every_store import StoreComparison
from lockfast.model import Capabilities
from lockfast.stores.sql.book import NoTables
from lockfast.stores.sql.mysql.dialect import MySQLDialect
from lockfast.stores.sql.mysql.endpoint import open_mysql
from lockfast.stores.sql.postgres.dialect import PostgresDialect
from lockfast.stores.sql.postgres.endpoint import open_postgres
from lockfast.stores.sql.store import RowsStore
from lockfast.stores.wakeups import Wakeups

BUDGET = 30.0
TABLES = ("lockfast_names", "lockfast_rows")
CLOCK = """
DROP SCHEMA IF EXISTS test_clock CASCADE; CREATE SCHEMA test_clock;
CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
AS $$ SELECT to_timestamp(0) + current_setting('test_clock.now')::bigint
    * interval '1 microsecond' $$;
CREATE FUNCTION test_clock.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
AS $$ SELECT test_clock.clock_timestamp() $$;
"""


class Session:
    """One session, on the test's clock."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute_text(self, sql: str) -> None:
        raise NotImplementedError

    def set_clock(self, micros: int) -> str:
        raise NotImplementedError

    def execute(self, request: Any, micros: int) -> Any:
        self.execute_text(self.set_clock(micros))
        connection = self._connection
        try:
            return connection.run(connection.executing(request), BUDGET)
        except NoTables:
            connection.run(connection.creating_tables(), BUDGET)
            return connection.run(connection.executing(request), BUDGET)

    def close(self) -> None:
        self._connection.close()


class PostgresSession(Session):
    dialect = PostgresDialect

    def __init__(self, server: Any) -> None:
        server.call(CLOCK)
        url = server.url + "?options=-csearch_path%3Dtest_clock,pg_catalog"
        super().__init__(open_postgres(url).connect(BUDGET))

    def execute_text(self, sql: str) -> None:
        self._connection.run(self._connection.executing_script(sql), BUDGET)

    def set_clock(self, micros: int) -> str:
        return f"SET test_clock.now = {micros}"


class MariaDBSession(Session):
    """Its time is set before each request."""

    dialect = MySQLDialect

    def __init__(self, server: Any) -> None:
        super().__init__(open_mysql(server.url).connect(BUDGET))

    def execute_text(self, sql: str) -> None:
        self._connection.run(self._connection.executing(sql), BUDGET)

    def set_clock(self, micros: int) -> str:
        return f"SET timestamp = {micros // 10**6}.{micros % 10**6:06}"


class DirectListener:
    """A listener to which the writing store delivers wake-ups directly."""

    def __init__(self, wake_address: str) -> None:
        self.wake_address = wake_address
        self.wakeups = Wakeups()

    def listen(self, timeout: float | None) -> None:
        """Return: there is nothing to wait for."""

    def interrupt(self) -> None: ...

    def watch(self, name: str, claim_id: str, wake: Any, since: float) -> bool:
        self.wakeups.watch(claim_id, wake)
        return False

    def unwatch(self, claim_id: str) -> None:
        self.wakeups.unwatch(claim_id)

    def close(self) -> None: ...


class SessionChannel:
    suspends = False

    def __init__(self, session: Any, tick: Callable[[], int]) -> None:
        self._session = session
        self._tick = tick

    def send(self, request: Any, budget: float) -> Any:
        return self._session.execute(request, self._tick())

    def now(self) -> float:
        return 0.0

    def pause(self, seconds: float) -> None:
        raise AssertionError("only this test writes to the database")

    def close(self) -> None: ...


def delivering(dialect: type, listeners: dict[str, DirectListener]) -> Any:
    """Return the dialect, extended to deliver wake-ups of other clients here once they are
    written."""

    class Delivering(dialect):  # type: ignore[misc]
        def write(self, name_hash: bytes, name: str, change: Any, wake_address: str) -> Any:
            self.foreign = [
                (row, grant) for row, grant in change.wakeups if row.wake_address != wake_address
            ]
            return super().write(name_hash, name, change, wake_address)

        def decode_write(self, reply: Any) -> bool:
            done: bool = super().decode_write(reply)
            for row, grant in self.foreign if done else []:
                listeners[row.wake_address].wakeups.deliver(row.id, grant)
            return done

    return Delivering()


class SqlComparison(StoreComparison):
    """Compares a SQL store, instead of Redis, with the memory store."""

    session: Any

    def redis_clients(self) -> list[Any]:
        for table in TABLES:
            try:
                self.session.execute_text(f"DELETE FROM {table}")
            except NoTables:
                pass  # no request created them yet
        listeners = {
            wake_address: DirectListener(wake_address) for wake_address in ("left", "right")
        }

        def tick() -> int:
            self.ticks += 20
            return round(self.now * 1e6) + self.ticks

        dialect = delivering(self.session.dialect, listeners)
        capable = Capabilities("sql", "network")
        channel = SessionChannel(self.session, tick)
        made = [
            RowsStore(channel, listener, dialect, "SQL", capable, b"")
            for listener in listeners.values()
        ]
        made[0]._set_contended = lambda name, contended: None  # type: ignore[method-assign]
        return made  # one that always tries single statements, one that remembers contended names


class PostgresComparison(SqlComparison):
    @property
    def session(self) -> Any:
        return _sessions["postgres"]


class MariaDBComparison(SqlComparison):
    @property
    def session(self) -> Any:
        return _sessions["mariadb"]


_sessions: dict[str, Any] = {}


@pytest.fixture
def postgres_session(postgres_server):
    _sessions["postgres"] = PostgresSession(postgres_server)
    yield
    _sessions.pop("postgres").close()
    postgres_server.call("DROP SCHEMA test_clock CASCADE")


@pytest.fixture
def mariadb_session(mariadb_server):
    _sessions["mariadb"] = MariaDBSession(mariadb_server)
    yield
    _sessions.pop("mariadb").close()


HISTORIES = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

TestPostgres = PostgresComparison.TestCase
TestPostgres.pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("postgres_session")]
TestPostgres.settings = HISTORIES
TestMariaDB = MariaDBComparison.TestCase
TestMariaDB.pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("mariadb_session")]
TestMariaDB.settings = HISTORIES
