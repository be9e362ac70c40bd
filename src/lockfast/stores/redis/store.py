"""Open a Redis store from a URL or from a client of redis-py."""

from __future__ import annotations

import logging
import re
import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.redis.backend import RedisBackend

try:
    import hiredis  # noqa: F401
    import redis
    import redis.asyncio
except ImportError as missing:
    raise ConfigurationError(
        f"Redis needs a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[redis]'"
    ) from None

from lockfast.stores.redis.connections import Address, Connection
from lockfast.stores.redis.replicas import ReplicatedBackend, checked_replicas
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.sentinel import SentinelAddress
from lockfast.stores.redis.sentinel_urls import sentinels_of_pool, sentinels_of_url
from lockfast.stores.redis.task_connection import TaskConnection
from lockfast.stores.redis.tasks import TaskTransport
from lockfast.stores.redis.threads import BlockingTransport

log = logging.getLogger("lockfast")

CHECK_BUDGET = 1.0
EXPECTED = (
    "expected redis://user:password@host:port/db, where db is a number, and / ? # @ in a password "
    "are written as %2F %3F %23 %40"
)


class RedisStore:
    """One server, or the master that Sentinel reports, as used by one client."""

    def __init__(self, address: Address | SentinelAddress) -> None:
        self._address = address
        self.url = address.where
        self._transports: weakref.WeakSet[BlockingTransport | TaskTransport] = weakref.WeakSet()
        self._checked = False
        self._replicas: int | str | None = None
        address.on_move = self._moved
        forks.register(self)

    def _moved(self) -> None:
        for transport in list(self._transports):
            transport.moved()

    def count_replicas(self, replicas: object) -> None:
        """Make claims count only once this many replicas have them."""
        self._replicas = checked_replicas(replicas)

    def _backend(self, transport: BlockingTransport | TaskTransport) -> RedisBackend:
        where, replicas = self._address, self._replicas
        if replicas is None:
            backend = RedisBackend(transport, where.where)
        else:
            backend = ReplicatedBackend(transport, where.where, replicas, lambda: where.replicas)
        backend.patience = where.patience
        return backend

    def blocking(self, signal: Callable[[], Signal]) -> RedisBackend:
        return self._backend(self.blocking_transport())

    def tasks(self, signal: Callable[[], Signal]) -> RedisBackend:
        return self._backend(self.task_transport())

    def blocking_transport(self) -> BlockingTransport:
        transport = BlockingTransport(self._address, secrets.token_hex(8), self._check)
        self._transports.add(transport)
        return transport

    def task_transport(self) -> TaskTransport:
        transport = TaskTransport(self._address, secrets.token_hex(8), self._check_later)
        self._transports.add(transport)
        return transport

    # ---- health checks ------------------------------------------------------------------------

    def _check(self, connection: Connection) -> None:
        """Warn once per client if the server may evict locks."""
        if not self._checked:
            info = connection.ask(packed("INFO", "memory"), connection.budget)
            warn_of_eviction(self.url, info)
            self._checked = True

    def _check_later(self, connection: TaskConnection) -> None:
        if not self._checked:
            self._checked = True
            info = connection.ask(packed("INFO", "memory"), CHECK_BUDGET)
            info.add_done_callback(self._checked_later)

    def _checked_later(self, info: Any) -> None:
        if not info.cancelled() and info.exception() is None:
            warn_of_eviction(self.url, info.result())

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the server, and the sentinels that lead to it."""
        from lockfast.stores.redis import health, sentinel_health  # only the doctor needs them

        yield from health.health_checks(self._address, self._replicas)
        if isinstance(self._address, SentinelAddress):
            yield from sentinel_health.health_checks(self._address)

    def before_fork(self) -> None:
        """Nothing to pause: the child discards what it inherits."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do: the parent goes on."""

    def after_fork_in_child(self) -> None:
        self._address.after_fork_in_child()
        for transport in list(self._transports):
            transport.after_fork_in_child()


def warn_of_eviction(where: str, info: Any) -> None:
    """Warn if the server may evict keys, and so locks; not without the right to INFO."""
    if not isinstance(info, bytes | str):
        return
    text = info.decode() if isinstance(info, bytes) else info
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    policy, limit = facts.get("maxmemory_policy", "noeviction"), facts.get("maxmemory", "0")
    if policy != "noeviction" and limit != "0":
        log.warning(
            "lockfast: %s evicts keys, locks too, when its memory is full (maxmemory-policy %s): "
            "set noeviction, or keep locks on a server of their own",
            where,
            policy,
        )


def open_redis(url: str) -> RedisStore:
    """Open ``redis://``, ``rediss://`` and ``unix://`` URLs, as redis-py reads them."""
    return _opened(address_of_url(url))


def address_of_url(url: str) -> Address:
    """The address in a URL, not checked yet."""
    try:
        parts = urlsplit(url)
        refused = parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path)
        refused = refused or bool(parts.fragment)
        pool = None if refused else redis.ConnectionPool.from_url(url)
    except (ValueError, TypeError) as error:
        pool = None
        message = str(error)
        # redis-py's message about an option contains only its name. Others may quote a password.
        hint = message if message.startswith("Invalid value for ") else EXPECTED
    else:
        hint = EXPECTED
    if pool is None:
        raise ConfigurationError(f"not a Redis URL: {hint}")
    return Address(pool.connection_class, dict(pool.connection_kwargs))


def open_sentinel(url: str) -> RedisStore:
    """Open ``redis+sentinel://`` URLs: the master that the sentinels know."""
    return _opened(sentinels_of_url(url))


def open_redis_client(client: Any) -> RedisStore:
    """Open the server of an existing client, on connections of our own: with the client's address,
    credentials and TLS settings, without its pool, retries and decoding. A client made by
    ``Sentinel.master_for`` leads to its sentinels."""
    return _opened(address_of_client(client))


def address_of_client(client: Any) -> Address | SentinelAddress:
    """The address of a client's server, not checked yet."""
    pool = getattr(client, "connection_pool", None)
    if not isinstance(client, redis.Redis | redis.asyncio.Redis) or pool is None:
        raise ConfigurationError(f"{type(client).__name__} is not a client of one Redis server")
    if "connection_pool" in pool.connection_kwargs:
        return sentinels_of_pool(pool)
    return Address(pool.connection_class, dict(pool.connection_kwargs))


def _opened(address: Address | SentinelAddress) -> RedisStore:
    replicas = address.options.pop("replicas", None)
    address.check()
    store = RedisStore(address)
    if replicas is not None:
        store.count_replicas(replicas)
    return store
