"""Every store, empty, for tests that run on all of them."""

from __future__ import annotations

import itertools

import lockfast

_number = itertools.count()

# One line per store: the scope of its locks, and a function that makes the URL of a fresh store
# from a folder and from the running servers. The slowest stores come first, to balance the workers.
STORES = {
    "mariadb": ("network", lambda _, server: without_tables(server("mariadb_server")).url),
    "postgres": ("network", lambda _, server: without_tables(server("postgres_server")).url),
    "zookeeper": (
        "network",
        lambda _, server: f"{server('zookeeper_server').url}/conformance-{next(_number)}",
    ),
    "cluster": ("network", lambda _, server: server("redis_cluster").emptied().url),
    # With replicas that must acknowledge, so that one run covers sentinels and replicas.
    "sentinel": (
        "network",
        lambda _, server: f"{emptied(server('redis_sentinels')).url}?replicas=1",
    ),
    "redlock": ("network", lambda _, server: initialized(emptied(server("redlock_servers"))).url),
    "redis": ("network", lambda _, server: emptied(server("redis_server")).url),
    "sqlite": ("host", lambda path, _: f"sqlite://{path}/locks.db"),
    "memory": ("process", lambda path, _: f"memory://conformance-{next(_number)}"),
}
# Features that a store lacks according to its capabilities; a separate case checks the refusal.
LACKS = {
    "redlock": ("arrival order", "barrier", "latch", "once_every", "permits", "semaphore"),
}


def emptied(server):
    server.call("FLUSHALL")
    return server


def initialized(servers):
    """Let every node set its mark: some cases have leases, and so budgets, too short for that."""
    with lockfast.connect(servers.url) as client, client.lock("initialize"):
        return servers


def without_tables(server):
    for table in ("lockfast_names", "lockfast_rows"):
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
    return server
