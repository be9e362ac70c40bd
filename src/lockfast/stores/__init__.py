"""The stores. `open_endpoint` picks one by URL and imports no other.

A store is opened once per client and makes a store for either API: a blocking one (also for the
keeper of an asyncio client) and one for asyncio.
"""

from __future__ import annotations

import difflib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lockfast.core.ports import Signal, Store
from lockfast.errors import ConfigurationError, Unsupported
from lockfast.stores.health_checks import HealthCheck, note

if TYPE_CHECKING:
    from lockfast.stores.sql.user_connections import UserConnections

DEFAULT_URL_VARIABLE = "LOCKFAST_URL"


class Endpoint(ABC):
    """The address and the settings of a store, which makes a `Store` for each API."""

    url: str  # without a password

    @abstractmethod
    def blocking(self, signal: Callable[[], Signal]) -> Store:
        """A store for threads, also for the keeper of an asyncio client."""

    @abstractmethod
    def tasks(self, signal: Callable[[], Signal]) -> Store:
        """A store for asyncio."""

    def count_replicas(self, replicas: object) -> None:
        """Make claims count only once so many replicas have acknowledged them."""
        raise Unsupported(f"{self.url} has no replicas to wait for: leave out replicas=")

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the servers, for `lockfast doctor`."""
        yield note("store", "this kind of store has no health checks of its own")

    def before_fork(self) -> None:
        """Make the state safe to copy."""
        return None

    def after_fork_in_parent(self) -> None:
        """Go on, in the parent."""
        return None

    def after_fork_in_child(self) -> None:
        """Discard what belongs to the parent."""
        return None


def open_endpoint(url: object, replicas: object = None) -> Endpoint:
    """Open the store of a URL or of an existing client; None means $LOCKFAST_URL, or else the
    embedded store. ``replicas`` is how many replicas must acknowledge a claim, if a store has
    any."""
    endpoint = _opened(url)
    if replicas is not None:
        endpoint.count_replicas(replicas)
    return endpoint


def _opened(url: object) -> Endpoint:
    if url is None:
        url = os.environ.get(DEFAULT_URL_VARIABLE) or ""
        if not url:
            from lockfast.stores.sqlite.endpoint import default_store

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


def _open_memory(url: str) -> Endpoint:
    from lockfast.stores.memory import open_memory

    return open_memory(url)


def _open_sqlite(url: str) -> Endpoint:
    from lockfast.stores.sqlite.endpoint import open_sqlite

    return open_sqlite(url)


def _open_redis(url: str) -> Endpoint:
    from lockfast.stores.redis.endpoint import open_redis

    return open_redis(url)


def _open_redlock(url: str) -> Endpoint:
    from lockfast.stores.redlock.endpoint import open_redlock

    return open_redlock(url)


def _open_sentinel(url: str) -> Endpoint:
    from lockfast.stores.redis.endpoint import open_sentinel

    return open_sentinel(url)


def _open_cluster(url: str) -> Endpoint:
    from lockfast.stores.redis_cluster.endpoint import open_cluster

    return open_cluster(url)


def _open_zookeeper(url: str) -> Endpoint:
    from lockfast.stores.zookeeper.endpoint import open_zookeeper

    return open_zookeeper(url)


def _open_postgres(url: str) -> Endpoint:
    from lockfast.stores.sql.postgres.endpoint import open_postgres

    return open_postgres(url)


def _open_mysql(url: str) -> Endpoint:
    from lockfast.stores.sql.mysql.endpoint import open_mysql

    return open_mysql(url)


def _open_client(client: object) -> Endpoint:
    """Open the store of an existing client, recognized by its library, which is then loaded."""
    if isinstance(client, list | tuple):
        from lockfast.stores.redlock.endpoint import open_redlock_clients

        return open_redlock_clients(client)
    library = type(client).__module__.split(".")[0]
    kinds = {kind.__name__ for kind in type(client).__mro__}
    if library == "redis" and "RedisCluster" in kinds:
        from lockfast.stores.redis_cluster.endpoint import open_cluster_client

        return open_cluster_client(client)
    if library == "redis":
        from lockfast.stores.redis.endpoint import open_redis_client

        return open_redis_client(client)
    if library == "kazoo":
        from lockfast.stores.zookeeper.endpoint import open_kazoo_client

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


def _open_user_connections(user_connections: UserConnections) -> Endpoint:
    if user_connections.dialect == "postgresql":
        from lockfast.stores.sql.postgres.endpoint import open_postgres_connections

        return open_postgres_connections(user_connections)
    from lockfast.stores.sql.mysql.endpoint import open_mysql_connections

    return open_mysql_connections(user_connections)


_OPENERS: dict[str, Callable[[str], Endpoint]] = {
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
