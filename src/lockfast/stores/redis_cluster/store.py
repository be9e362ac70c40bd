"""Which cluster: URLs and clients of redis-py, and the opened store.

A node is a `RedisStore` of its own: it warns of eviction and is told of forks as any is.
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
from lockfast.stores.redis_cluster.listeners import Ears
from lockfast.stores.redis_cluster.node import Asking, NodeBackend
from lockfast.stores.redis_cluster.routing import Node, Router
from lockfast.stores.redis_cluster.slots import Remap, SlotMap, endpoint_of, host_and_port

import redis  # isort: skip  (after `store`, which says what is missing if it is)

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
    """One cluster, seen by one client. ``said`` is what redis-py is told for each node."""

    def __init__(
        self,
        kind: type,
        said: dict[str, Any],
        endpoints: Sequence[str],
        remap: Remap | None = None,
    ) -> None:
        self._kind = kind
        self._said = said
        self._stores: dict[str, RedisStore] = {}
        for endpoint in endpoints:
            self._address(endpoint).check()
        more = ", …" if len(endpoints) > MOST_SHOWN else ""
        self.url = f"redis cluster at {', '.join(endpoints[:MOST_SHOWN])}{more}"
        self._slots = SlotMap(endpoints, remap)
        self._ears: weakref.WeakSet[Ears] = weakref.WeakSet()
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(endpoint: str) -> Transport:
            return self._store(endpoint).blocking_transport()

        return self._backend(transport, _pause, hears=True)

    def tasks(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(endpoint: str) -> Transport:
            return self._store(endpoint).task_transport()

        return self._backend(transport, asyncio.sleep, hears=False)

    def count_replicas(self, replicas: object) -> None:
        raise Unsupported(
            f"{self.url}: replicas={replicas!r} is for one master and its replicas, redis:// or "
            "redis+sentinel://; in a cluster a claim counts as soon as its master has it"
        )

    def _backend(
        self,
        transport: Callable[[str], Transport],
        pause: Callable[[float], Awaitable[None]],
        *,
        hears: bool,
    ) -> ClusterBackend:
        def open_node(endpoint: str) -> Node:
            way, where, wake_address_of = (
                transport(endpoint),
                f"redis at {endpoint}",
                backend.ears.wake_address_of,
            )
            return NodeBackend(way, where, wake_address_of), NodeBackend(
                Asking(way), where, wake_address_of
            )

        ears = Ears(self._slots, self._address, secrets.token_hex(8))
        self._ears.add(ears)
        router = Router(self._slots, open_node, pause, self.url)
        backend = ClusterBackend(router, ears, clock.now, hears=hears)
        return backend

    def _store(self, endpoint: str) -> RedisStore:
        store = self._stores.get(endpoint)
        if store is None:  # two threads may both make one; either will do
            store = self._stores[endpoint] = RedisStore(self._address(endpoint))
        return store

    def _address(self, endpoint: str) -> Address:
        host, port = host_and_port(endpoint)
        address = Address(self._kind, {**self._said, "host": host, "port": port})
        # Each node is connected to when a name there is first asked for, in the little time that
        # this has: so a task goes on connecting while those who need it ask again.
        address.least = LEAST_TO_CONNECT
        return address

    def health_checks(self) -> Iterator[HealthCheck]:
        """What an examination of the masters finds."""
        from lockfast.stores.redis_cluster.health import health_checks  # only the doctor needs it

        return health_checks(self._address, self._slots.masters)

    def before_fork(self) -> None:
        """Nothing to rest: what crosses a fork is dropped in the child."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        self._slots.after_fork_in_child()
        for ears in list(self._ears):
            ears.after_fork_in_child()


async def _pause(seconds: float) -> None:
    time.sleep(seconds)


def open_cluster(url: str) -> ClusterStore:
    """``redis+cluster://host:port,host:port``, ``rediss+cluster://``: the options are those of
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
        # What redis-py says of an option names it and no more. All else may quote a password.
        why = str(error)
        pool, hint = None, why if why.startswith("Invalid value for ") else NOT_READ
    if pool is None:
        raise ConfigurationError(f"not a URL of a Redis Cluster: {hint}")
    said = dict(pool.connection_kwargs)
    if said.pop("db", 0):
        raise ConfigurationError("a Redis Cluster has no databases: leave the option db out")
    return ClusterStore(pool.connection_class, said, endpoints)


def open_cluster_client(client: Any) -> ClusterStore:
    """The cluster of an existing client, on connections of our own: with its addresses, its
    credentials and its TLS, without its pools, its retries and its decoding."""
    manager = client.nodes_manager
    said = dict(manager.connection_kwargs)
    secured = said.get("ssl") or said.get("connection_class") is redis.asyncio.SSLConnection
    secured = secured or said.get("connection_class") is redis.SSLConnection
    kind = redis.SSLConnection if secured else redis.Connection
    known = parameters_of(kind) - {"redis_connect_func", "db"}
    endpoints = [endpoint_of(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    said = {key: value for key, value in said.items() if key in known and value is not None}
    return ClusterStore(kind, said, endpoints, getattr(manager, "address_remap", None))
