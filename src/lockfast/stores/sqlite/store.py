"""The opened store, its URLs, and the default file.

The default file is the same for every process of one user on one host, whatever its environment: a
cron job and a shell must share it. So its path depends on the user id alone, not on environment
variables such as $TMPDIR, and it is in a separate folder that no other user can write to.
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


class PipeListener:
    """The keeper's listener: polls the wake-up socket, watched processes, and an interrupt pipe."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt
        self.close = self._interrupt.interrupt  # only wakes the thread that listens
        self.after_fork_in_child = self._interrupt.after_fork_in_child

    async def listen(self, timeout: float | None) -> None:
        self._peers.listen(*self._interrupt.ready(timeout), self._interrupt.drain)


class SqliteStore:
    """The opened store of one client: its connection, its wake address, and its listeners."""

    def __init__(self, path: Path, prepare: Callable[[], None] = lambda: None) -> None:
        prepare()
        try:
            if path.is_dir():
                raise ConfigurationError(f"{path} names a folder: append a file name")
            path = path.resolve()  # a symlink to the file is the same store, with the same peers
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"the store {path} cannot be accessed: {error}") from error
        self.url = f"sqlite://{path}"
        self._path = path
        self._peers = Peers(path.with_name(path.name + ".d"))
        self._file = File(path, self._peers)
        self._peers.changed = self._interrupt
        self._listeners: list[PipeListener] = []
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> SqliteBackend:
        return self._backend(BlockingTransport(self._file))

    def tasks(self, signal: Callable[[], Signal]) -> SqliteBackend:
        return self._backend(TaskTransport(self._file))

    def _backend(self, transport: Transport) -> SqliteBackend:
        listener = PipeListener(self._peers)
        self._listeners.append(listener)
        return SqliteBackend(transport, listener, self._peers, clock.now, clock.wall, self.close)

    def _interrupt(self) -> None:
        for listener in self._listeners:
            listener.interrupt()

    def close(self) -> None:
        """Close the connection and unregister; a later call opens both again."""
        self._file.close()
        self._peers.close()

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the file."""
        from lockfast.stores.sqlite.health import health_checks  # only `doctor` needs it

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
        for listener in self._listeners:
            listener.after_fork_in_child()


def open_sqlite(url: str) -> SqliteStore:
    """Open ``sqlite:///absolute/path/locks.db``."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/"):
        raise ConfigurationError(
            f"{url!r}: write sqlite:///absolute/path/locks.db, with three slashes and nothing "
            "after the path. A relative path would name another file in every folder"
        )
    if path.endswith("/"):
        raise ConfigurationError(f"{url!r} names a folder: append a file name, such as locks.db")
    if path == "/:memory:":
        raise ConfigurationError(f"{url!r}: for a store in memory use memory://")
    if "\0" in path:
        raise ConfigurationError(f"{url!r} contains NUL")
    return SqliteStore(Path("/" + path.lstrip("/")))


def default_path() -> Path:
    return DEFAULT_PARENT / f"lockfast-{os.getuid()}" / "locks.db"


def default_store() -> SqliteStore:
    """The default store of this user on this host."""
    path = default_path()
    return SqliteStore(path, lambda: make_private(path.parent))


def make_private(folder: Path) -> None:
    """Create a private folder, or raise `ConfigurationError`: its parent is writable by all users,
    and another user could have put a folder or a symlink there first."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise ConfigurationError(
            f"{folder} is not a folder owned by this user: remove it, or set $LOCKFAST_URL to "
            "sqlite:///another/path/locks.db"
        )
    if there.st_mode & 0o077:
        folder.chmod(0o700)
