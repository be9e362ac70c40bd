"""A redis-server for one section, bare sockets to it, and its command counters."""

from __future__ import annotations

import socket
from typing import Any, Self

from lab.servers.redis_server import RedisServer
from lockfast.stores.redis.scripts import packed

__all__ = ["LEASE", "SENT", "Bare", "Server", "added", "packed"]

LEASE = 30  # seconds, for every contender
# Commands that clients send. The other commands that a server counts are called by scripts.
SENT = ("evalsha", "eval", "set", "blpop", "rpush", "subscribe")


class Server(RedisServer):
    """A redis-server that runs inside ``with``, with extra arguments."""

    def __init__(self, *extra: str) -> None:
        super().__init__()
        self._extra = extra

    def __enter__(self) -> Self:
        self.start()
        self.admin = self.client()
        return self

    def __exit__(self, *raised: object) -> None:
        self.admin.close()
        self.stop()

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.admin.info(section))

    def calls(self) -> dict[str, int]:
        """Calls of each command so far, from scripts too."""
        stats = self.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}

    def connections(self) -> int:
        """Open connections, without the one that asks."""
        return int(self.info("clients")["connected_clients"]) - 1


class Bare:
    """A blocking socket and nothing else: the limit for a client in Python."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, command: bytes) -> bytes:
        """Send a command outside the timed part, and return its reply; an error is raised."""
        self.socket.sendall(command)
        reply = self.socket.recv(4096)
        if reply.startswith(b"-"):
            raise RuntimeError(reply.decode())
        return reply

    def close(self) -> None:
        self.socket.close()


def added(after: dict[str, int], before: dict[str, int], names: tuple[str, ...] = ()) -> int:
    """The calls of these commands (or all but INFO) between two counts."""
    chosen = names or tuple(name for name in after if name != "info")
    return sum(after.get(name, 0) - before.get(name, 0) for name in chosen)
