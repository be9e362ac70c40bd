"""A private ZooKeeper server, and ensembles of them; see `OwnServer`.

Acknowledged writes survive SIGKILL, not a power cut. A tick is 0.2 s, so a session ends within
0.2 s after its time-out, and may be as short as 0.4 s. The server has no unix socket: it is
recognized as ours by the data directory that it reports.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any, Self

from kazoo.client import KazooClient

from lab.servers import own_server
from lab.servers.certificates import make_certificates
from lab.servers.own_server import ATTEMPTS, PATIENCE, OwnServer
from lab.servers.programs import program

JARS = ("zookeeper.jar", "slf4j-api.jar", "slf4j-simple.jar")
TICK = 0.2
SETTINGS: dict[str, object] = {
    "tickTime": round(TICK * 1000),
    "minSessionTimeout": 400,
    "maxSessionTimeout": 60000,  # the default is 20 ticks
    "maxClientCnxns": 0,  # no limit: all clients connect from one address
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "forceSync": "no",
    "initLimit": 50,
    "syncLimit": 10,
}
# Further jars for TLS; Debian's zookeeper.jar refers to the others itself.
TLS_JARS = ("netty-codec.jar", "netty-resolver.jar", "netty-transport-native-unix-common.jar")
JAVA = [
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # KiB preallocated for each new transaction log: the default, 64 MiB, is written each time.
    "-Dzookeeper.preAllocSize=64",
]


class ZooKeeperServer(OwnServer):
    """One server, not running until `start`.

    ``settings`` are lines of zoo.cfg; a dot in a name is written ``__``. ``tls`` adds a TLS port,
    with optional (``"none"``) or required (``"need"``) client certificates; the certificates are in
    the server's folder.
    """

    PROGRAM = "java"

    def __init__(self, *, tls: str = "", **settings: object) -> None:
        super().__init__()
        self.tls = tls
        self.tls_port = 0
        self.settings = SETTINGS | {key.replace("__", "."): v for key, v in settings.items()}

    # -- Access --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"zookeeper://{self.host}"

    @property
    def host(self) -> str:
        """The address as kazoo expects it: ``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"zookeeper+tls://127.0.0.1:{self.tls_port}"

    def client(self, **options: Any) -> KazooClient:
        """A connected kazoo client for set-up and assertions. The caller stops and closes it."""
        return started(self.host, **options)

    def command(self, name: str, *, timeout: float = PATIENCE) -> str:
        """The answer to a four-letter command (``mntr``). Raises OSError if the server is down."""
        return _send_command(self.port, name, timeout)

    def counters(self) -> dict[str, str]:
        """The values of ``mntr``, without the prefix ``zk_``."""
        pairs = [line.split("\t") for line in self.command("mntr").splitlines()]
        return {pair[0].removeprefix("zk_"): pair[1] for pair in pairs if len(pair) == 2}

    @property
    def mode(self) -> str:
        """``standalone``, ``leader`` or ``follower``; empty if the server does not serve now."""
        try:
            lines = self.command("srvr", timeout=1.0).splitlines()
        except OSError:
            return ""
        modes = [line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")]
        return modes[0] if modes else ""

    # -- Inside --------------------------------------------------------------------------------

    def _prepare(self, folder: Path) -> None:
        (folder / "data").mkdir()
        if self.tls:
            make_certificates(folder)
            pair = (folder / "server.key").read_text() + (folder / "server.pem").read_text()
            (folder / "pair.pem").write_text(pair)

    def _arguments(self, port: int) -> list[str]:
        self._chosen_port = port
        names = (*JARS, *TLS_JARS) if self.tls else JARS
        jars = [program(jar) for jar in names]
        assert all(jars), f"missing one of {', '.join(names)}: lab/servers/ensure installs them"
        settings = self.settings | {
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "dataDir": f"{self.folder}/data",
            "dataLogDir": f"{self.folder}/data",
        }
        if self.tls:
            self.tls_port = own_server._free_port()
            settings |= {
                "secureClientPort": self.tls_port,
                "secureClientPortAddress": "127.0.0.1",
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": f"{self.folder}/pair.pem",
                "ssl.trustStore.location": f"{self.folder}/ca.pem",
                "ssl.clientAuth": self.tls,
            }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.folder / "zoo.cfg").write_text("".join(lines))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [*JAVA, "-cp", ":".join(map(str, jars)), main, "./zoo.cfg"]

    def _answers(self) -> bool:
        return self._serves()

    def _serves(self) -> bool:
        try:
            return f"dataDir={self.folder}/data/" in _send_command(self._chosen_port, "conf", 1.0)
        except OSError:
            return False

    def _shut_down(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _remove_data(self) -> None:
        shutil.rmtree(self.folder / "data")
        self._prepare(self.folder)


class _Voter(ZooKeeperServer):
    """One server of an ensemble. It counts as started when it listens: it serves only while a
    majority runs."""

    def __init__(self, number: int, port: int, settings: dict[str, object]) -> None:
        super().__init__()
        self.number = number
        self.settings |= settings
        self._port = port

    def _prepare(self, folder: Path) -> None:
        super()._prepare(folder)
        (folder / "data" / "myid").write_text(f"{self.number}\n")

    def _answers(self) -> bool:
        try:
            return _send_command(self._chosen_port, "ruok", 1.0) == "imok"
        except OSError:
            return False


class ZooKeepers:
    """An ensemble of ``number`` servers, not running until `start`."""

    def __init__(self, number: int = 3, **settings: object) -> None:
        self._number = number
        self._settings = ZooKeeperServer(**settings).settings  # type: ignore[arg-type]
        self.nodes: list[ZooKeeperServer] = []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start all servers, and wait until all serve."""
        assert not self.nodes, "the ensemble runs already"
        for _ in range(ATTEMPTS):
            self.nodes = self._new_nodes()
            try:
                for node in self.nodes:
                    node.start()
                self.settle()
                return self
            except (RuntimeError, AssertionError) as error:  # a port may have been taken
                problem = error
                self.stop()
        raise RuntimeError("the ensemble does not start") from problem

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self.nodes = []

    def leader(self) -> ZooKeeperServer:
        """The leader; waits for an election that is under way."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for node in self.nodes:
                if node.is_running and node.mode in ("leader", "standalone"):
                    return node
            time.sleep(0.02)
        raise AssertionError("no leader was elected")

    def followers(self) -> list[ZooKeeperServer]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def settle(self) -> None:
        """Wait until all running servers serve, one of them as the leader."""
        until = time.monotonic() + PATIENCE
        for node in self.nodes:
            while node.is_running and not node._serves():
                assert time.monotonic() < until, f"node {node.port} does not serve: {node.log}"
                time.sleep(0.02)
        self.leader()

    @property
    def url(self) -> str:
        return f"zookeeper://{self.hosts}"

    @property
    def hosts(self) -> str:
        return ",".join(node.host for node in self.nodes)

    def client(self, **options: Any) -> KazooClient:
        """A connected kazoo client of the ensemble. The caller stops and closes it."""
        return started(self.hosts, **options)

    def command(self, name: str) -> str:
        """The leader's answer to a four-letter command."""
        return self.leader().command(name)

    def _new_nodes(self) -> list[ZooKeeperServer]:
        if self._number == 1:
            single = ZooKeeperServer()
            single.settings = dict(self._settings)
            return [single]
        ports: dict[int, None] = {}  # no two the same
        while len(ports) < 3 * self._number:
            ports[own_server._free_port()] = None
        threes = list(zip(*[iter(ports)] * 3, strict=True))
        votes: dict[str, object] = {
            f"server.{number}": f"127.0.0.1:{data}:{vote}"
            for number, (_client, data, vote) in enumerate(threes, 1)
        }
        return [
            _Voter(number, client, self._settings | votes)
            for number, (client, _data, _vote) in enumerate(threes, 1)
        ]


def started(hosts: str, **options: Any) -> KazooClient:
    client = KazooClient(hosts, **{"timeout": 10.0} | options)
    client.start(PATIENCE)
    return client


def _send_command(port: int, name: str, timeout: float) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout) as wire:
        wire.settimeout(timeout)
        wire.sendall(name.encode())
        answer = b""
        while piece := wire.recv(65536):
            answer += piece
    return answer.decode()
