"""Fixtures for all tests, and the real servers that some need.

Where a server's program is missing its tests are skipped, and the end of the run says so loudly;
where CI=true they fail.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from servers.programs import program

if TYPE_CHECKING:
    from servers.mariadb_server import MariaDBServer
    from servers.pgbouncer_server import PgBouncerServer
    from servers.postgres_server import PostgresServer
    from servers.redis_server import RedisServer
    from servers.redlock_servers import RedlockServers
    from servers.zookeeper_server import ZooKeepers, ZooKeeperServer

pytest_plugins = ["holdfast.testing.fixtures"]

_missing: set[str] = set()


def need(*programs: str, driver: str) -> None:
    """Skip the test if one of the programs, or Python's module for it, is not there; or fail."""
    missing = {name for name in programs if program(name) is None}
    if importlib.util.find_spec(driver) is None:
        missing.add(f"module {driver}")
    if missing:
        _missing.update(missing)
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"no {', '.join(sorted(missing))} on this machine")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _missing:
        text = f"!!! NOT TESTED: no {', '.join(sorted(_missing))}. Run tests/servers/ensure as root"
        terminalreporter.write_line(text, red=True, bold=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for all tests: use names of your own, flush nothing, and leave it running."""
    need("redis-server", driver="redis")
    from servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redlock_servers() -> Iterator[RedlockServers]:
    """Three independent Redis for all tests: use names of your own, and leave them running."""
    need("redis-server", driver="redis")
    from servers.redlock_servers import RedlockServers

    with RedlockServers(3) as servers:
        yield servers


@pytest.fixture
def new_redlock() -> Iterator[Callable[..., RedlockServers]]:
    """Start so many Redis of the test's own, that vote; stopped after it. Its words are those of
    `RedisServer`."""
    need("redis-server", "openssl", driver="redis")
    from servers.redlock_servers import RedlockServers

    groups: list[RedlockServers] = []

    def new_redlock(number: int = 3, **options: Any) -> RedlockServers:
        groups.append(RedlockServers(number, **options))
        return groups[-1].start()

    yield new_redlock
    for group in groups:
        group.stop()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """One MariaDB for all tests: use tables of your own, and leave it running."""
    need("mariadbd", "mariadb-install-db", driver="pymysql")
    from servers.mariadb_server import MariaDBServer

    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests: use tables of your own, and leave it running."""
    need("postgres", "initdb", driver="psycopg")
    from servers.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests: use paths of your own, and leave it running."""
    need("java", "zookeeper.jar", "slf4j-simple.jar", driver="kazoo")
    from servers.zookeeper_server import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def new_zookeepers() -> Iterator[Callable[..., ZooKeepers]]:
    """Start so many ZooKeepers of the test's own, that vote; stopped after it. Its words are
    settings of zoo.cfg."""
    need("java", "zookeeper.jar", "slf4j-simple.jar", driver="kazoo")
    from servers.zookeeper_server import ZooKeepers

    groups: list[ZooKeepers] = []

    def new_zookeepers(number: int = 3, **settings: object) -> ZooKeepers:
        groups.append(ZooKeepers(number, **settings))
        return groups[-1].start()

    yield new_zookeepers
    for group in groups:
        group.stop()


@pytest.fixture
def pgbouncer_server(postgres_server: PostgresServer) -> Iterator[PgBouncerServer]:
    """A PgBouncer of the test's own, in transaction mode, before the PostgreSQL of all tests."""
    need("pgbouncer", driver="psycopg")
    from servers.pgbouncer_server import PgBouncerServer

    with PgBouncerServer(postgres_server) as server:
        yield server


@pytest.fixture
def new_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start a Redis of the test's own, with the words of `RedisServer`; stopped after it. The
    positional ones are arguments of redis-server."""
    need("redis-server", "openssl", driver="redis")
    from servers.redis_server import RedisServer

    servers: list[RedisServer] = []

    def new_redis(*extra_args: str, **options: Any) -> RedisServer:
        server = RedisServer(**options)
        servers.append(server)
        return server.start(*extra_args)

    yield new_redis
    for server in servers:
        server.stop()
