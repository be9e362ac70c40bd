"""Direct access of tests to a SQL server, bypassing lockfast, in the dialect of each."""

from __future__ import annotations

from typing import Any

from lockfast.runtime.threads import ThreadSignal
from lockfast.stores import open_endpoint

KINDS = ("postgres", "mariadb")
TABLES = ("lockfast_names", "lockfast_rows", "lockfast_transactions")
NOW = {"postgres": "clock_timestamp()", "mariadb": "UTC_TIMESTAMP(6)"}


class Database:
    """One server, used through the test's own connections."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind = kind
        self.server = server

    @property
    def url(self) -> str:
        return str(self.server.url)

    @property
    def now(self) -> str:
        return NOW[self.kind]

    def call(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Execute one statement in autocommit and return its rows."""
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    def ago(self, seconds: int) -> str:
        """Return SQL for the server's time so many seconds ago."""
        unit = f"'{seconds} seconds'" if self.kind == "postgres" else f"{seconds} SECOND"
        return f"{self.now} - INTERVAL {unit}"

    def drop_tables(self) -> None:
        """Drop all tables of lockfast, also those that other tests left on the same server."""
        here = "current_schema()" if self.kind == "postgres" else "DATABASE()"
        found = self.call(
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = {here} AND table_name LIKE 'lockfast%'"
        )
        for (table,) in found:
            self.call(f"DROP TABLE {table}")

    def sessions(self) -> list[int]:
        """Return the ids of lockfast's sessions; the test's own are closed by now."""
        if self.kind == "postgres":
            found = self.call(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockfast'"
            )
        else:
            found = self.call(
                "SELECT id FROM information_schema.processlist WHERE user = 'root' "
                "AND db = 'lockfast' AND id <> CONNECTION_ID()"
            )
        return [int(number) for (number,) in found]

    def kill(self, session: int) -> None:
        command = "SELECT pg_terminate_backend(%s)" if self.kind == "postgres" else "KILL %s"
        try:
            self.call(command, session)
        except Exception as error:
            if "Unknown thread" not in str(error):  # it had ended already
                raise

    def store(self) -> Any:
        return open_endpoint(self.url).blocking(ThreadSignal)
