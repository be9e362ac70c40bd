"""The sentinels in a URL, or in a client that redis-py's ``Sentinel.master_for`` made.

    redis+sentinel://user:password@sentinel:26379,another:26379/service/db?option=…

The credentials and the options are for the data servers, as redis-py reads them. Options with the
prefix ``sentinel_`` are for the sentinels (``sentinel_password=``). ``rediss+sentinel`` uses TLS
for both, with the same certificates, unless the sentinels have their own
(``sentinel_ssl_ca_certs=``) or do not use TLS (``sentinel_tls=no``).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import redis

from lockfast.errors import ConfigurationError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.sentinel import PORT, SentinelAddress

EXPECTED = (
    "expected redis+sentinel://user:password@host:port,host:port/service/db, where service is "
    "Sentinel's name for the master, and / ? # @ in a password are written as %2F %3F %23 %40; "
    "sentinel_username= and sentinel_password= are the sentinels' own"
)
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")
_PREFIX = "sentinel_"


def sentinels_of_url(url: str) -> SentinelAddress:
    parts = _split(url)
    path = re.fullmatch(r"/([^/]+)(?:/(\d*))?", parts.path)
    secret, _, hosts = parts.netloc.rpartition("@")
    matches = [_HOST.fullmatch(host) for host in hosts.split(",")]
    if path is None or parts.fragment or None in matches:
        raise ConfigurationError(f"not a URL of Sentinel: {EXPECTED}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    scheme = parts.scheme.partition("+")[0]
    theirs = [(key, value) for key, value in options if not key.startswith(_PREFIX)]
    secret = f"{secret}@" if secret else ""
    servers = _read(f"{scheme}://{secret}localhost/{path[2] or 0}?{urlencode(theirs)}")
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
    return _read(f"{scheme}://localhost?{urlencode(own)}")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        pass  # its message may quote a password
    raise ConfigurationError(f"not a URL of Sentinel: {EXPECTED}")


def _read(url: str) -> redis.ConnectionPool:
    """Parse a URL as redis-py does."""
    try:
        return redis.ConnectionPool.from_url(url)
    except (ValueError, TypeError) as error:
        message = str(error)
    # redis-py's message about an option contains only its name. Others may quote a password.
    hint = message if message.startswith("Invalid value for ") else EXPECTED
    raise ConfigurationError(f"not a URL of Sentinel: {hint}")
