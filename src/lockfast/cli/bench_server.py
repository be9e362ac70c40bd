"""What a server that runs on this host costs: the CPU time of its processes, as Linux tells it.

It is found by the port that it listens on, among the processes that we may look at (our own; as
root all). Where it cannot be found (another host, another user, another system) there is no figure
rather than a wrong one.
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
# Where a process's line tells its ticks, in user mode and in the kernel: its own, and those of its
# children that have ended, without which a connection that is closed would be time won.
OWN, BURIED = (11, 12), (13, 14)


class Server:
    """The processes behind a URL; none if they cannot be seen."""

    def __init__(self, url: str) -> None:
        port = _port(url)
        self._pid = None if port is None else _listener(port)

    def cpu(self) -> float | None:
        """Seconds that it and its children have worked so far."""
        if self._pid is None:
            return None
        try:
            ticks = _ticks(self._pid, OWN + BURIED)
            ticks += sum(_ticks(pid, OWN) for pid in _children(self._pid))
        except (OSError, ValueError, IndexError):  # one of them has just ended
            return None
        return ticks / os.sysconf("SC_CLK_TCK")


def _port(url: str) -> int | None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # several hosts
        return None
    return port if parts.hostname in LOOPBACK else None


def _listener(port: int) -> int | None:
    """The eldest of those who have the listening socket."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    found = [int(process.name) for process in PROC.glob("[0-9]*") if _has(process, sockets)]
    return min(found, default=None)


def _has(process: Path, sockets: set[str]) -> bool:
    with contextlib.suppress(OSError):  # not ours to look at, or gone
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry) in sockets:
                    return True
    return False


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def _children(pid: int) -> list[int]:
    """Those that it has now: a server that forks does it once per connection."""
    found: list[int] = []
    for path in (PROC / str(pid) / "task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def _ticks(pid: int, which: tuple[int, ...]) -> int:
    words = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(int(words[index]) for index in which)
