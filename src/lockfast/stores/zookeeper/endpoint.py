"""The opened store, from a URL or from a kazoo client."""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from lockfast import clock, forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.zookeeper.nodes import ROOT
from lockfast.stores.zookeeper.registry import Registry
from lockfast.stores.zookeeper.store import ZooKeeperStore

try:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
except ImportError as missing:
    raise ConfigurationError(
        f"ZooKeeper needs a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[zookeeper]'"
    ) from None

from lockfast.stores.zookeeper.kazoo_connection import settings_of
from lockfast.stores.zookeeper.session import Address, Session

# Seconds: long enough to survive a pause of the process or an election of the servers, short enough
# to wait for after a crash. A server with its default tick of 2 s grants from 4 to 40.
DEFAULT_TIMEOUT = 10.0
MIN_TIMEOUT, MAX_TIMEOUT = 0.1, 3600.0
OPTIONS = ("session_timeout", "acl")
TLS_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")
ACLS: dict[str, Any] = {"open": OPEN_ACL_UNSAFE, "creator": CREATOR_ALL_ACL}
URL_SYNTAX = (
    "write zookeeper://user:password@host1:2181,host2:2181/chroot, with @ : / ? # % in a password "
    "as %40 %3A %2F %3F %23 %25"
)


class ZooKeeperEndpoint(Endpoint):
    """The store of one client: one ensemble, one session."""

    def __init__(self, address: Address) -> None:
        self.url = address.where
        self._session = Session(address)
        self._registry = Registry(self._session, f"{address.chroot}/{ROOT}", clock.now)
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> ZooKeeperStore:
        return ZooKeeperStore(self._registry, signal(), self.close, suspends=False)

    def tasks(self, signal: Callable[[], Signal]) -> ZooKeeperStore:
        return ZooKeeperStore(self._registry, signal(), self.close, suspends=True)

    def close(self) -> None:
        """End the session, and with it all holds. A later call opens another."""
        self._registry.sweep(everything=True)
        self._session.close()

    def health_checks(self) -> Iterator[HealthCheck]:
        from lockfast.stores.zookeeper.health import health_checks  # only `doctor` needs it

        return health_checks(self._session.address, self._session.timeout)

    def after_fork_in_child(self) -> None:
        self._session.after_fork_in_child()
        self._registry.after_fork_in_child()


def open_zookeeper(url: str) -> ZooKeeperEndpoint:
    """Open ``zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]``, with the options
    ``session_timeout`` and ``acl``; ``zookeeper+tls://`` takes the ``ssl_`` options as well."""
    match = re.fullmatch(
        r"(zookeeper(?:\+tls)?)://(?:([^@/?#]*)@)?([^@/?#]+)(/[^?#]*)?(?:\?([^#]*))?", url
    )
    if match is None:
        raise ConfigurationError(f"not a ZooKeeper URL: {URL_SYNTAX}")
    scheme, user, hosts, path, query = match.groups()
    tls = scheme != "zookeeper"
    chroot = _chroot(unquote(path or ""))
    _check_hosts(hosts, shown="@" not in url)  # a part of a password may be taken for a host
    options = dict(parse_qsl(query or "", keep_blank_values=True))
    _check_options(options, (*OPTIONS, *TLS_OPTIONS) if tls else OPTIONS)
    auth = _auth(user)
    acl = options.get("acl", "creator" if auth else "open")
    if acl not in ACLS or (acl == "creator" and not auth):
        raise ConfigurationError(
            f"acl={acl!r}: use open, or creator, which needs a user in the URL"
        )
    address = Address(
        f"{scheme}://{hosts}{chroot}",
        hosts,
        chroot,
        _timeout(options.get("session_timeout")),
        ({"auth_data": auth} if auth else {}) | (_tls(options) if tls else {}),
        tuple(ACLS[acl]),
    )
    return ZooKeeperEndpoint(address)


def open_kazoo_client(client: Any) -> ZooKeeperEndpoint:
    """Open the servers of an existing kazoo client, in a session of our own.

    The hosts, chroot, time-out, credentials, ACL and TLS settings are the client's. Its session is
    not used: it is not ours to end, its granted time-out is unknown, and it is lost in a fork.
    """
    if not isinstance(client, KazooClient):
        raise ConfigurationError(f"{type(client).__name__} is not a ZooKeeper client")
    if not isinstance(client.handler, SequentialThreadingHandler):
        raise ConfigurationError(
            f"a kazoo client with {type(client.handler).__name__} is not supported: use kazoo's "
            "default handler, SequentialThreadingHandler"
        )
    hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in client.hosts)
    timeout, options = settings_of(client)
    scheme = "zookeeper+tls" if client.use_ssl else "zookeeper"
    address = Address(
        f"{scheme}://{hosts}{client.chroot}",
        hosts,
        client.chroot,
        timeout,
        options,
        tuple(client.default_acl or OPEN_ACL_UNSAFE),
    )
    return ZooKeeperEndpoint(address)


def _check_options(options: dict[str, str], known: tuple[str, ...]) -> None:
    for option in options:
        if option in known:
            continue
        similar = difflib.get_close_matches(option, known, 1)
        hint = f"did you mean {similar[0]}=?" if similar else f"there are {', '.join(known)}"
        if option in TLS_OPTIONS:
            hint = "it is for zookeeper+tls://"
        raise ConfigurationError(f"a ZooKeeper URL has no option {option!r}: {hint}")


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """The TLS arguments of `KazooClient`. Files are read now, because kazoo would retry silently.
    The server's name is checked by default, which kazoo does only on request."""
    ca, cert, key = (options.get(option) for option in TLS_OPTIONS[:3])
    checks = options.get("ssl_check_hostname", "true")
    if checks not in ("true", "false"):
        raise ConfigurationError(f"ssl_check_hostname={checks!r}: use true or false")
    if key and not cert:
        raise ConfigurationError("ssl_key= needs the certificate of the key: give ssl_cert=, too")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:  # also ssl.SSLError
        files = ", ".join(f"{name}={options[name]!r}" for name in TLS_OPTIONS if name in options)
        raise ConfigurationError(f"{files}: cannot be used as certificates ({error})") from None
    return {
        "use_ssl": True,
        "ca": ca,
        "certfile": cert,
        "keyfile": key or cert,
        "check_hostname": checks == "true",
    }


def _chroot(path: str) -> str:
    parts = path.strip("/").split("/")
    if parts == [""]:
        return ""
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ConfigurationError(f"{path!r} is not a path that ZooKeeper accepts")
    return "/" + "/".join(parts)


def _check_hosts(hosts: str, *, shown: bool) -> None:
    for host in hosts.split(","):
        match = re.fullmatch(r"(?:[^:\[\]\s]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?", host)
        if match is None or not 0 < int(match[1] or 2181) < 65536:
            what = repr(host) if shown else "a host in the URL"
            raise ConfigurationError(f"{what} is not a valid host:port: {URL_SYNTAX}")


def _auth(user: str | None) -> list[tuple[str, str]]:
    if user is None:
        return []
    name, colon, password = user.partition(":")
    if not name or not colon or not password:
        raise ConfigurationError(f"a user needs a name and a password: {URL_SYNTAX}")
    return [("digest", f"{unquote(name)}:{unquote(password)}")]


def _timeout(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        raise ConfigurationError(
            f"session_timeout={text!r}: use a number of seconds from {MIN_TIMEOUT:g} to "
            f"{MAX_TIMEOUT:g}"
        )
    return seconds
