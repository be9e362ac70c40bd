"""Fixtures for all tests, and the real servers that some need.

Where a server's program is missing its tests are skipped, and the end of the run says so loudly;
where CI=true they fail.
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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker is killed if it does not end soon: what it measured is safe before."""
    measure = coverage.Coverage.current()
    if measure is not None and hasattr(session.config, "workerinput"):
        measure.stop()
        measure.save()


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """One worker runs what needs the same servers: of the conformance cases half of those of one
    store in one face, of all others those of one file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, test = nodeid.split("::", 1)
            case = re.match(r"test_conformance\[(\w+-\w+)-(.*)\]", test)
            return f"{file} {case[1]} {zlib.crc32(case[2].encode()) // 2 % 2}" if case else file

    return ByServer(config, log)


def pytest_report_header() -> str | None:
    return f"where a MariaDB is asked for: {MYSQLD}" if MYSQLD else None


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
        text = (
            f"!!! NOT TESTED: no {', '.join(sorted(_missing))}. Run lab/lab/servers/ensure as root"
        )
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
    """Three independent Redis for all tests: use names of your own, and leave them running."""
    need("redis-server", driver="redis")
    from lab.servers.redlock_servers import RedlockServers

    with RedlockServers(3) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_sentinels() -> Iterator[RedisSentinels]:
    """Three Redis and three Sentinels for all tests: use names of your own, and leave them as they
    are."""
    need("redis-server", driver="redis")
    from lab.servers.redis_sentinel import RedisSentinels

    with RedisSentinels() as servers:
        yield servers


@pytest.fixture
def new_redlock() -> Iterator[Callable[..., RedlockServers]]:
    """Start so many Redis of the test's own, that vote; stopped after it. Its words are those of
    `RedisServer`."""
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
    """The same of the test's own, with the words of `RedisSentinels`; stopped after it."""
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
    """Start a Redis Cluster of the module's own, with the words of `RedisCluster`; stopped after
    it. ``extra`` are arguments of redis-server."""
    need("redis-server", "openssl", driver="redis")
    from lab.servers.redis_cluster import RedisCluster

    clusters: list[RedisCluster] = []

    def new_redis_cluster(*words: int, extra: Sequence[str] = (), **options: Any) -> RedisCluster:
        clusters.append(RedisCluster(*words, **options))
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
    """Start so many ZooKeepers of the test's own, that vote; stopped after it. Its words are
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
    """A PgBouncer of the test's own, in transaction mode, before the PostgreSQL of all tests."""
    need("pgbouncer", driver="psycopg")
    from lab.servers.pgbouncer_server import PgBouncerServer

    with PgBouncerServer(postgres_server) as server:
        yield server


@pytest.fixture
def new_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start a Redis of the test's own, with the words of `RedisServer`; stopped after it. The
    positional ones are arguments of redis-server."""
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
