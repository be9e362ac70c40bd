"""`lockfast doctor` on real databases, each in the state to be detected."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_reports import Verdict
from operator_commands import Command

from lab.servers.programs import program

PATIENCE = 20.0


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@contextlib.contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


# ---- PostgreSQL -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def careful_postgres(postgres_server: Any) -> Iterator[Any]:
    """A durable server with few connections."""
    from lab.servers.postgres_server import PostgresServer

    server = PostgresServer()
    settings = ("fsync=on", "full_page_writes=on", "max_connections=12")
    yield server.start(*(part for setting in settings for part in ("-c", setting)))
    server.stop()


def test_a_durable_postgres_is_fit(command: Command, careful_postgres: Any) -> None:
    found = Verdict(command, careful_postgres.url)
    assert (found.code, found.faults) == (0, [])
    assert found.levels("persistence") == found.levels("rights") == found.levels("clock") == {"ok"}
    assert found.levels("replicas") == {"note"} and "PostgreSQL" in found.text("version")


def test_fsync_off_is_bad(command: Command, postgres_server: Any) -> None:
    found = Verdict(command, postgres_server.url)
    assert (found.code, found.levels("persistence")) == (1, {"bad"})
    assert "fsync is off" in found.text("persistence")


def test_settings_that_may_lose_rows_or_never_vacuum_are_a_warning(
    command: Command, careful_postgres: Any
) -> None:
    call = careful_postgres.call
    Verdict(command, careful_postgres.url)  # creates the tables
    call("ALTER ROLE postgres SET synchronous_commit = off")
    call("ALTER TABLE lockfast_names SET UNLOGGED")
    call("ALTER SYSTEM SET autovacuum = off")
    call("SELECT pg_reload_conf()")
    try:
        until(lambda: call("SHOW autovacuum") == [("off",)], "the setting was not reloaded")
        found = Verdict(command, careful_postgres.url)
        assert found.code == 0 and found.levels("persistence") == {"warn"}
        assert "synchronous_commit" in found.text("persistence")
        assert "lockfast_names" in found.text("persistence")
        assert found.levels("autovacuum") == {"warn"}
    finally:
        call("ALTER ROLE postgres RESET synchronous_commit")
        call("ALTER TABLE lockfast_names SET LOGGED")
        call("ALTER SYSTEM RESET autovacuum")
        call("SELECT pg_reload_conf()")


def test_an_asynchronous_standby_is_a_warning(
    command: Command, careful_postgres: Any, tmp_path: Path
) -> None:
    receiver = program("pg_receivewal")
    if receiver is None:
        receiver = str(Path(str(program("postgres"))).with_name("pg_receivewal"))
    port = str(careful_postgres.port)
    with running(
        receiver,
        "--synchronous",
        "-h",
        "127.0.0.1",
        "-p",
        port,
        "-U",
        "postgres",
        "-D",
        str(tmp_path),
    ):
        count = "SELECT count(*) FROM pg_stat_replication"
        until(lambda: careful_postgres.call(count) == [(1,)], "no replication")
        assert Verdict(command, careful_postgres.url).levels("replicas") == {"warn"}
        # pg_receivewal acknowledges only what it has written, so commits do wait for the disk.
        careful_postgres.call("ALTER SYSTEM SET synchronous_standby_names = 'pg_receivewal'")
        careful_postgres.call("SELECT pg_reload_conf()")
        try:
            name = "SHOW synchronous_standby_names"
            until(
                lambda: careful_postgres.call(name) == [("pg_receivewal",)],
                "the setting was not reloaded",
            )
            assert Verdict(command, careful_postgres.url).levels("replicas") == {"ok"}
        finally:
            careful_postgres.call("ALTER SYSTEM RESET synchronous_standby_names")
            careful_postgres.call("SELECT pg_reload_conf()")


def test_few_connections_left_are_a_warning(command: Command, careful_postgres: Any) -> None:
    with contextlib.ExitStack() as connections:
        for _ in range(8):
            connections.enter_context(careful_postgres.connect())
        assert Verdict(command, careful_postgres.url).levels("connections") == {"warn"}


def test_a_read_only_postgres_is_bad(command: Command, careful_postgres: Any) -> None:
    careful_postgres.call("CREATE ROLE reader LOGIN")
    careful_postgres.call("ALTER ROLE reader SET default_transaction_read_only = on")
    found = Verdict(command, careful_postgres.url.replace("postgres@", "reader@"))
    assert (found.code, found.levels("contact")) == (1, {"bad"})
    assert "read-only" in found.text("contact")


def test_missing_permissions_in_postgres_are_bad(command: Command, postgres_server: Any) -> None:
    postgres_server.call("DROP TABLE IF EXISTS lockfast_names, lockfast_rows")
    postgres_server.call("DROP ROLE IF EXISTS nobody")
    postgres_server.call("CREATE ROLE nobody LOGIN")
    found = Verdict(command, postgres_server.url.replace("postgres@", "nobody@"))
    assert found.code == 1 and "bad" in found.levels("contact") | found.levels("rights")
    text = found.text("contact") + found.text("rights")
    assert "permission denied" in text and "docs/postgresql.md" in text


def test_pgbouncer_in_transaction_mode_is_a_note(command: Command, pgbouncer_server: Any) -> None:
    found = Verdict(command, pgbouncer_server.url)
    assert found.levels("pooler") == {"note"} and found.levels("rights") == {"ok"}


# ---- MariaDB --------------------------------------------------------------------------------


@pytest.fixture
def setting(mariadb_server: Any) -> Iterator[Callable[[str, object], None]]:
    before: dict[str, Any] = {}

    def setting(name: str, value: object) -> None:
        ((old,),) = mariadb_server.call(f"SELECT @@GLOBAL.{name}")
        before.setdefault(name, old)
        mariadb_server.call(f"SET GLOBAL {name} = {value}")

    yield setting
    for name, value in before.items():
        mariadb_server.call(f"SET GLOBAL {name} = {value}")


def test_a_durable_mariadb_is_fit(
    command: Command, mariadb_server: Any, setting: Callable[[str, object], None]
) -> None:
    assert Verdict(command, mariadb_server.url).levels("persistence") == {"warn"}
    setting("innodb_flush_log_at_trx_commit", 1)
    found = Verdict(command, mariadb_server.url)
    assert (found.code, found.faults) == (0, [])
    assert found.levels("persistence") == found.levels("rights") == found.levels("clock") == {"ok"}
    kind = "MySQL" if mariadb_server.is_mysql else "MariaDB"
    assert kind in found.text("version") and found.levels("version") == {"ok"}


def test_a_read_only_mariadb_is_bad(
    command: Command, mariadb_server: Any, setting: Callable[[str, object], None]
) -> None:
    setting("read_only", 1)
    found = Verdict(command, mariadb_server.url)
    assert (found.code, found.levels("contact")) == (1, {"bad"})
    assert "read-only" in found.text("contact")


def test_few_connections_of_mariadb_left_are_a_warning(
    command: Command, mariadb_server: Any, setting: Callable[[str, object], None]
) -> None:
    setting("max_connections", 10)
    with contextlib.ExitStack() as connections:
        for _ in range(7):
            connections.enter_context(mariadb_server.connect())
        assert Verdict(command, mariadb_server.url).levels("connections") == {"warn"}


def test_statements_of_other_users_do_not_break_the_checks(
    command: Command, mariadb_server: Any
) -> None:
    with mariadb_server.connect(charset="utf8mb4") as stranger:
        slow = threading.Thread(target=stranger.query, args=["DO SLEEP(2) /* \U0001f600 */"])
        slow.start()
        time.sleep(0.2)
        assert Verdict(command, mariadb_server.url).levels("replicas") == {"note"}
        assert slow.is_alive()
        slow.join()


def test_missing_permissions_in_mariadb_are_bad(command: Command, mariadb_server: Any) -> None:
    mariadb_server.call("DROP USER IF EXISTS reader@127.0.0.1")
    mariadb_server.call("CREATE USER reader@127.0.0.1")
    mariadb_server.call(f"GRANT SELECT ON {mariadb_server.database}.* TO reader@127.0.0.1")
    with mariadb_server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS lockfast_names, lockfast_rows")
    found = Verdict(command, mariadb_server.url.replace("root@", "reader@"))
    assert found.code == 1
    text = found.text("contact") + found.text("rights")
    assert "denied" in text and "docs/mysql.md" in text


def test_a_statement_binlog_is_bad_and_a_replica_is_detected(
    command: Command, mariadb_server: Any
) -> None:
    from lab.servers.mariadb_server import MariaDBServer

    if mariadb_server.is_mysql:
        pytest.skip("MySQL has another tool to read the log")
    server = MariaDBServer()
    server.start("--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT")
    reader = str(program("mariadbd")).replace("/sbin/mariadbd", "/bin/mariadb-binlog")
    try:
        options = (
            "--read-from-remote-server --stop-never --raw --host=127.0.0.1 --user=root log.000001"
        )
        with running(
            *(reader, "--no-defaults", f"--port={server.port}"),
            f"--result-file={server.folder}/copy",
            *options.split(),
        ):
            count = (
                "SELECT COUNT(*) FROM information_schema.processlist"
                " WHERE command LIKE 'Binlog Dump%%'"
            )
            until(lambda: server.call(count) == ((1,),), "no replica reads the log")
            found = Verdict(command, server.url)
            assert found.levels("replicas") == {"warn"}
            assert (found.code, found.levels("binlog")) == (1, {"bad"})
    finally:
        server.stop()


def test_a_node_of_galera_is_bad(command: Command, mariadb_server: Any) -> None:
    if mariadb_server.is_mysql:
        pytest.skip("Galera is for MariaDB only")
    from lab.servers.mariadb_server import MariaDBServer
    from lab.servers.own_server import _free_port

    provider = Path("/usr/lib/galera/libgalera_smm.so")
    if not provider.exists():
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse("no Galera on this machine: apt-get install galera-4")
    port = _free_port()
    node = MariaDBServer()
    node.start(
        "--wsrep-on=ON",
        f"--wsrep-provider={provider}",
        "--wsrep-cluster-address=gcomm://",
        f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port}",
        "--wsrep-node-address=127.0.0.1",
        "--binlog-format=ROW",
    )
    try:
        found = Verdict(command, node.url)
        assert (found.code, found.levels("contact")) == (1, {"bad"})
        assert "Galera" in found.text("contact")
    finally:
        node.stop()
