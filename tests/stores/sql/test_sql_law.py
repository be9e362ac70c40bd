"""The SQL stores give the same answers and ring the same bells as the memory store.

The histories, the law and the promises are those of `test_law_in_every_store`; the statements are the ones
that ship, on the real servers, on a clock that only the history moves: PostgreSQL finds a
`clock_timestamp` of ours before its own, and MariaDB's sessions are told what time it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from test_law_in_every_store import Twins

from lockfast.model import Capabilities
from lockfast.stores.sql.backend import RowsBackend
from lockfast.stores.sql.errors import NoTables
from lockfast.stores.sql.mysql.connections import Address as MySQLAddress
from lockfast.stores.sql.mysql.connections import connect as connect_mysql
from lockfast.stores.sql.mysql.dialect import MySQLSpeech
from lockfast.stores.sql.postgres.connections import Address as PostgresAddress
from lockfast.stores.sql.postgres.connections import connect as connect_postgres
from lockfast.stores.sql.postgres.dialect import PostgresSpeech
from lockfast.stores.wakeups import Wakeups

BUDGET = 30.0
TABLES = ("lockfast_names", "lockfast_rows")
CLOCK = """
DROP SCHEMA IF EXISTS twins CASCADE; CREATE SCHEMA twins;
CREATE FUNCTION twins.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
AS $$ SELECT to_timestamp(0) + current_setting('twins.now')::bigint * interval '1 microsecond' $$;
CREATE FUNCTION twins.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
AS $$ SELECT twins.clock_timestamp() $$;
"""


class PostgresDesk:
    """One session of PostgreSQL, on a clock of ours."""

    speech = PostgresSpeech

    def __init__(self, server: Any) -> None:
        server.call(CLOCK)
        info = server.url + "?options=-csearch_path%3Dtwins,pg_catalog"
        self._link = connect_postgres(PostgresAddress(info.encode(), "PostgreSQL"), BUDGET)

    def say(self, sql: str) -> None:
        self._link.run(self._link.saying(sql), BUDGET)

    def ask(self, request: Any, micros: int) -> Any:
        self.say(f"SET twins.now = {micros}")
        try:
            return self._link.ask(request, BUDGET)
        except NoTables:
            self._link.furnish(BUDGET)
            return self._link.ask(request, BUDGET)

    def close(self) -> None:
        self._link.close()


class MariaDBDesk:
    """One session of MariaDB, which is told the time before each request."""

    speech = MySQLSpeech

    def __init__(self, server: Any) -> None:
        said = {"host": "127.0.0.1", "port": server.port, "user": "root"}
        address = MySQLAddress({**said, "database": server.database}, "MariaDB")
        self._link = connect_mysql(address, BUDGET)

    def say(self, sql: str) -> None:
        self._link.ask(sql, BUDGET)

    def ask(self, request: Any, micros: int) -> Any:
        self.say(f"SET timestamp = {micros // 10**6}.{micros % 10**6:06}")
        try:
            return self._link.ask(request, BUDGET)
        except NoTables:
            self._link.furnish(BUDGET)
            return self._link.ask(request, BUDGET)

    def close(self) -> None:
        self._link.close()


class DeskEar:
    """Bells come at once, from whoever wrote them."""

    def __init__(self, wake_address: str) -> None:
        self.wake_address = wake_address
        self.wakeups = Wakeups()

    async def listen(self, timeout: float | None) -> None:
        """Nothing to wait for."""

    def interrupt(self) -> None: ...

    def watch(self, name: str, claim_id: str, wake: Any, since: float) -> bool:
        self.wakeups.watch(claim_id, wake)
        return False

    def unwatch(self, claim_id: str) -> None:
        self.wakeups.unwatch(claim_id)

    def close(self) -> None: ...


class DeskTransport:
    suspends = False

    def __init__(self, desk: Any, tick: Callable[[], int]) -> None:
        self._desk = desk
        self._tick = tick

    def send(self, request: Any, budget: float) -> Any:
        return self._desk.ask(request, self._tick())

    def now(self) -> float:
        return 0.0

    async def pause(self, attempt: int) -> None:
        raise AssertionError("nobody else writes here")

    def close(self) -> None: ...


def ringing(speech: type, ears: dict[str, DeskEar]) -> Any:
    """The dialect's own words; what it would ring elsewhere rings here when it is written."""

    class Ringing(speech):  # type: ignore[misc]
        def write(self, mark: bytes, name: str, change: Any, wake_address: str) -> Any:
            self.foreign = [
                (row, grant) for row, grant in change.wakeups if row.wake_address != wake_address
            ]
            return super().write(mark, name, change, wake_address)

        def written(self, reply: Any) -> bool:
            done: bool = super().written(reply)
            for row, grant in self.foreign if done else []:
                ears[row.wake_address].wakeups.wake(row.id, grant)
            return done

    return Ringing()


class SqlTwins(Twins):
    """The place of Redis is taken by a SQL store."""

    desk: Any

    def redis_clients(self) -> list[Any]:
        for table in TABLES:
            try:
                self.desk.say(f"DELETE FROM {table}")
            except NoTables:
                pass  # nothing was ever asked
        ears = {wake_address: DeskEar(wake_address) for wake_address in ("left", "right")}

        def tick() -> int:
            self.ticks += 20
            return round(self.now * 1e6) + self.ticks

        speech = ringing(self.desk.speech, ears)
        capable = Capabilities("sql", "network")
        transport = DeskTransport(self.desk, tick)
        made = [RowsBackend(transport, ear, speech, "SQL", capable, b"") for ear in ears.values()]
        made[0]._crowds = lambda name, crowded: None  # type: ignore[method-assign]
        return made  # one that always tries the short way, and one that knows of crowds


class PostgresTwins(SqlTwins):
    @property
    def desk(self) -> Any:
        return _desks["postgres"]


class MariaDBTwins(SqlTwins):
    @property
    def desk(self) -> Any:
        return _desks["mariadb"]


_desks: dict[str, Any] = {}


@pytest.fixture
def postgres_desk(postgres_server):
    _desks["postgres"] = PostgresDesk(postgres_server)
    yield
    _desks.pop("postgres").close()
    postgres_server.call("DROP SCHEMA twins CASCADE")


@pytest.fixture
def mariadb_desk(mariadb_server):
    _desks["mariadb"] = MariaDBDesk(mariadb_server)
    yield
    _desks.pop("mariadb").close()


HISTORIES = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

TestPostgres = PostgresTwins.TestCase
TestPostgres.pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("postgres_desk")]
TestPostgres.settings = HISTORIES
TestMariaDB = MariaDBTwins.TestCase
TestMariaDB.pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("mariadb_desk")]
TestMariaDB.settings = HISTORIES
