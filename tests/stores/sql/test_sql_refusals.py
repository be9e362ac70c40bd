"""Servers on which a lock would exclude nobody are refused: standbys, Galera nodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from glob import glob
from typing import Any

import pytest

import lockfast
from lab.servers.own_server import _free_port
from lockfast.errors import BackendError


@contextlib.contextmanager
def running(server: Any, *arguments: str) -> Iterator[Any]:
    try:
        yield server.start(*arguments)
    finally:
        server.stop()


def refused(url: str) -> str:
    client = lockfast.connect(url)
    with pytest.raises(BackendError) as caught:
        client.lock("a").acquire(timeout=5)
    assert not caught.value.transient  # so the client does not retry
    client.close()
    return str(caught.value)


def test_a_standby_is_refused_as_the_store_and_behind_a_users_connection(postgres_server):
    from lab.servers.postgres_server import PostgresServer

    with PostgresServer() as server:
        signal = server.folder / "data" / "standby.signal"
        signal.touch()
        signal.chmod(0o666)
        server.restart(keep_data=True)
        assert server.call("SELECT pg_is_in_recovery()") == [(True,)]
        assert "is a standby" in refused(server.url)
        client = lockfast.connect(postgres_server.url)
        for advisory in (False, True):  # a lock there would be invisible to all others
            with (
                server.connect() as connection,
                pytest.raises(lockfast.ConfigurationError, match="another database"),
            ):
                client.transaction_lock("a", connection=connection, advisory=advisory)
        client.close()


def test_a_node_of_a_galera_cluster_is_refused(mariadb_server):
    if mariadb_server.is_mysql:
        pytest.skip("MySQL has no Galera")
    from lab.servers.mariadb_server import MariaDBServer

    found = glob("/usr/lib*/galera*/libgalera_smm.so")
    if not found:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse("no Galera on this machine: apt-get install galera-4")
    own = (
        f"gmcast.listen_addr=tcp://127.0.0.1:{_free_port()};ist.recv_addr=127.0.0.1:{_free_port()}"
    )
    with running(
        MariaDBServer(),
        "--wsrep-on=ON",
        f"--wsrep-provider={found[0]}",
        "--wsrep-cluster-address=gcomm://",  # a new cluster
        "--wsrep-node-address=127.0.0.1",
        f"--wsrep-provider-options={own};gcache.size=4M",
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
    ) as server:
        assert server.call("SHOW STATUS LIKE 'wsrep_ready'") == (("wsrep_ready", "ON"),)
        assert "Galera" in refused(server.url)
        client = lockfast.connect(server.url)
        with server.connect() as connection, pytest.raises(BackendError, match="Galera"):
            client.transaction_lock("a", connection=connection)
        client.close()


def test_the_error_reports_that_the_server_rolled_back_the_transaction_at_a_time_out(
    mariadb_server,
):
    from lab.servers.mariadb_server import MariaDBServer

    with running(MariaDBServer(), "--innodb-rollback-on-timeout=ON") as server:
        client = lockfast.connect(server.url)
        with server.connect() as first, server.connect() as second:
            client.transaction_lock("a", connection=first)
            client.transaction_lock("b", connection=second)
            with pytest.raises(lockfast.AcquireTimeout, match="rolled back your whole transaction"):
                client.transaction_lock("a", connection=second, timeout=1)
            with pytest.raises(lockfast.AcquireTimeout) as caught:
                client.transaction_lock("a", connection=second, timeout=0)
            assert "rolled back" not in str(
                caught.value
            )  # SKIP LOCKED raises no error at the server
        client.close()
