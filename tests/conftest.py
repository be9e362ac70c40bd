"""Fixtures for all tests, and the real servers that some need.

Where a server's program is missing, its tests are skipped and the end of the run says so; with
CI=true they fail.
"""

from __future__ import annotations

import importlib.util
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import coverage
import pytest

from lab.servers.programs import MARIADB, MYSQLD, program

if TYPE_CHECKING:
    from lab.servers.mariadb_server import MariaDBServer
    from lab.servers.pgbouncer_server import PgBouncerServer
    from lab.servers.postgres_server import PostgresServer
    from lab.servers.redis_cluster import RedisCluster
    from lab.servers.redis_sentinel import RedisSentinels
    from lab.servers.redis_server import RedisServer
    from lab.servers.redlock_servers import RedlockServers
    from lab.servers.zookeeper_server import ZooKeepers, ZooKeeperServer

# Before any test imports it.
pytest.register_assert_rewrite("lab.conformance")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save a worker's coverage at once: xdist kills a worker that does not end soon."""
    measure = coverage.Coverage.current()
    if measure is not None and hasattr(session.config, "workerinput"):
        measure.stop()
        measure.save()


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keep tests that need the same servers on one worker: a file, or, of the conformance suite,
    half of the cases of one store and one API."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, test = nodeid.split("::", 1)
            case = re.match(r"test_conformance\[(\w+-\w+)-(.*)\]", test)
            return f"{file} {case[1]} {zlib.crc32(case[2].encode()) // 2 % 2}" if case else file

    return ByServer(config, log)


def pytest_report_header() -> str | None:
    return f"mysqld in place of MariaDB: {MYSQLD}" if MYSQLD else None


_missing: set[str] = set()


def need(*programs: str, driver: str) -> None:
    """Skip the test, or fail it with CI=true, if a program or the driver is not installed."""
    missing = {name for name in programs if program(name) is None}
    if importlib.util.find_spec(driver) is None:
        missing.add(f"module {driver}")
    if missing:
        _missing.update(missing)
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"no {', '.join(sorted(missing))} on this machine")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _missing:
        text = f"!!! NOT TESTED: no {', '.join(sorted(_missing))}. Run lab/servers/ensure as root"
        terminalreporter.write_line(text, red=True, bold=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for all tests: use names of your own, flush nothing, and leave it running."""
    need("redis-server", driver="redis")
    from lab.servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redlock_servers() -> Iterator[RedlockServers]:
    """Three independent Redis servers for all tests: use names of your own, leave them running."""
    need("redis-server", driver="redis")
    from lab.servers.redlock_servers import RedlockServers

    with RedlockServers(3) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_sentinels() -> Iterator[RedisSentinels]:
    """Three Redis servers and three Sentinels for all tests: use names of your own, and leave the
    servers as they are."""
    need("redis-server", driver="redis")
    from lab.servers.redis_sentinel import RedisSentinels

    with RedisSentinels() as servers:
        yield servers


@pytest.fixture
def new_redlock() -> Iterator[Callable[..., RedlockServers]]:
    """Start a Redlock group of ``number`` Redis servers, stopped after the test. The options are
    those of `RedisServer`."""
    need("redis-server", "openssl", driver="redis")
    from lab.servers.redlock_servers import RedlockServers

    groups: list[RedlockServers] = []

    def new_redlock(number: int = 3, **options: Any) -> RedlockServers:
        groups.append(RedlockServers(number, **options))
        return groups[-1].start()

    yield new_redlock
    for group in groups:
        group.stop()


@pytest.fixture
def new_sentinels() -> Iterator[Callable[..., RedisSentinels]]:
    """Start a group of Redis servers and Sentinels, stopped after the test."""
    need("redis-server", driver="redis")
    from lab.servers.redis_sentinel import RedisSentinels

    made: list[RedisSentinels] = []

    def new_sentinels(**options: Any) -> RedisSentinels:
        made.append(RedisSentinels(**options))
        return made[-1].start()

    yield new_sentinels
    for servers in made:
        servers.stop()


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """One Redis Cluster for all tests: use names of your own, and leave it as it was."""
    need("redis-server", driver="redis")
    from lab.servers.redis_cluster import RedisCluster

    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def new_redis_cluster() -> Iterator[Callable[..., RedisCluster]]:
    """Start a Redis Cluster, stopped after the module. ``extra`` are arguments of redis-server, the
    others those of `RedisCluster`."""
    need("redis-server", "openssl", driver="redis")
    from lab.servers.redis_cluster import RedisCluster

    clusters: list[RedisCluster] = []

    def new_redis_cluster(*sizes: int, extra: Sequence[str] = (), **options: Any) -> RedisCluster:
        clusters.append(RedisCluster(*sizes, **options))
        return clusters[-1].start(*extra)

    yield new_redis_cluster
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """One MariaDB for all tests: use tables of your own, and leave it running."""
    need(*MARIADB, driver="pymysql")
    from lab.servers.mariadb_server import MariaDBServer

    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests: use tables of your own, and leave it running."""
    need("postgres", "initdb", driver="psycopg")
    from lab.servers.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests: use paths of your own, and leave it running."""
    need("java", "zookeeper.jar", "slf4j-simple.jar", driver="kazoo")
    from lab.servers.zookeeper_server import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def new_zookeepers() -> Iterator[Callable[..., ZooKeepers]]:
    """Start an ensemble of ``number`` ZooKeeper servers, stopped after the test. The keywords are
    settings of zoo.cfg."""
    need("java", "zookeeper.jar", "slf4j-simple.jar", driver="kazoo")
    from lab.servers.zookeeper_server import ZooKeepers

    groups: list[ZooKeepers] = []

    def new_zookeepers(number: int = 3, **settings: object) -> ZooKeepers:
        groups.append(ZooKeepers(number, **settings))
        return groups[-1].start()

    yield new_zookeepers
    for group in groups:
        group.stop()


@pytest.fixture
def pgbouncer_server(postgres_server: PostgresServer) -> Iterator[PgBouncerServer]:
    """A PgBouncer for one test, in transaction mode, in front of the PostgreSQL of all tests."""
    need("pgbouncer", driver="psycopg")
    from lab.servers.pgbouncer_server import PgBouncerServer

    with PgBouncerServer(postgres_server) as server:
        yield server


@pytest.fixture
def new_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start a Redis server, stopped after the test. Positional arguments go to redis-server,
    keywords to `RedisServer`."""
    need("redis-server", "openssl", driver="redis")
    from lab.servers.redis_server import RedisServer

    servers: list[RedisServer] = []

    def new_redis(*extra_args: str, **options: Any) -> RedisServer:
        server = RedisServer(**options)
        servers.append(server)
        return server.start(*extra_args)

    yield new_redis
    for server in servers:
        server.stop()
