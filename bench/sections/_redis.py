"""A redis-server of our own for a section: in a temporary folder, on a free port of loopback, with
nothing written to disk; ended by its pid. And what of it the Redis sections share."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any, Self

import redis

PATIENCE = 20.0  # seconds it may take to start on a busy machine
ATTEMPTS = 10
LEASE = 30  # seconds, as everybody is told
# What clients send. The other commands that a server counts are those that scripts call.
SENT = ("evalsha", "eval", "set", "blpop", "rpush", "subscribe")


class Server:
    """Runs between ``with`` and its end, with these arguments more."""

    def __init__(self, *extra: str) -> None:
        self.extra = extra

    def __enter__(self) -> Self:
        program = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/usr/sbin:/bin")
        if program is None:
            raise RuntimeError(
                "no redis-server on this machine: lab/lab/servers/ensure installs it"
            )
        self.folder = tempfile.mkdtemp(prefix="lockfast-bench-")
        for _ in range(ATTEMPTS):
            self.port = free_port()
            arguments = [
                *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder),
                *("--save", "", "--appendonly", "no", "--logfile", f"{self.folder}/log"),
                *self.extra,
            ]
            self._process = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, start_new_session=True
            )
            self.admin = self.client()
            if self._answers():
                return self
            self._end()  # somebody was faster to take the port
        shutil.rmtree(self.folder, ignore_errors=True)
        raise RuntimeError("redis-server does not start")

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
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        return redis.Redis("127.0.0.1", self.port)

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.admin.info(section))

    def calls(self) -> dict[str, int]:
        """How often each command was called until now, also from within scripts."""
        stats = self.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(said["calls"]) for name, said in stats.items()}

    def connections(self) -> int:
        """Everybody's, but for ours that asks."""
        return int(self.info("clients")["connected_clients"]) - 1

    def _answers(self) -> bool:
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            try:
                # It is ours that answers, not another's on this port.
                return bool(self.info("server")["process_id"] == self._process.pid)
            except redis.exceptions.RedisError:
                time.sleep(0.01)
        return False

    def _end(self) -> None:
        self.admin.close()
        self._process.kill()
        self._process.wait(PATIENCE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Bare:
    """A blocking socket, and nothing else: the limit of what a client in Python can do."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, command: bytes) -> bytes:
        """For what is not timed: an error is raised."""
        self.socket.sendall(command)
        answer = self.socket.recv(4096)
        if answer.startswith(b"-"):
            raise RuntimeError(answer.decode())
        return answer

    def close(self) -> None:
        self.socket.close()


def packed(*words: str) -> bytes:
    """A command, as the wire writes it."""
    bulks = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return (f"*{len(words)}\r\n" + "".join(bulks)).encode()


def more(after: dict[str, int], before: dict[str, int], names: tuple[str, ...] = ()) -> int:
    """How many of these commands (of all) came between."""
    chosen = names or tuple(name for name in after if name != "info")
    return sum(after.get(name, 0) - before.get(name, 0) for name in chosen)
