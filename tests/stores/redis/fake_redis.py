"""Fake Redis servers and sentinels with scripted replies, and the connections of a real server."""

from __future__ import annotations

import socket
import threading
from typing import Any

import hiredis

from both_apis import APIS, PATIENCE, Agent, Tasks, Threads, took, until

__all__ = [
    "APIS", "PATIENCE", "Agent", "FakeSentinel", "FakeServer", "Tasks", "Threads", "connections",
    "took", "until",
]  # fmt: skip


def connections(server: Any) -> list[dict[str, str]]:
    """Return the clients connected by TCP; the tests themselves use the unix socket."""
    return [client for client in server.call("CLIENT LIST") if client["addr"].startswith("127.")]


class FakeServer:
    """A server that completes the handshake and answers each further command as scripted.

    ``answers`` are bytes as they go over the wire, one for each command after the handshake; the
    last one is repeated. None closes the connection. A function is called with the socket.
    """

    HELLO = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.commands: list[list[bytes]] = []
        self.closed = 0
        self.accepted = 0
        self.in_use: set[socket.socket] = set()  # open, and sent a command after the handshake
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._ends.append(end)
            threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := end.recv(1 << 16):
                reader.feed(data)
                while command := reader.gets():
                    if not self._answer(end, command):
                        return
        except OSError:
            pass  # the client is gone
        finally:
            self.closed += 1
            self.in_use.discard(end)
            end.close()

    def _answer(self, end: socket.socket, command: list[bytes]) -> bool:
        known = {
            b"HELLO": self.HELLO,
            b"INFO": b"$0\r\n\r\n",
            b"SUBSCRIBE": b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
            b"PING": b"+PONG\r\n",
        }
        answer: Any = known.get(command[0])
        if answer is None:
            self.in_use.add(end)
            self.commands.append(command)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer(end)
        elif answer is not None:
            end.sendall(answer)
        return answer is not None

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already


class FakeSentinel(FakeServer):
    """A sentinel that reports the master at ``master_port``, as of ``epoch``."""

    def __init__(self, master_port: int, *, epoch: int = 1, others: tuple[int, ...] = ()) -> None:
        super().__init__(b"")
        self.master_port, self.epoch, self.others = master_port, epoch, others
        self.gone = False  # if set, every connection is closed at once

    def _answer(self, end: socket.socket, command: list[bytes]) -> bool:
        if self.gone:
            return False
        if command[0] != b"SENTINEL":
            return super()._answer(end, command)
        self.commands.append(command)
        if command[1] == b"GET-MASTER-ADDR-BY-NAME":
            end.sendall(_array("127.0.0.1", str(self.master_port)))
        elif command[1] == b"MASTER":
            end.sendall(_array("config-epoch", str(self.epoch), "num-slaves", "2"))
        else:
            known = [_array("ip", "127.0.0.1", "port", str(port)) for port in self.others]
            end.sendall(b"*%d\r\n" % len(known) + b"".join(known))
        return True


def _array(*items: str) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(
        b"$%d\r\n%b\r\n" % (len(item), item.encode()) for item in items
    )
