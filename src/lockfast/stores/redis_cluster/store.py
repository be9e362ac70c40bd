"""The opened store: connecting to a cluster by URL or through a client of redis-py.

Each node is a `RedisStore`, which warns of eviction and handles forks like any other.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from lockfast import clock, forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError, Unsupported
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.redis.backend import Transport
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.redis_cluster.backend import ClusterBackend
from lockfast.stores.redis_cluster.listeners import Listeners
from lockfast.stores.redis_cluster.node import AskingTransport, NodeBackend
from lockfast.stores.redis_cluster.routing import Node, Router
from lockfast.stores.redis_cluster.slots import Remap, SlotMap, endpoint_of, host_and_port

import redis  # isort: skip  (after `store`, which explains a missing redis-py)

from lockfast.stores.redis.connections import Address, parameters_of  # isort: skip

MOST_SHOWN = 3
LEAST_TO_CONNECT = 0.5
NOT_READ = (
    "redis+cluster://user:password@host:port,host:port is one, with rediss+cluster:// for TLS; a "
    "cluster has no databases, and / ? # @ in a password are written as %2F %3F %23 %40"
)
_URL = re.compile(
    r"redis(?P<tls>s?)\+cluster://(?:(?P<user>[^@/?#]*)@)?(?P<hosts>[^@/?#]+)/?0?(?P<rest>\?[^#]*)?"
)
_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:,]+)(?::(?P<port>\d{1,5}))?")


class ClusterStore:
    """One client's view of a cluster. ``options`` are redis-py's, for each node."""

    def __init__(
        self,
        kind: type,
        options: dict[str, Any],
        endpoints: Sequence[str],
        remap: Remap | None = None,
    ) -> None:
        self._kind = kind
        self._options = options
        self._stores: dict[str, RedisStore] = {}
        for endpoint in endpoints:
            self._address(endpoint).check()
        more = ", …" if len(endpoints) > MOST_SHOWN else ""
        self.url = f"redis cluster at {', '.join(endpoints[:MOST_SHOWN])}{more}"
        self._slots = SlotMap(endpoints, remap)
        self._listeners: weakref.WeakSet[Listeners] = weakref.WeakSet()
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(endpoint: str) -> Transport:
            return self._store(endpoint).blocking_transport()

        return self._backend(transport, _pause, listens=True)

    def tasks(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(endpoint: str) -> Transport:
            return self._store(endpoint).task_transport()

        return self._backend(transport, asyncio.sleep, listens=False)

    def count_replicas(self, replicas: object) -> None:
        raise Unsupported(
            f"{self.url}: replicas={replicas!r} is for one master and its replicas, redis:// or "
            "redis+sentinel://; in a cluster a claim is granted as soon as its master has it"
        )

    def _backend(
        self,
        open_transport: Callable[[str], Transport],
        pause: Callable[[float], Awaitable[None]],
        *,
        listens: bool,
    ) -> ClusterBackend:
        def open_node(endpoint: str) -> Node:
            where, wake_address_of = f"redis at {endpoint}", backend.listeners.wake_address_of
            plain = open_transport(endpoint)
            asking = AskingTransport(plain)
            return (
                NodeBackend(plain, where, wake_address_of),
                NodeBackend(asking, where, wake_address_of),
            )

        listeners = Listeners(self._slots, self._address, secrets.token_hex(8))
        self._listeners.add(listeners)
        router = Router(self._slots, open_node, pause, self.url)
        backend = ClusterBackend(router, listeners, clock.now, listens=listens)
        return backend

    def _store(self, endpoint: str) -> RedisStore:
        store = self._stores.get(endpoint)
        if store is None:  # two threads may both make one, and either will do
            store = self._stores[endpoint] = RedisStore(self._address(endpoint))
        return store

    def _address(self, endpoint: str) -> Address:
        host, port = host_and_port(endpoint)
        address = Address(self._kind, {**self._options, "host": host, "port": port})
        # A node is connected to when one of its names is first requested, and that request may have
        # little time left. So a task keeps connecting while the callers that need it ask again.
        address.least = LEAST_TO_CONNECT
        return address

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the masters for settings that endanger locks."""
        from lockfast.stores.redis_cluster.health import health_checks  # only the doctor needs it

        return health_checks(self._address, self._slots.masters)

    def before_fork(self) -> None:
        """Do nothing: the child discards its copies of connections and state."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps its connections."""

    def after_fork_in_child(self) -> None:
        self._slots.after_fork_in_child()
        for listeners in list(self._listeners):
            listeners.after_fork_in_child()


async def _pause(seconds: float) -> None:
    time.sleep(seconds)


def open_cluster(url: str) -> ClusterStore:
    """Open ``redis+cluster://host:port,host:port`` or ``rediss+cluster://``, with the options of
    ``redis://``. One node that answers is enough to find all others."""
    parts = _URL.fullmatch(url)
    hosts = [_HOST.fullmatch(host) for host in parts["hosts"].split(",")] if parts else [None]
    if parts is None or None in hosts:
        raise ConfigurationError(f"not a URL of a Redis Cluster: {NOT_READ}")
    endpoints = []
    for host in hosts:
        assert host is not None
        endpoints.append(endpoint_of(host["host"].strip("[]"), int(host["port"] or 6379)))
    secret = f"{parts['user']}@" if parts["user"] else ""
    single = f"redis{parts['tls']}://{secret}localhost{parts['rest'] or ''}"
    try:
        pool = redis.ConnectionPool.from_url(single)
    except (ValueError, TypeError) as error:
        # redis-py's messages on an option name only the option. Any other may quote a password.
        why = str(error)
        pool, hint = None, why if why.startswith("Invalid value for ") else NOT_READ
    if pool is None:
        raise ConfigurationError(f"not a URL of a Redis Cluster: {hint}")
    options = dict(pool.connection_kwargs)
    if options.pop("db", 0):
        raise ConfigurationError("a Redis Cluster has no databases: leave the option db out")
    return ClusterStore(pool.connection_class, options, endpoints)


def open_cluster_client(client: Any) -> ClusterStore:
    """Open the cluster of an existing redis-py client, on our own connections: with the client's
    addresses, credentials and TLS, without its pools, retries and decoding."""
    manager = client.nodes_manager
    options = dict(manager.connection_kwargs)
    secured = options.get("ssl") or options.get("connection_class") is redis.asyncio.SSLConnection
    secured = secured or options.get("connection_class") is redis.SSLConnection
    kind = redis.SSLConnection if secured else redis.Connection
    known = parameters_of(kind) - {"redis_connect_func", "db"}
    endpoints = [endpoint_of(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    options = {key: value for key, value in options.items() if key in known and value is not None}
    return ClusterStore(kind, options, endpoints, getattr(manager, "address_remap", None))
