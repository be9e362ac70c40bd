"""Is this ZooKeeper fit for locks? Each server of the URL is asked for itself (``srvr``), and what
the session was granted is compared with what was asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from kazoo.security import OPEN_ACL_UNSAFE

from lockfast.stores.health_checks import HealthCheck, bad, note, ok, version_of, warn
from lockfast.stores.zookeeper.session import Address

BUDGET = 2.0
LEAST_VERSION = (3, 5, 3)
PORT = 2181
MOST = 65536
TOLERANCE = 0.05


def health_checks(address: Address, agreed: float) -> Iterator[HealthCheck]:
    """``agreed`` is the time-out that the session was granted."""
    servers = {host: srvr(*_waiter(host)) for host in address.hosts.split(",")}
    yield _version(servers)
    yield from _ensemble(servers)
    yield _timeout(address.timeout, agreed)
    if list(address.acl) == list(OPEN_ACL_UNSAFE):
        yield note(
            "rights",
            "nodes are open to everybody who reaches the servers, who can break any lock",
            "give a user in the URL (zookeeper://user:password@host), or keep the network closed",
        )


def _version(servers: dict[str, dict[str, str]]) -> HealthCheck:
    versions = sorted({said["version"] for said in servers.values() if "version" in said})
    if not versions:
        return note(
            "version",
            "no server tells it (srvr is not allowed, or they speak TLS)",
            "4lw.commands.whitelist=srvr",
        )
    text = ", ".join(versions)
    if version_of(versions[0]) < LEAST_VERSION:
        return bad("version", f"ZooKeeper {text}", "update it: 3.5.3 or later")
    return ok("version", f"ZooKeeper {text}")


def _ensemble(servers: dict[str, dict[str, str]]) -> Iterator[HealthCheck]:
    modes = {host: said.get("mode", "") for host, said in servers.items()}
    away = sorted(host for host, said in servers.items() if "away" in said)
    if away:
        yield warn(
            "servers",
            f"{', '.join(away)} cannot be reached from here",
            "bring it back, or take it out of the URL: who tries it first loses time",
        )
    if "standalone" in modes.values():
        yield warn(
            "servers",
            "one server alone: while it is away nobody can take a lock",
            "run three, or five",
        )
    elif len(servers) == 1 and any(modes.values()):
        yield warn(
            "servers",
            "the URL names one server of several: while that one is away we cannot reach the "
            "others",
            "name all of them: zookeeper://h1:2181,h2:2181,h3:2181",
        )
    elif not away and len(servers) > 1:
        count = len(servers)
        if count % 2:
            yield ok("servers", f"all {count} of the URL answer")
        else:
            yield note(
                "servers",
                f"all {count} of the URL answer; an even number survives the loss of "
                f"{count // 2 - 1}, as {count - 1} would",
            )


def _timeout(asked: float, agreed: float) -> HealthCheck:
    found = f"{agreed:g} s, as asked for"
    if abs(agreed - asked) > asked * TOLERANCE:
        return warn(
            "session",
            f"the servers gave {agreed:.1f} s for a session, not the {asked:g} s that were asked "
            "for: so long a dead holder keeps its locks",
            "set minSessionTimeout and maxSessionTimeout of the servers (2 and 20 ticks if not "
            "set), or session_timeout= in the URL",
        )
    return ok("session", found)


def srvr(host: str, port: int) -> dict[str, str]:
    """What a server says of itself: ``version`` and ``mode``; ``away`` if nobody is there."""
    try:
        with socket.create_connection((host, port), BUDGET) as server:
            server.settimeout(BUDGET)
            server.sendall(b"srvr")
            text = b""
            while len(text) < MOST and (more := server.recv(4096)):
                text += more
    except OSError as error:
        return {"away": str(error)}
    said: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines():
        word, colon, rest = line.partition(": ")
        if colon and word == "Zookeeper version":
            said["version"] = rest.split("-")[0].split(",")[0]
        elif colon and word == "Mode":
            said["mode"] = rest.strip()
    return said


def _waiter(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    if not name or not port.isdigit():
        return host.strip("[]"), PORT
    return name.strip("[]"), int(port)
