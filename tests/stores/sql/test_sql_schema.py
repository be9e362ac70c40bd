"""The tables: `lockfast schema` prints what first use makes, and who may not make any needs no
more."""

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

PRINTED = "printed"  # a database of its own
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
    """An empty database beside, and a user `lesser` that may create nothing in it."""
    database.call(f"DROP DATABASE IF EXISTS {PRINTED}")
    database.call(f"CREATE DATABASE {PRINTED}")
    who = "lesser" if database.kind == "postgres" else "lesser@127.0.0.1"
    database.call(f"DROP {'ROLE' if database.kind == 'postgres' else 'USER'} IF EXISTS {who}")
    word = "ROLE lesser LOGIN" if database.kind == "postgres" else f"USER {who}"
    database.call(f"CREATE {word}")
    if database.kind == "mariadb":  # so that it may come in
        database.call(f"GRANT SELECT ON {PRINTED}.* TO {who}")
    yield Database(database.kind, Elsewhere(database.server))
    force = "WITH (FORCE)" if database.kind == "postgres" else ""
    database.call(f"DROP DATABASE {PRINTED} {force}")
    if database.kind == "postgres":
        database.call("DROP ROLE lesser")
    else:
        database.call(f"DROP USER {who}")


class Elsewhere:
    """The same server, another database."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = server.url.rsplit("/", 1)[0] + f"/{PRINTED}"

    def connect(self, **options: Any) -> Any:
        word = "dbname" if self.url.startswith("postgres") else "database"
        return self._server.connect(**{word: PRINTED} | options)


def shape(database: Database) -> list[Any]:
    return [database.call(question) for question in SHAPE[database.kind]]


def run(database: Database, script: str) -> None:
    """With the server's own client."""
    server = database.server._server
    waiter = ["-h", "127.0.0.1"]
    if database.kind == "postgres":
        name, more = "psql", ["-p", str(server.port), "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
    else:
        name, more = "mariadb", ["--no-defaults", "-P", str(server.port), "-u", "root"]
    found = program(name)
    assert found, f"no {name}"
    done = subprocess.run(
        [found, *more, *waiter, PRINTED], input=script, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_is_printed_is_what_first_use_makes_and_suffices_who_may_create_nothing(
    connect, database, printed
):
    url = printed.url.replace("root@", "lesser@").replace("postgres@", "lesser@")
    poor = lockfast.connect(url)
    with pytest.raises(BackendError, match="least rights") as caught:
        poor.lock("a").acquire(timeout=0)
    assert not caught.value.transient

    with connect().lock("a"):
        pass
    command = [sys.executable, "-m", "lockfast", "schema", url.replace("@", ":secret@")]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "secret" not in script
    run(printed, script)
    run(printed, script)  # what is there stays
    assert shape(printed) == shape(database)
    assert {row[0] for row in shape(printed)[0]} == set(TABLES)

    for line in script.splitlines():
        if line.startswith("--   GRANT"):
            to = "lesser" if database.kind == "postgres" else "lesser@127.0.0.1"
            printed.call(line.removeprefix("--   ").replace("TO app", f"TO {to}"))
    with poor.lock("a") as hold, poor.semaphore("b", 2):
        assert hold.is_held and poor.lock("a", owner="other").try_acquire() is None
    with printed.server.connect(user="lesser") as mine:
        assert poor.transaction_lock("a", connection=mine).fence > hold.fence
        mine.rollback()
    poor.close()
