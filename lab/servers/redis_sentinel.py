"""Three private Redis servers and three Sentinels; see `OwnServer`.

The sentinels know each other and the replicas from the beginning, so that they can fail over at
once; `speed_up` makes them check more often than once a second. With ``proxied``, clients, replicas
and sentinels all reach each Redis through a fault proxy, one of ``networks``, so that it can be cut
off from all others while it runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis

from lab.fault_proxy import FaultProxy
from lab.servers.certificates import make_certificates
from lab.servers.own_server import PATIENCE, OwnServer, _free_port
from lab.servers.redis_server import RedisServer, _no_retry

SERVICE = "mymaster"
SERVERS = 3
SERVER_OPTIONS = (
    "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5",
)  # fmt: skip
QUICK = {
    # A replica is promoted only if its INFO is at most five ping periods old, and INFO is requested
    # once a second at most: with a ping period below 200 no replica qualifies.
    "info-period": 500, "ask-period": 200, "ping-period": 300, "publish-period": 300,
    # A sentinel may stall on a busy machine: that must not count as a clock problem (TILT).
    "tilt-trigger": 20000, "tilt-period": 1000,
}  # fmt: skip


class Sentinel(OwnServer):
    """A sentinel that is not running until `start`. ``conf`` are the lines of its configuration
    file, which it rewrites."""

    PROGRAM = "redis-server"

    def __init__(self, conf: list[str], *, password: str | None, tls: bool) -> None:
        super().__init__()
        self.conf, self.password, self.tls = conf, password, tls

    def _prepare(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
        (folder / "sentinel.conf").write_text("\n".join(self.conf) + "\n")

    def _arguments(self, port: int) -> list[str]:
        (self.folder / "socket").unlink(missing_ok=True)  # left by a killed sentinel
        arguments = ["sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--unixsocket", "socket"]
        arguments += ["--logfile", str(self.folder / "log")]
        if not self.tls:
            return [*arguments, "--port", str(port)]
        arguments += ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
        arguments += ["--tls-ca-cert-file", "ca.pem", "--tls-cert-file", "server.pem"]
        return [*arguments, "--tls-key-file", "server.key"]

    def call(self, *command: str | int) -> Any:
        secret = f":{self.password}@" if self.password else ""
        url = f"unix://{secret}{self.folder}/socket"
        with redis.Redis.from_url(url, **_no_retry()) as client:
            return client.execute_command(*command)

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING"))
        except redis.ConnectionError:
            return False


class RedisSentinels:
    """A master, two replicas and three sentinels, not running until `start`. ``down_after`` is how
    long the master must be silent to count as down, in seconds. ``password`` is that of the
    servers, ``sentinel_password`` that of the sentinels."""

    def __init__(
        self,
        *,
        down_after: float = 1.0,
        failover_timeout: float = 2.0,
        proxied: bool = False,
        password: str | None = None,
        sentinel_password: str | None = None,
    ) -> None:
        self.down_after, self.failover_timeout = down_after, failover_timeout
        self.password, self.sentinel_password = password, sentinel_password
        self.servers = [RedisServer(password=password) for _ in range(SERVERS)]
        self.networks: list[FaultProxy] = []
        self.sentinels: list[Sentinel] = []
        self._proxied = proxied

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> Self:
        for server in self.servers:
            server._port = _free_port()
            if self._proxied:
                self.networks.append(FaultProxy(("127.0.0.1", server.port)))
        for number, server in enumerate(self.servers):
            arguments = list(SERVER_OPTIONS)
            if self.password:
                arguments += ["--masterauth", self.password]
            if self._proxied:
                arguments += ["--replica-announce-ip", "127.0.0.1"]
                arguments += ["--replica-announce-port", str(self.port_of(number))]
            if number:
                arguments += ["--replicaof", "127.0.0.1", str(self.port_of(0))]
            server.start(*arguments)
        self._start_sentinels()
        self.wait_until_whole()
        return self

    def _start_sentinels(self) -> None:
        ports = [_free_port() for _ in range(SERVERS)]
        names = [secrets.token_hex(20) for _ in ports]
        for number, port in enumerate(ports):
            conf = [
                f"sentinel myid {names[number]}",
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.port_of(0)} 2",
                f"sentinel down-after-milliseconds {SERVICE} {round(self.down_after * 1000)}",
                f"sentinel failover-timeout {SERVICE} {round(self.failover_timeout * 1000)}",
                f"sentinel parallel-syncs {SERVICE} {SERVERS}",
            ]
            if self.password:
                conf.append(f"sentinel auth-pass {SERVICE} {self.password}")
            if self.sentinel_password:
                conf.append(f"requirepass {self.sentinel_password}")
                conf.append(f"sentinel sentinel-pass {self.sentinel_password}")
            for other in range(1, SERVERS):
                conf.append(f"sentinel known-replica {SERVICE} 127.0.0.1 {self.port_of(other)}")
            for other, name in enumerate(names):
                if other != number:
                    known = f"127.0.0.1 {ports[other]} {name}"
                    conf.append(f"sentinel known-sentinel {SERVICE} {known}")
            sentinel = Sentinel(conf, password=self.sentinel_password, tls=False)
            sentinel._port = port
            self.sentinels.append(sentinel.start())
            self.speed_up(sentinel)

    def speed_up(self, sentinel: Sentinel) -> None:
        """Shorten a sentinel's periods, until it is restarted."""
        options = [str(each) for pair in QUICK.items() for each in pair]
        sentinel.call("SENTINEL", "DEBUG", *options)

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()
        for network in self.networks:
            network.close()

    # -- State ---------------------------------------------------------------------------------

    def port_of(self, number: int) -> int:
        """Return the port of a server, or of the proxy in front of it."""
        return self.networks[number].port if self._proxied else self.servers[number].port

    @property
    def url(self) -> str:
        return self.url_of([sentinel.port for sentinel in self.sentinels])

    def url_of(self, ports: list[int]) -> str:
        secret = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        query = f"?sentinel_password={self.sentinel_password}" if self.sentinel_password else ""
        return f"redis+sentinel://{secret}{hosts}/{SERVICE}/0{query}"

    @property
    def master(self) -> int:
        """The number of the master, according to the sentinels; -1 if they disagree."""
        seen = {
            int(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
            for sentinel in self.sentinels
            if sentinel.is_running
        }
        ports = [self.port_of(number) for number in range(SERVERS)]
        return ports.index(seen.pop()) if len(seen) == 1 else -1

    def call(self, *command: str | bytes | int | float) -> Any:
        """Execute one command at the master."""
        return self.servers[self.master].call(*command)

    def replicas_of(self, number: int) -> int:
        """Return the number of replicas that are connected to a server and in sync."""
        role = self.servers[number].call("ROLE")
        return len(role[2]) if role[0] == b"master" else 0

    def is_whole(self) -> bool:
        """Return True if one server is master, the others follow it, and all sentinels know it."""
        number = self.master
        if number < 0 or self.replicas_of(number) != SERVERS - 1:
            return False
        for sentinel in self.sentinels:
            facts = _facts(sentinel.call("SENTINEL", "MASTER", SERVICE))
            known = int(facts["num-slaves"]), int(facts["num-other-sentinels"])
            if known != (SERVERS - 1, SERVERS - 1) or facts["flags"] != "master":
                return False
        return self.replicates(number)

    def replicates(self, number: int) -> bool:
        """Return True if writes at a server arrive at the others. A replica counts as online while
        it still loads the first copy of the data, and gets no writes until it has."""
        with self.servers[number].client(single_connection_client=True) as client:
            client.set("arrives", "at all", px=1000)
            return bool(client.execute_command("WAIT", SERVERS - 1, 1000) == SERVERS - 1)

    def wait_until_whole(self) -> None:
        _until(self.is_whole, "one master with two replicas")

    def wait_for_new_master(self, old: int) -> int:
        """Wait until all sentinels know another master; return its number."""
        _until(lambda: self.master not in (-1, old), "another master")
        return self.master


def _facts(reply: Any) -> dict[str, str]:
    """Return a reply as a dict of strings, whatever type redis-py made of it."""
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    known = {}
    for key, value in reply.items():
        value = ",".join(sorted(value)) if isinstance(value, set | frozenset) else value
        pair = [each.decode() if isinstance(each, bytes) else str(each) for each in (key, value)]
        known[pair[0]] = pair[1]
    return known


def _until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if is_true():
                return
        except redis.ConnectionError:
            pass  # not yet
        assert time.monotonic() < until, f"not reached after {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)
