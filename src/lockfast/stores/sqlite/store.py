"""Which file, and who may use it: URLs, the default place, and the opened store.

The default file is the same for every process of one user on one host, whatever its environment: a
cron job and a shell must meet there. So it depends on the user's number alone, not on $HOME,
$TMPDIR or $XDG_…, and lies in a folder of its own that nobody else can write to.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lockfast import clock, forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.sqlite.backend import SqliteBackend, Transport
from lockfast.stores.sqlite.peers import Peers
from lockfast.stores.sqlite.transport import BlockingTransport, File, TaskTransport
from lockfast.stores.wakeup_pipe import WakeupPipe

DEFAULT_PARENT = Path("/var/tmp")


class PipeEar:
    """The keeper's pause: hears the neighbours' bells, and a pipe with which we wake ourselves."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt
        self.close = self._interrupt.interrupt  # only wake up whoever hears
        self.after_fork_in_child = self._interrupt.after_fork_in_child

    async def listen(self, timeout: float | None) -> None:
        self._peers.listen(*self._interrupt.ready(timeout), self._interrupt.heard)


class SqliteStore:
    """The opened store of one client: its connection, its home, its ears."""

    def __init__(self, path: Path, prepare: Callable[[], None] = lambda: None) -> None:
        prepare()
        try:
            if path.is_dir():
                raise ConfigurationError(f"{path} names a folder: add a file name to it")
            path = path.resolve()  # a link to the file is the same store, with the same neighbours
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"the store {path} is out of reach: {error}") from error
        self.url = f"sqlite://{path}"
        self._path = path
        self._peers = Peers(path.with_name(path.name + ".d"))
        self._file = File(path, self._peers)
        self._peers.changed = self._interrupt
        self._ears: list[PipeEar] = []
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> SqliteBackend:
        return self._backend(BlockingTransport(self._file))

    def tasks(self, signal: Callable[[], Signal]) -> SqliteBackend:
        return self._backend(TaskTransport(self._file))

    def _backend(self, transport: Transport) -> SqliteBackend:
        ear = PipeEar(self._peers)
        self._ears.append(ear)
        return SqliteBackend(transport, ear, self._peers, clock.now, clock.wall, self.close)

    def _interrupt(self) -> None:
        for ear in self._ears:
            ear.interrupt()

    def close(self) -> None:
        """Give up the connection and the home; both come back if somebody goes on."""
        self._file.close()
        self._peers.close()

    def health_checks(self) -> Iterator[HealthCheck]:
        """What an examination of the file finds."""
        from lockfast.stores.sqlite.health import health_checks  # only the doctor needs it

        return health_checks(self._path)

    def before_fork(self) -> None:
        self._file.before_fork()
        self._peers.before_fork()

    def after_fork_in_parent(self) -> None:
        self._peers.after_fork_in_parent()
        self._file.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._peers.after_fork_in_child()
        self._file.after_fork_in_child()
        for ear in self._ears:
            ear.after_fork_in_child()


def open_sqlite(url: str) -> SqliteStore:
    """``sqlite:///absolute/path/locks.db``."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/"):
        raise ConfigurationError(
            f"{url!r}: write sqlite:///absolute/path/locks.db, with three slashes and nothing "
            "after the path. A relative path would be another lock in every folder"
        )
    if path.endswith("/"):
        raise ConfigurationError(f"{url!r} names a folder: add a file name, such as locks.db")
    if path == "/:memory:":
        raise ConfigurationError("for a store in memory write memory://")
    if "\0" in path:
        raise ConfigurationError(f"{url!r} contains NUL")
    return SqliteStore(Path("/" + path.lstrip("/")))


def default_path() -> Path:
    return DEFAULT_PARENT / f"lockfast-{os.getuid()}" / "locks.db"


def default_store() -> SqliteStore:
    """The embedded store of this user on this host."""
    path = default_path()
    return SqliteStore(path, lambda: make_private(path.parent))


def make_private(folder: Path) -> None:
    """A folder that is ours alone, or an error: anybody may write where it lies, and could have put
    a folder or a link of theirs there before us."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise ConfigurationError(
            f"{folder} is not a folder of this user: remove it, or set $LOCKFAST_URL to "
            "sqlite:///a/path/of/your/own/locks.db"
        )
    if there.st_mode & 0o077:
        folder.chmod(0o700)
