"""The tables: `lockfast schema` prints what first use creates, and a user that may not create any
needs no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sql_servers import TABLES, Database

import lockfast
from lab.servers.programs import program
from lockfast.errors import BackendError

PRINTED = "printed"  # a separate database for the printed schema
SHAPE = {
    "postgres": (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, ordinal_position "
        "FROM information_schema.columns WHERE table_name LIKE 'lockfast%%' ORDER BY 1, 6",
        "SELECT tablename, indexdef FROM pg_indexes WHERE tablename LIKE 'lockfast%%' "
        "ORDER BY 1, 2",
        "SELECT relname, reloptions::text, relpersistence::text FROM pg_class "
        "WHERE relname LIKE 'lockfast%%' ORDER BY 1",
    ),
    "mariadb": (
        "SELECT table_name, column_name, column_type, collation_name, is_nullable, column_default, "
        "ordinal_position FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND table_name LIKE 'lockfast%%' ORDER BY 1, 7",
        "SELECT table_name, index_name, seq_in_index, column_name, non_unique "
        "FROM information_schema.statistics WHERE table_schema = DATABASE() "
        "AND table_name LIKE 'lockfast%%' ORDER BY 1, 2, 3",
        "SELECT table_name, engine FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name LIKE 'lockfast%%' ORDER BY 1",
    ),
}


@pytest.fixture
def printed(database: Database) -> Iterator[Database]:
    """An empty second database, and a user `lesser` that may create nothing in it."""
    database.call(f"DROP DATABASE IF EXISTS {PRINTED}")
    database.call(f"CREATE DATABASE {PRINTED}")
    who = "lesser" if database.kind == "postgres" else "lesser@127.0.0.1"
    database.call(f"DROP {'ROLE' if database.kind == 'postgres' else 'USER'} IF EXISTS {who}")
    account = "ROLE lesser LOGIN" if database.kind == "postgres" else f"USER {who}"
    database.call(f"CREATE {account}")
    if database.kind == "mariadb":  # so that it may connect
        database.call(f"GRANT SELECT ON {PRINTED}.* TO {who}")
    yield Database(database.kind, OtherDatabase(database.server))
    force = "WITH (FORCE)" if database.kind == "postgres" else ""
    database.call(f"DROP DATABASE {PRINTED} {force}")
    if database.kind == "postgres":
        database.call("DROP ROLE lesser")
    else:
        database.call(f"DROP USER {who}")


class OtherDatabase:
    """Another database of the same server."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = server.url.rsplit("/", 1)[0] + f"/{PRINTED}"

    def connect(self, **options: Any) -> Any:
        parameter = "dbname" if self.url.startswith("postgres") else "database"
        return self._server.connect(**{parameter: PRINTED} | options)


def shape(database: Database) -> list[Any]:
    return [database.call(query) for query in SHAPE[database.kind]]


def run(database: Database, script: str) -> None:
    """Run a script with the server's own client program."""
    server = database.server._server
    host = ["-h", "127.0.0.1"]
    if database.kind == "postgres":
        name, more = "psql", ["-p", str(server.port), "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
    else:
        name, more = "mariadb", ["--no-defaults", "-P", str(server.port), "-u", "root"]
    found = program(name)
    assert found, f"no {name}"
    done = subprocess.run(
        [found, *more, *host, PRINTED], input=script, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_printed_schema_equals_that_of_first_use_and_suffices_without_create_rights(
    connect, database, printed
):
    url = printed.url.replace("root@", "lesser@").replace("postgres@", "lesser@")
    restricted = lockfast.connect(url)
    with pytest.raises(BackendError, match="least rights") as caught:
        restricted.lock("a").acquire(timeout=0)
    assert not caught.value.transient

    with connect().lock("a"):
        pass
    command = [sys.executable, "-m", "lockfast", "schema", url.replace("@", ":secret@")]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "secret" not in script
    run(printed, script)
    run(printed, script)  # existing tables stay as they are
    assert shape(printed) == shape(database)
    assert {row[0] for row in shape(printed)[0]} == set(TABLES)

    for line in script.splitlines():
        if line.startswith("--   GRANT"):
            to = "lesser" if database.kind == "postgres" else "lesser@127.0.0.1"
            printed.call(line.removeprefix("--   ").replace("TO app", f"TO {to}"))
    with restricted.lock("a") as hold, restricted.semaphore("b", 2):
        assert hold.is_held and restricted.lock("a", owner="other").try_acquire() is None
    with printed.server.connect(user="lesser") as mine:
        assert restricted.transaction_lock("a", connection=mine).fence > hold.fence
        mine.rollback()
    restricted.close()
