"""The two ends of a bad network: a server that does only what it is told, and what they see."""

from __future__ import annotations

import socket
from collections.abc import Callable

PATIENCE = 30.0  # for what must come; nothing is measured by it
A_WHILE = 0.06  # for what must not come: hundreds of times what it would take
RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"  # for SO_LINGER


class Server:
    """Keeps what it is sent and answers only when told to: nothing here depends on timing."""

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
    """Nothing comes, neither bytes nor an end."""
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


def speaks(client: socket.socket, server: socket.socket) -> bool:
    client.sendall(b"there")
    there = read(server, 5)
    server.sendall(b"back")
    return (there, read(client, 4)) == (b"there", b"back")


def is_turned_away(connect: Callable[[], socket.socket]) -> bool:
    """Reset at once: a client learns it while it connects, or when it reads."""
    try:
        with connect() as end:
            return is_reset(end)
    except ConnectionResetError:
        return True
