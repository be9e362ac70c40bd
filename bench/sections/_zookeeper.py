"""A ZooKeeper of our own for a section: in a temporary folder, on a free port of loopback, with the
settings that servers have (each write is forced to disk); ended by its pid. And what of it the
ZooKeeper sections share: a bare socket that speaks just enough of its protocol."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 20.0  # seconds it may take to start on a busy machine
ATTEMPTS = 10
SESSION = 30.0  # seconds, as everybody is told
JARS = ("zookeeper.jar", "slf4j-api.jar", "slf4j-nop.jar")
JAVA = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true")
SETTINGS = {
    "tickTime": "2000",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "clientPortAddress": "127.0.0.1",
}


class Server:
    """Runs between ``with`` and its end."""

    def __enter__(self) -> Self:
        jars = [Path("/usr/share/java", jar) for jar in JARS]
        java = shutil.which("java")
        if java is None or not all(jar.exists() for jar in jars):
            raise RuntimeError("no ZooKeeper on this machine: lab/lab/servers/ensure installs it")
        self.folder = tempfile.mkdtemp(prefix="lockfast-bench-")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [java, *JAVA, "-cp", ":".join(map(str, jars)), main, f"{self.folder}/zoo.cfg"]
        for _ in range(ATTEMPTS):
            self.port = _free_port()
            settings = SETTINGS | {"clientPort": str(self.port), "dataDir": f"{self.folder}/data"}
            lines = [f"{name}={value}\n" for name, value in settings.items()]
            Path(self.folder, "zoo.cfg").write_text("".join(lines))
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True
            )
            if self._answers():
                return self
            self._end()  # somebody was faster to take the port
        shutil.rmtree(self.folder, ignore_errors=True)
        raise RuntimeError("ZooKeeper does not start")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return url_of(self.port)

    def received(self) -> int:
        """How many packets came from clients until now: requests, and signs of life."""
        return self._counter("packets_received")

    def connections(self) -> int:
        """Everybody's, but for ours that asks."""
        return self._counter("num_alive_connections") - 1

    def _counter(self, name: str) -> int:
        pairs = [line.split("\t") for line in self._say("mntr").splitlines()]
        return int(float(next(pair[1] for pair in pairs if pair[0] == f"zk_{name}")))

    def _say(self, word: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as wire:
            wire.sendall(word.encode())
            answer = b""
            while piece := wire.recv(1 << 16):
                answer += piece
        return answer.decode()

    def _answers(self) -> bool:
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            try:
                if f"{self.folder}/data" in self._say("conf"):  # ours, not another's on this port
                    return True
            except OSError:
                pass  # not yet
            time.sleep(0.02)
        return False

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


def url_of(port: int) -> str:
    return f"zookeeper://127.0.0.1:{port}?session_timeout={SESSION:g}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- a bare socket ------------------------------------------------------------------------------

CREATE, DELETE, EXISTS, CLOSE = 1, 2, 3, -11
EPHEMERAL = 1
EVENT = -1  # the number of an answer that nobody asked for: a watch was triggered
ANYBODY = struct.pack(">ii", 1, 31) + b"\0\0\0\5world" + b"\0\0\0\6anyone"


class Bare:
    """A session on a blocking socket, and nothing else: the limit of what a client can do."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = struct.pack(">iqiqi16s?", 0, 0, int(SESSION * 1000), 0, 16, bytes(16), False)
        self.socket.sendall(_framed(hello))
        self.events: list[bytes] = []
        self.receive()

    def receive(self) -> bytes:
        """One packet, whatever it says."""
        head = self._exactly(4)
        return self._exactly(*struct.unpack(">i", head))

    def ask(self, request: bytes) -> int:
        """Send it and wait for its answer: the error, 0 if there is none. Events are kept."""
        self.socket.sendall(request)
        while True:
            answer = self.receive()
            number, _zxid, error = struct.unpack_from(">iqi", answer)
            if number != EVENT:
                return int(error)
            self.events.append(answer)

    def wait_for_event(self) -> None:
        if not self.events:
            self.events.append(self.receive())
        self.events.pop()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("ZooKeeper closed a connection of the benchmark")
            data += piece
        return data

    def close(self) -> None:
        """And the session with it: whoever watches a node of ours must not wait for its end."""
        self.socket.sendall(_framed(struct.pack(">ii", 1, CLOSE)))
        self.receive()
        self.socket.close()


def create(path: str, *, flags: int = EPHEMERAL) -> bytes:
    """A request, as the wire writes it. Its number is always 1: one at a time is asked."""
    said = _text(path) + _text("") + ANYBODY + struct.pack(">i", flags)
    return _framed(struct.pack(">ii", 1, CREATE) + said)


def delete(path: str) -> bytes:
    return _framed(struct.pack(">ii", 1, DELETE) + _text(path) + struct.pack(">i", -1))


def watch(path: str) -> bytes:
    """Is it there? And tell when that changes."""
    return _framed(struct.pack(">ii", 1, EXISTS) + _text(path) + struct.pack(">?", True))


def _framed(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()
