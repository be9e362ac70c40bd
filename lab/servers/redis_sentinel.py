"""Three Redis and three Sentinels of our own; see `OwnServer`.

The sentinels know of each other and of the replicas from the beginning, so that they can fail over
at once; `quick` makes them look more often than once a second. With ``proxied`` everybody (clients,
replicas, sentinels) reaches each Redis through a bad network of its own, ``networks``, so that one
of them can be cut off from all others while it runs.
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
from lab.servers.redis_server import RedisServer, _once

SERVICE = "mymaster"
SERVERS = 3
SERVER_WORDS = (
    "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5",
)  # fmt: skip
QUICK = {
    # Five times the ping period old may be what is known of a replica that is to take over, and
    # that is asked for once a second only: with less than 200 no replica is good enough.
    "info-period": 500, "ask-period": 200, "ping-period": 300, "publish-period": 300,
    # On a busy machine a sentinel may stand still: it need not think that its clock is wrong.
    "tilt-trigger": 20000, "tilt-period": 1000,
}  # fmt: skip


class Sentinel(OwnServer):
    """Not running until `start`. ``conf`` are lines of its file, which it rewrites."""

    PROGRAM = "redis-server"

    def __init__(self, conf: list[str], *, password: str | None, tls: bool) -> None:
        super().__init__()
        self.conf, self.password, self.tls = conf, password, tls

    def _furnish(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
        (folder / "sentinel.conf").write_text("\n".join(self.conf) + "\n")

    def _arguments(self, port: int) -> list[str]:
        (self.folder / "socket").unlink(missing_ok=True)  # of one that was killed
        words = ["sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--unixsocket", "socket"]
        words += ["--logfile", str(self.folder / "log")]
        if not self.tls:
            return [*words, "--port", str(port)]
        words += ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
        words += ["--tls-ca-cert-file", "ca.pem", "--tls-cert-file", "server.pem"]
        return [*words, "--tls-key-file", "server.key"]

    def call(self, *words: str | int) -> Any:
        secret = f":{self.password}@" if self.password else ""
        url = f"unix://{secret}{self.folder}/socket"
        with redis.Redis.from_url(url, **_once()) as client:
            return client.execute_command(*words)

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING"))
        except redis.ConnectionError:
            return False


class RedisSentinels:
    """``down_after`` is in seconds: so long must the master be silent to be taken for dead.
    ``password`` is that of the servers, ``sentinel_password`` that of the sentinels."""

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
            words = list(SERVER_WORDS)
            if self.password:
                words += ["--masterauth", self.password]
            if self._proxied:
                words += ["--replica-announce-ip", "127.0.0.1"]
                words += ["--replica-announce-port", str(self.port_of(number))]
            if number:
                words += ["--replicaof", "127.0.0.1", str(self.port_of(0))]
            server.start(*words)
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
            self.quick(sentinel)

    def quick(self, sentinel: Sentinel) -> None:
        """It forgets that when it is restarted."""
        words = [str(word) for pair in QUICK.items() for word in pair]
        sentinel.call("SENTINEL", "DEBUG", *words)

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()
        for network in self.networks:
            network.close()

    # -- Looking at it -------------------------------------------------------------------------

    def port_of(self, number: int) -> int:
        """The port at which everybody reaches this server."""
        return self.networks[number].port if self._proxied else self.servers[number].port

    @property
    def url(self) -> str:
        return self.url_of([sentinel.port for sentinel in self.sentinels])

    def url_of(self, ports: list[int]) -> str:
        secret = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        said = f"?sentinel_password={self.sentinel_password}" if self.sentinel_password else ""
        return f"redis+sentinel://{secret}{hosts}/{SERVICE}/0{said}"

    @property
    def master(self) -> int:
        """Which of the servers is the master, as the sentinels see it; -1: they do not agree."""
        seen = {
            int(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
            for sentinel in self.sentinels
            if sentinel.is_running
        }
        ports = [self.port_of(number) for number in range(SERVERS)]
        return ports.index(seen.pop()) if len(seen) == 1 else -1

    def call(self, *words: str | bytes | int | float) -> Any:
        """One command to the master."""
        return self.servers[self.master].call(*words)

    def replicas_of(self, number: int) -> int:
        """How many are connected to it as its replicas, and up to date."""
        role = self.servers[number].call("ROLE")
        return len(role[2]) if role[0] == b"master" else 0

    def is_whole(self) -> bool:
        """All servers run, one is master, the others follow it, and every sentinel knows all."""
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
        """What is written there arrives at the others. A replica counts as online while it still
        loads what it was sent, and is sent no more until it has."""
        with self.servers[number].client(single_connection_client=True) as client:
            client.set("arrives", "at all", px=1000)
            return bool(client.execute_command("WAIT", SERVERS - 1, 1000) == SERVERS - 1)

    def wait_until_whole(self) -> None:
        _until(self.is_whole, "one master with two replicas")

    def wait_for_another_than(self, number: int) -> int:
        """The new master, when all sentinels know it."""
        _until(lambda: self.master not in (-1, number), "another master")
        return self.master


def _facts(said: Any) -> dict[str, str]:
    """Whatever redis-py makes of it."""
    if isinstance(said, list):
        said = dict(zip(said[::2], said[1::2], strict=True))
    known = {}
    for key, value in said.items():
        value = ",".join(sorted(value)) if isinstance(value, set | frozenset) else value
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in (key, value)]
        known[words[0]] = words[1]
    return known


def _until(so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if so():
                return
        except redis.ConnectionError:
            pass  # not yet
        assert time.monotonic() < until, f"{what}: it never came to that"
        time.sleep(0.02)
