"""Open a Redis Cluster by URL or through a client of redis-py, and check its health.

Each node is a `RedisEndpoint`, which warns of eviction and handles forks like any other.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import BackendError, ConfigurationError, Unsupported
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.connections import Channel, Connection
from lockfast.stores.redis.endpoint import RedisEndpoint, pool_of
from lockfast.stores.redis.redis_py import Address, parameters_of
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis_cluster.listeners import Listeners
from lockfast.stores.redis_cluster.routing import Router
from lockfast.stores.redis_cluster.slots import Remap, SlotMap, endpoint_of, host_and_port
from lockfast.stores.redis_cluster.store import ClusterStore

import redis  # isort: skip  (after `stores.redis`, which explains a missing redis-py)

CHECK_BUDGET = 2.0
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


class ClusterEndpoint(Endpoint):
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
        self._stores: dict[str, RedisEndpoint] = {}
        for endpoint in endpoints:
            self._address(endpoint).check()
        more = ", …" if len(endpoints) > MOST_SHOWN else ""
        self.url = f"redis cluster at {', '.join(endpoints[:MOST_SHOWN])}{more}"
        self._slots = SlotMap(endpoints, remap)
        self._listeners: weakref.WeakSet[Listeners] = weakref.WeakSet()
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> ClusterStore:
        return self._store(lambda endpoint: self._node(endpoint).thread_channel(), time.sleep)

    def tasks(self, signal: Callable[[], Signal]) -> ClusterStore:
        return self._store(lambda endpoint: self._node(endpoint).task_channel(), asyncio.sleep)

    def count_replicas(self, replicas: object) -> None:
        raise Unsupported(
            f"{self.url}: replicas={replicas!r} is for one master and its replicas, redis:// or "
            "redis+sentinel://; in a cluster a claim is granted as soon as its master has it"
        )

    def _store(
        self, open_channel: Callable[[str], Channel], pause: Callable[[float], Any]
    ) -> ClusterStore:
        listeners = Listeners(self._slots, self._address, secrets.token_hex(8))
        self._listeners.add(listeners)
        router = Router(self._slots, open_channel, pause, self.url)
        return ClusterStore(router, listeners, self.url, suspends=pause is asyncio.sleep)

    def _node(self, endpoint: str) -> RedisEndpoint:
        store = self._stores.get(endpoint)
        if store is None:  # two threads may both make one, and either will do
            store = self._stores[endpoint] = RedisEndpoint(self._address(endpoint))
        return store

    def _address(self, endpoint: str) -> Address:
        host, port = host_and_port(endpoint)
        address = Address(self._kind, {**self._options, "host": host, "port": port})
        # A node is connected to when one of its names is first requested, and that request may have
        # little time left. So a task keeps connecting while the callers that need it ask again.
        address.least = LEAST_TO_CONNECT
        return address

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the masters for settings that endanger locks; equal results are reported once."""
        from lockfast.stores.redis.health import gathered  # only the doctor needs it

        nodes = {endpoint: _check(self._address(endpoint)) for endpoint in self._slots.masters}
        return gathered(nodes, "masters")

    def after_fork_in_child(self) -> None:
        self._slots.after_fork_in_child()
        for listeners in list(self._listeners):
            listeners.after_fork_in_child()


def _check(address: Address) -> Iterator[HealthCheck]:
    from lockfast.stores.redis.health import examined

    try:
        connection = Connection(address, CHECK_BUDGET)
    except BackendError as error:
        yield bad("contact", str(error), "check that it runs and can be reached from here")
        return
    try:
        reply = connection.ask(packed("CLUSTER", "INFO"), CHECK_BUDGET)
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
        if "cluster_state:fail" in text:
            yield bad(
                "cluster",
                "the cluster is down: no node serves some of the slots",
                "inspect CLUSTER NODES and CLUSTER SLOTS",
            )
        yield from examined(connection, clustered=True)
    except BackendError as error:
        yield bad("contact", str(error), "run the check again")
    finally:
        connection.close()


def open_cluster(url: str) -> ClusterEndpoint:
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
    pool = pool_of(single, "a URL of a Redis Cluster", NOT_READ)
    options = dict(pool.connection_kwargs)
    if options.pop("db", 0):
        raise ConfigurationError("a Redis Cluster has no databases: leave the option db out")
    return ClusterEndpoint(pool.connection_class, options, endpoints)


def open_cluster_client(client: Any) -> ClusterEndpoint:
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
    return ClusterEndpoint(kind, options, endpoints, getattr(manager, "address_remap", None))
