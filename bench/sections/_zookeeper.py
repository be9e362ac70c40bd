"""A ZooKeeper server for one section, with production settings: each write is forced to disk.

And a bare socket with just enough of ZooKeeper's protocol.
"""

from __future__ import annotations

import socket
import struct

from lab.servers.own_server import PATIENCE
from lab.servers.zookeeper_server import ZooKeeperServer

SESSION = 30.0  # seconds, for every client


class Server(ZooKeeperServer):
    """A ZooKeeper server that runs inside ``with``."""

    def __init__(self) -> None:
        super().__init__(tickTime=2000, minSessionTimeout=4000, forceSync="yes")

    @property
    def url(self) -> str:
        return url_of(self.port)

    def received(self) -> int:
        """Packets from clients so far: requests and pings."""
        return int(self.counters()["packets_received"])

    def connections(self) -> int:
        """Open connections, without the one that asks."""
        return int(self.counters()["num_alive_connections"]) - 1


def url_of(port: int) -> str:
    return f"zookeeper://127.0.0.1:{port}?session_timeout={SESSION:g}"


# ---- a bare socket ------------------------------------------------------------------------------

CREATE, DELETE, EXISTS, CLOSE = 1, 2, 3, -11
EPHEMERAL = 1
EVENT = -1  # the number of a packet that answers no request: a watch was triggered
ANYBODY = struct.pack(">ii", 1, 31) + b"\0\0\0\5world" + b"\0\0\0\6anyone"


class Bare:
    """A session on a blocking socket and nothing else: the limit for a client in Python."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = struct.pack(">iqiqi16s?", 0, 0, int(SESSION * 1000), 0, 16, bytes(16), False)
        self.socket.sendall(_framed(hello))
        self.events: list[bytes] = []
        self.receive()

    def receive(self) -> bytes:
        """Read one packet."""
        head = self._exactly(4)
        return self._exactly(*struct.unpack(">i", head))

    def ask(self, request: bytes) -> int:
        """Send a request and return the error code of its reply, or 0. Events are kept."""
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
        """Close the session too, so that watchers of its nodes need not wait for the time-out."""
        self.socket.sendall(_framed(struct.pack(">ii", 1, CLOSE)))
        self.receive()
        self.socket.close()


def create(path: str, *, flags: int = EPHEMERAL) -> bytes:
    """Encode a request. Its number is always 1: there is one request at a time."""
    body = _text(path) + _text("") + ANYBODY + struct.pack(">i", flags)
    return _framed(struct.pack(">ii", 1, CREATE) + body)


def delete(path: str) -> bytes:
    return _framed(struct.pack(">ii", 1, DELETE) + _text(path) + struct.pack(">i", -1))


def watch(path: str) -> bytes:
    """Encode a request for existence that also sets a watch."""
    return _framed(struct.pack(">ii", 1, EXISTS) + _text(path) + struct.pack(">?", True))


def _framed(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()
