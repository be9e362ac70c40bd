"""Open a Redis store from a URL or from a client of redis-py.

    redis+sentinel://user:password@sentinel:26379,another:26379/service/db?option=…

The credentials and the options are for the data servers, as redis-py reads them. Options with the
prefix ``sentinel_`` are for the sentinels (``sentinel_password=``). ``rediss+sentinel`` uses TLS
for both, with the same certificates, unless the sentinels have their own
(``sentinel_ssl_ca_certs=``) or do not use TLS (``sentinel_tls=no``).
"""

from __future__ import annotations

import logging
import re
import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.redis_py import Address
from lockfast.stores.redis.replicas import ReplicatedStore, checked_replicas
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.sentinel import PORT, SentinelAddress
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.redis.task_connection import TaskConnection
from lockfast.stores.redis.tasks import TaskChannel
from lockfast.stores.redis.threads import ThreadChannel

log = logging.getLogger("lockfast")

CHECK_BUDGET = 1.0
EXPECTED = (
    "expected redis://user:password@host:port/db, where db is a number, and / ? # @ in a password "
    "are written as %2F %3F %23 %40"
)


class RedisEndpoint(Endpoint):
    """One server, or the master that Sentinel reports, as used by one client."""

    def __init__(self, address: Address | SentinelAddress) -> None:
        self._address = address
        self.url = address.where
        self._channels: weakref.WeakSet[ThreadChannel | TaskChannel] = weakref.WeakSet()
        self._checked = False
        self._replicas: int | str | None = None
        address.on_move = self._moved
        forks.register(self)

    def _moved(self) -> None:
        for channel in list(self._channels):
            channel.moved()

    def count_replicas(self, replicas: object) -> None:
        """Make claims count only once this many replicas have them."""
        self._replicas = checked_replicas(replicas)

    def _store(self, channel: ThreadChannel | TaskChannel) -> RedisStore:
        where, replicas = self._address, self._replicas
        if replicas is None:
            store = RedisStore(channel, where.where)
        else:
            store = ReplicatedStore(channel, where.where, replicas, lambda: where.replicas)
        store.patience = where.patience
        return store

    def blocking(self, signal: Callable[[], Signal]) -> RedisStore:
        return self._store(self.thread_channel())

    def tasks(self, signal: Callable[[], Signal]) -> RedisStore:
        return self._store(self.task_channel())

    def thread_channel(self) -> ThreadChannel:
        channel = ThreadChannel(self._address, secrets.token_hex(8), self._check)
        self._channels.add(channel)
        return channel

    def task_channel(self) -> TaskChannel:
        channel = TaskChannel(self._address, secrets.token_hex(8), self._check_later)
        self._channels.add(channel)
        return channel

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
        from lockfast.stores.redis import health  # only the doctor needs it

        yield from health.health_checks(self._address, self._replicas)
        if isinstance(self._address, SentinelAddress):
            yield from health.sentinel_checks(self._address)

    def after_fork_in_child(self) -> None:
        self._address.after_fork_in_child()
        for channel in list(self._channels):
            channel.after_fork_in_child()


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


def open_redis(url: str) -> RedisEndpoint:
    """Open ``redis://``, ``rediss://`` and ``unix://`` URLs, as redis-py reads them."""
    return _opened(address_of_url(url))


def address_of_url(url: str) -> Address:
    """The address in a URL, not checked yet."""
    what = "a Redis URL"
    parts = split(url, what, EXPECTED)
    if parts.fragment or (parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigurationError(f"not {what}: {EXPECTED}")
    pool = pool_of(url, what, EXPECTED)
    return Address(pool.connection_class, dict(pool.connection_kwargs))


def split(url: str, what: str, expected: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        pass  # its message may quote a password
    raise ConfigurationError(f"not {what}: {expected}")


def pool_of(url: str, what: str, expected: str) -> redis.ConnectionPool:
    """Parse a URL as redis-py does."""
    try:
        return redis.ConnectionPool.from_url(url)
    except (ValueError, TypeError) as error:
        message = str(error)
    # redis-py's message about an option contains only its name. Others may quote a password.
    hint = message if message.startswith("Invalid value for ") else expected
    raise ConfigurationError(f"not {what}: {hint}")


def open_sentinel(url: str) -> RedisEndpoint:
    """Open ``redis+sentinel://`` URLs: the master that the sentinels know."""
    return _opened(sentinels_of_url(url))


def open_redis_client(client: Any) -> RedisEndpoint:
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


def _opened(address: Address | SentinelAddress) -> RedisEndpoint:
    replicas = address.options.pop("replicas", None)
    address.check()
    store = RedisEndpoint(address)
    if replicas is not None:
        store.count_replicas(replicas)
    return store


# ---- Sentinel --------------------------------------------------------------------------------

SENTINEL = "a URL of Sentinel"
SENTINEL_EXPECTED = (
    "expected redis+sentinel://user:password@host:port,host:port/service/db, where service is "
    "Sentinel's name for the master, and / ? # @ in a password are written as %2F %3F %23 %40; "
    "sentinel_username= and sentinel_password= are the sentinels' own"
)
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")
_PREFIX = "sentinel_"


def sentinels_of_url(url: str) -> SentinelAddress:
    parts = split(url, SENTINEL, SENTINEL_EXPECTED)
    path = re.fullmatch(r"/([^/]+)(?:/(\d*))?", parts.path)
    secret, _, hosts = parts.netloc.rpartition("@")
    matches = [_HOST.fullmatch(host) for host in hosts.split(",")]
    if path is None or parts.fragment or None in matches:
        raise ConfigurationError(f"not {SENTINEL}: {SENTINEL_EXPECTED}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    scheme = parts.scheme.partition("+")[0]
    theirs = [(key, value) for key, value in options if not key.startswith(_PREFIX)]
    secret = f"{secret}@" if secret else ""
    servers = _pool(f"{scheme}://{secret}localhost/{path[2] or 0}?{urlencode(theirs)}")
    pool = _sentinel_pool(scheme, dict(options))
    sentinels = [
        Address(
            pool.connection_class,
            {
                **pool.connection_kwargs,
                "host": match[1] or match[2],
                "port": int(match[3] or PORT),
            },
            "sentinel",
        )
        for match in matches
        if match is not None
    ]
    kind, server_options = servers.connection_class, dict(servers.connection_kwargs)
    return SentinelAddress(kind, server_options, sentinels, unquote(path[1]))


def sentinels_of_pool(pool: Any) -> SentinelAddress:
    """The sentinels of a client's pool, sync or async."""
    if not pool.is_master:
        raise ConfigurationError(
            "a client of replicas cannot take locks: use Sentinel.master_for()"
        )
    theirs = [client.connection_pool for client in pool.sentinel_manager.sentinels]
    sentinels = [
        Address(one.connection_class, dict(one.connection_kwargs), "sentinel") for one in theirs
    ]
    options = dict(pool.connection_kwargs)
    return SentinelAddress(pool.connection_class, options, sentinels, pool.service_name)


def _sentinel_pool(scheme: str, options: dict[str, str]) -> redis.ConnectionPool:
    """A pool with the connection class and the options of the sentinels."""
    own = {key[len(_PREFIX) :]: value for key, value in options.items() if key.startswith(_PREFIX)}
    if own.pop("tls", "yes") in ("no", "false", "0"):
        scheme = "redis"
    if scheme == "rediss":
        own = {key: value for key, value in options.items() if key.startswith("ssl_")} | own
    return _pool(f"{scheme}://localhost?{urlencode(own)}")


def _pool(url: str) -> redis.ConnectionPool:
    return pool_of(url, SENTINEL, SENTINEL_EXPECTED)
