"""The two ends of a fault proxy: a server that is driven by the test, and checks on sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable

PATIENCE = 30.0  # for data that must arrive; no test measures it
A_WHILE = 0.06  # for data that must not arrive: hundreds of times its normal delay
RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"  # for SO_LINGER


class Server:
    """A listening socket whose test reads and writes each connection: no dependence on timing."""

    def __init__(self, family: int = socket.AF_INET, address: object = ("127.0.0.1", 0)) -> None:
        self.listener = socket.socket(family)
        self.listener.bind(address)
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.peers: list[socket.socket] = []

    def accept(self) -> socket.socket:
        peer, _ = self.listener.accept()
        peer.settimeout(PATIENCE)
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        for end in (*self.peers, self.listener):
            end.close()


def read(end: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (piece := end.recv(count - len(got))):
        got += piece
    return bytes(got)


def is_silent(end: socket.socket) -> bool:
    """Return True if nothing arrives, neither bytes nor the end of the connection."""
    end.settimeout(A_WHILE)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        end.settimeout(PATIENCE)
    return False


def is_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b"never"
    except ConnectionResetError:
        return True


def exchanges(client: socket.socket, server: socket.socket) -> bool:
    client.sendall(b"there")
    there = read(server, 5)
    server.sendall(b"back")
    return (there, read(client, 4)) == (b"there", b"back")


def is_turned_away(connect: Callable[[], socket.socket]) -> bool:
    """Return True if a new connection is reset at once: in connect, or at the first read."""
    try:
        with connect() as end:
            return is_reset(end)
    except ConnectionResetError:
        return True
