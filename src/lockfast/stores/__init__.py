"""The stores. `open_store` picks one by URL and imports no other.

A store is opened once per client and makes a backend for either API: a blocking one (also for the
keeper of an asyncio client) and one for asyncio.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from lockfast.core.ports import Backend, Signal
from lockfast.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from lockfast.stores.sql.user_connections import UserConnections

DEFAULT_URL_VARIABLE = "LOCKFAST_URL"


class Store(Protocol):
    """A store, configured but not yet connected."""

    url: str  # without a password

    def blocking(self, signal: Callable[[], Signal]) -> Backend: ...

    def tasks(self, signal: Callable[[], Signal]) -> Backend: ...


def open_store(url: object, replicas: object = None) -> Store:
    """Open the store of a URL or of an existing client; None means $LOCKFAST_URL, or else the
    embedded store. ``replicas`` is how many replicas must acknowledge a claim, if a store has
    any."""
    store = _opened(url)
    if replicas is not None:
        count = getattr(store, "count_replicas", None)
        if count is None:
            raise Unsupported(f"{store.url} has no replicas to wait for: leave out replicas=")
        count(replicas)
    return store


def _opened(url: object) -> Store:
    if url is None:
        url = os.environ.get(DEFAULT_URL_VARIABLE) or ""
        if not url:
            from lockfast.stores.sqlite.store import default_store

            return default_store()
    if not isinstance(url, str):
        return _open_client(url)
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = None
    if scheme is None:  # not in the handler above: the ValueError may quote a password
        known = re.match(r"[a-z]*(://)?", url)
        raise ConfigurationError(f"'{known[0] if known else ''}…' is not a valid URL")
    if scheme not in _OPENERS:
        similar = difflib.get_close_matches(scheme, _OPENERS, 1) if scheme else []
        hint = f": did you mean {similar[0]}://?" if similar else ""
        raise ConfigurationError(
            f"no store for the URL scheme {scheme!r}{hint} (there are: "
            f"{', '.join(f'{known}://' for known in _OPENERS)})"
        )
    return _OPENERS[scheme](url)


def _open_memory(url: str) -> Store:
    from lockfast.stores.memory import open_memory

    return open_memory(url)


def _open_sqlite(url: str) -> Store:
    from lockfast.stores.sqlite.store import open_sqlite

    return open_sqlite(url)


def _open_redis(url: str) -> Store:
    from lockfast.stores.redis.store import open_redis

    return open_redis(url)


def _open_redlock(url: str) -> Store:
    from lockfast.stores.redlock.store import open_redlock

    return open_redlock(url)


def _open_sentinel(url: str) -> Store:
    from lockfast.stores.redis.store import open_sentinel

    return open_sentinel(url)


def _open_cluster(url: str) -> Store:
    from lockfast.stores.redis_cluster.store import open_cluster

    return open_cluster(url)


def _open_zookeeper(url: str) -> Store:
    from lockfast.stores.zookeeper.store import open_zookeeper

    return open_zookeeper(url)


def _open_postgres(url: str) -> Store:
    from lockfast.stores.sql.postgres.store import open_postgres

    return open_postgres(url)


def _open_mysql(url: str) -> Store:
    from lockfast.stores.sql.mysql.store import open_mysql

    return open_mysql(url)


def _open_client(client: object) -> Store:
    """Open the store of an existing client, recognized by its library, which is then loaded."""
    if isinstance(client, list | tuple):
        from lockfast.stores.redlock.store import open_redlock_clients

        return open_redlock_clients(client)
    library = type(client).__module__.split(".")[0]
    kinds = {kind.__name__ for kind in type(client).__mro__}
    if library == "redis" and "RedisCluster" in kinds:
        from lockfast.stores.redis_cluster.store import open_cluster_client

        return open_cluster_client(client)
    if library == "redis":
        from lockfast.stores.redis.store import open_redis_client

        return open_redis_client(client)
    if library == "kazoo":
        from lockfast.stores.zookeeper.store import open_kazoo_client

        return open_kazoo_client(client)
    if library == "sqlalchemy" and hasattr(client, "dialect"):
        from lockfast.stores.sql.user_connections import of_engine

        return _open_user_connections(of_engine(client))
    if callable(client):
        from lockfast.stores.sql.user_connections import of_function

        return _open_user_connections(of_function(client))
    raise ConfigurationError(
        "connect() takes a URL such as 'sqlite:///path/locks.db', a client of redis-py or kazoo, "
        "an engine of SQLAlchemy, or a function that makes connections to a database, not "
        f"{type(client).__name__}"
    )


def _open_user_connections(user_connections: UserConnections) -> Store:
    if user_connections.dialect == "postgresql":
        from lockfast.stores.sql.postgres.store import open_postgres_connections

        return open_postgres_connections(user_connections)
    from lockfast.stores.sql.mysql.store import open_mysql_connections

    return open_mysql_connections(user_connections)


_OPENERS: dict[str, Callable[[str], Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "redis": _open_redis,
    "rediss": _open_redis,
    "unix": _open_redis,
    "redlock": _open_redlock,
    "redlocks": _open_redlock,
    "redis+sentinel": _open_sentinel,
    "rediss+sentinel": _open_sentinel,
    "redis+cluster": _open_cluster,
    "rediss+cluster": _open_cluster,
    "zookeeper": _open_zookeeper,
    "zookeeper+tls": _open_zookeeper,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "mysql": _open_mysql,
    "mariadb": _open_mysql,
}
