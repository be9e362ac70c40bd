"""Which sentinels: URLs, and clients that redis-py's ``Sentinel.master_for`` made.

    redis+sentinel://user:password@sentinel:26379,another:26379/service/db?option=…

What stands before the ``@`` and the options are for the data servers, as redis-py reads them. The
same options with ``sentinel_`` before them are for the sentinels (``sentinel_password=``).
``rediss+sentinel`` is TLS for both, with the certificates of both, unless the sentinels have their
own (``sentinel_ssl_ca_certs=``) or speak none (``sentinel_tls=no``).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import redis

from lockfast.errors import ConfigurationError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.sentinel import PORT, SentinelAddress

NOT_READ = (
    "redis+sentinel://user:password@host:port,host:port/service/db is one, where service is what "
    "Sentinel calls the master, and / ? # @ in a password are written as %2F %3F %23 %40; "
    "sentinel_username= and sentinel_password= are the sentinels' own"
)
_PLACE = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")
_PREFIX = "sentinel_"


def sentinels_of_url(url: str) -> SentinelAddress:
    parts = _split(url)
    path = re.fullmatch(r"/([^/]+)(?:/(\d*))?", parts.path)
    secret, _, hosts = parts.netloc.rpartition("@")
    waiters = [_PLACE.fullmatch(host) for host in hosts.split(",")]
    if path is None or parts.fragment or None in waiters:
        raise ConfigurationError(f"not a URL of Sentinel: {NOT_READ}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    scheme = parts.scheme.partition("+")[0]
    said = [(key, value) for key, value in options if not key.startswith(_PREFIX)]
    secret = f"{secret}@" if secret else ""
    servers = _read(f"{scheme}://{secret}localhost/{path[2] or 0}?{urlencode(said)}")
    asking = _asking(scheme, dict(options))
    sentinels = [
        Address(
            asking.connection_class,
            {
                **asking.connection_kwargs,
                "host": waiter[1] or waiter[2],
                "port": int(waiter[3] or PORT),
            },
            "sentinel",
        )
        for waiter in waiters
        if waiter is not None
    ]
    kind, words = servers.connection_class, dict(servers.connection_kwargs)
    return SentinelAddress(kind, words, sentinels, unquote(path[1]))


def sentinels_of_pool(pool: Any) -> SentinelAddress:
    """Those of a client's pool, of either colour."""
    if not pool.is_master:
        raise ConfigurationError(
            "a client of Sentinel's replicas cannot lock: use Sentinel.master_for()"
        )
    theirs = [client.connection_pool for client in pool.sentinel_manager.sentinels]
    sentinels = [
        Address(one.connection_class, dict(one.connection_kwargs), "sentinel") for one in theirs
    ]
    said = dict(pool.connection_kwargs)
    return SentinelAddress(pool.connection_class, said, sentinels, pool.service_name)


def _asking(scheme: str, options: dict[str, str]) -> redis.ConnectionPool:
    """How sentinels are spoken to."""
    own = {key[len(_PREFIX) :]: value for key, value in options.items() if key.startswith(_PREFIX)}
    if own.pop("tls", "yes") in ("no", "false", "0"):
        scheme = "redis"
    if scheme == "rediss":
        own = {key: value for key, value in options.items() if key.startswith("ssl_")} | own
    return _read(f"{scheme}://localhost?{urlencode(own)}")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        pass  # what was caught may quote a password
    raise ConfigurationError(f"not a URL of Sentinel: {NOT_READ}")


def _read(url: str) -> redis.ConnectionPool:
    """As redis-py reads it."""
    try:
        return redis.ConnectionPool.from_url(url)
    except (ValueError, TypeError) as error:
        said = str(error)
    # What redis-py says of an option names it and no more. All else may quote a password.
    hint = said if said.startswith("Invalid value for ") else NOT_READ
    raise ConfigurationError(f"not a URL of Sentinel: {hint}")
