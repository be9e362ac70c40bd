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

from holdfast import clock, forks
from holdfast.backends.findings import Finding
from holdfast.backends.redis.backend import Transport
from holdfast.backends.redis.cluster.backend import ClusterBackend
from holdfast.backends.redis.cluster.ears import Ears
from holdfast.backends.redis.cluster.node import Asking, NodeBackend
from holdfast.backends.redis.cluster.routing import Node, Router
from holdfast.backends.redis.cluster.slots import Remap, SlotMap, host_and_port, seat_of
from holdfast.backends.redis.store import RedisStore
from holdfast.core.ports import Signal
from holdfast.errors import ConfigurationError, Unsupported

import redis  # isort: skip  (after `store`, which says what is missing if it is)

from holdfast.backends.redis.links import Address, parameters_of  # isort: skip

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
        self, kind: type, said: dict[str, Any], seats: Sequence[str], remap: Remap | None = None
    ) -> None:
        self._kind = kind
        self._said = said
        self._stores: dict[str, RedisStore] = {}
        for seat in seats:
            self._address(seat).check()
        more = ", …" if len(seats) > MOST_SHOWN else ""
        self.url = f"redis cluster at {', '.join(seats[:MOST_SHOWN])}{more}"
        self._slots = SlotMap(seats, remap)
        self._ears: weakref.WeakSet[Ears] = weakref.WeakSet()
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(seat: str) -> Transport:
            return self._store(seat).blocking_transport()

        return self._backend(transport, _pause, hears=True)

    def tasks(self, signal: Callable[[], Signal]) -> ClusterBackend:
        def transport(seat: str) -> Transport:
            return self._store(seat).task_transport()

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
        def open_node(seat: str) -> Node:
            way, where, home_of = transport(seat), f"redis at {seat}", backend.ears.home_of
            return NodeBackend(way, where, home_of), NodeBackend(Asking(way), where, home_of)

        ears = Ears(self._slots, self._address, secrets.token_hex(8))
        self._ears.add(ears)
        router = Router(self._slots, open_node, pause, self.url)
        backend = ClusterBackend(router, ears, clock.now, hears=hears)
        return backend

    def _store(self, seat: str) -> RedisStore:
        store = self._stores.get(seat)
        if store is None:  # two threads may both make one; either will do
            store = self._stores[seat] = RedisStore(self._address(seat))
        return store

    def _address(self, seat: str) -> Address:
        host, port = host_and_port(seat)
        address = Address(self._kind, {**self._said, "host": host, "port": port})
        # Each node is connected to when a name there is first asked for, in the little time that
        # this has: so a task goes on connecting while those who need it ask again.
        address.least = LEAST_TO_CONNECT
        return address

    def findings(self) -> Iterator[Finding]:
        """What an examination of the masters finds."""
        from holdfast.backends.redis.cluster.health import findings  # only the doctor needs it

        return findings(self._address, self._slots.masters)

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
    seats = []
    for host in hosts:
        assert host is not None
        seats.append(seat_of(host["host"].strip("[]"), int(host["port"] or 6379)))
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
    return ClusterStore(pool.connection_class, said, seats)


def open_cluster_client(client: Any) -> ClusterStore:
    """The cluster of an existing client, on connections of our own: with its addresses, its
    credentials and its TLS, without its pools, its retries and its decoding."""
    manager = client.nodes_manager
    said = dict(manager.connection_kwargs)
    secured = said.get("ssl") or said.get("connection_class") is redis.asyncio.SSLConnection
    secured = secured or said.get("connection_class") is redis.SSLConnection
    kind = redis.SSLConnection if secured else redis.Connection
    known = parameters_of(kind) - {"redis_connect_func", "db"}
    seats = [seat_of(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    said = {key: value for key, value in said.items() if key in known and value is not None}
    return ClusterStore(kind, said, seats, getattr(manager, "address_remap", None))
