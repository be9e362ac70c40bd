"""Health checks of ZooKeeper: version, ensemble, session time-out (granted and requested) and ACL.
Each server of the URL is queried separately, by ``srvr``."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from kazoo.security import OPEN_ACL_UNSAFE

from lockfast.stores.health_checks import HealthCheck, bad, note, ok, version_of, warn
from lockfast.stores.zookeeper.session import Address

BUDGET = 2.0
MIN_VERSION = (3, 5, 3)
PORT = 2181
MAX_REPLY = 65536
TOLERANCE = 0.05


def health_checks(address: Address, agreed: float) -> Iterator[HealthCheck]:
    """Check the servers; ``agreed`` is the time-out that they granted the session."""
    servers = {host: srvr(*_host_and_port(host)) for host in address.hosts.split(",")}
    yield _version(servers)
    yield from _ensemble(servers)
    yield _timeout(address.timeout, agreed)
    if list(address.acl) == list(OPEN_ACL_UNSAFE):
        yield note(
            "rights",
            "nodes are open to every client that reaches the servers: it can break any lock",
            "name a user in the URL (zookeeper://user:password@host), or keep the network closed",
        )


def _version(servers: dict[str, dict[str, str]]) -> HealthCheck:
    versions = sorted({reply["version"] for reply in servers.values() if "version" in reply})
    if not versions:
        return note(
            "version",
            "no server reports it (srvr is not allowed, or the servers use TLS)",
            "4lw.commands.whitelist=srvr",
        )
    text = ", ".join(versions)
    if version_of(versions[0]) < MIN_VERSION:
        return bad("version", f"ZooKeeper {text}", "update it: 3.5.3 or later")
    return ok("version", f"ZooKeeper {text}")


def _ensemble(servers: dict[str, dict[str, str]]) -> Iterator[HealthCheck]:
    modes = {host: reply.get("mode", "") for host, reply in servers.items()}
    away = sorted(host for host, reply in servers.items() if "away" in reply)
    if away:
        yield warn(
            "servers",
            f"{', '.join(away)} cannot be reached from here",
            "start it again, or remove it from the URL: a client that tries it first loses time",
        )
    if "standalone" in modes.values():
        yield warn(
            "servers",
            "one server alone: while it is down, no lock can be acquired",
            "run three servers, or five",
        )
    elif len(servers) == 1 and any(modes.values()):
        yield warn(
            "servers",
            "the URL names one server of an ensemble: while that one is down, the client cannot "
            "reach the others",
            "name all of them: zookeeper://h1:2181,h2:2181,h3:2181",
        )
    elif not away and len(servers) > 1:
        count = len(servers)
        if count % 2:
            yield ok("servers", f"all {count} servers of the URL answer")
        else:
            yield note(
                "servers",
                f"all {count} servers of the URL answer; {count} survive the loss of "
                f"{count // 2 - 1}, and so would {count - 1}",
            )


def _timeout(asked: float, agreed: float) -> HealthCheck:
    if abs(agreed - asked) > asked * TOLERANCE:
        return warn(
            "session",
            f"the servers gave {agreed:.1f} s as the session time-out, not the requested "
            f"{asked:g} s: a dead holder keeps its locks that long",
            "set minSessionTimeout and maxSessionTimeout of the servers (default: 2 and 20 ticks), "
            "or session_timeout= in the URL",
        )
    return ok("session", f"{agreed:g} s, as requested")


def srvr(host: str, port: int) -> dict[str, str]:
    """The ``version`` and ``mode`` that a server reports; ``away`` if it is not reachable."""
    try:
        with socket.create_connection((host, port), BUDGET) as server:
            server.settimeout(BUDGET)
            server.sendall(b"srvr")
            text = b""
            while len(text) < MAX_REPLY and (more := server.recv(4096)):
                text += more
    except OSError as error:
        return {"away": str(error)}
    reply: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines():
        key, colon, value = line.partition(": ")
        if colon and key == "Zookeeper version":
            reply["version"] = value.split("-")[0].split(",")[0]
        elif colon and key == "Mode":
            reply["mode"] = value.strip()
    return reply


def _host_and_port(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    if not name or not port.isdigit():
        return host.strip("[]"), PORT
    return name.strip("[]"), int(port)
