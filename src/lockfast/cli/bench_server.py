"""CPU time of a server on this host, read from /proc.

The server is found by its listening port, among the processes whose descriptors we may read (our
user's; as root all). If it is not found (another host, user, system), no figure beats a wrong one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

PROC = Path("/proc")
PORTS = {"redis": 6379, "rediss": 6379, "postgresql": 5432, "postgres": 5432}
PORTS |= {"mysql": 3306, "mariadb": 3306, "zookeeper": 2181}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LISTENS = "0A"
# Fields of /proc/PID/stat, user and system ticks: of the process itself, and of its children that
# have ended. Without the latter, the time of a forked connection handler would be lost at its end.
OWN, REAPED = (11, 12), (13, 14)


class Server:
    """Processes of the server behind a URL; none if they are not visible."""

    def __init__(self, url: str) -> None:
        port = _port(url)
        self._pid = None if port is None else _listener(port)

    def cpu(self) -> float | None:
        """CPU seconds of the server and its children so far; None if unknown."""
        if self._pid is None:
            return None
        try:
            ticks = _ticks(self._pid, OWN + REAPED)
            ticks += sum(_ticks(pid, OWN) for pid in _children(self._pid))
        except (OSError, ValueError, IndexError):  # a child has just ended
            return None
        return ticks / os.sysconf("SC_CLK_TCK")


def _port(url: str) -> int | None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # a URL with several hosts
        return None
    return port if parts.hostname in LOOPBACK else None


def _listener(port: int) -> int | None:
    """Lowest pid among the processes that have the listening socket open."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    found = [int(process.name) for process in PROC.glob("[0-9]*") if _has(process, sockets)]
    return min(found, default=None)


def _has(process: Path, sockets: set[str]) -> bool:
    with contextlib.suppress(OSError):  # not permitted, or the process has ended
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry) in sockets:
                    return True
    return False


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _children(pid: int) -> list[int]:
    """Current children: some servers fork one per connection."""
    found: list[int] = []
    for path in (PROC / str(pid) / "task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def _ticks(pid: int, which: tuple[int, ...]) -> int:
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[index]) for index in which)
