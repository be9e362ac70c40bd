"""The opened store, its URLs, the default file, and its health checks.

The default file is the same for every process of one user on one host, whatever its environment: a
cron job and a shell must share it. So its path depends on the user id alone, not on environment
variables such as $TMPDIR, and it is in a separate folder that no other user can write to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck, bad, note, ok, warn
from lockfast.stores.sqlite.file import File
from lockfast.stores.sqlite.inboxes import Inboxes
from lockfast.stores.sqlite.store import SqliteStore

DEFAULT_PARENT = Path("/var/tmp")
MOUNTS = Path("/proc/self/mountinfo")
MIN_FREE = 16 * 2**20
# Network file systems. Their file locks and shared memory do not work as SQLite requires; and a
# lock on one would not reach the other hosts anyway.
SHARED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf",
}  # fmt: skip


class SqliteEndpoint(Endpoint):
    """The opened store of one client: its connection, its wake addresses, and its sockets."""

    def __init__(self, path: Path, prepare: Callable[[], None] = lambda: None) -> None:
        prepare()
        try:
            if path.is_dir():
                raise ConfigurationError(f"{path} names a folder: append a file name")
            path = path.resolve()  # a symlink to the file is the same store, with the same peers
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"the store {path} cannot be accessed: {error}") from error
        self.url = f"sqlite://{path}"
        self._inboxes = Inboxes(path.with_name(path.name + ".d"))
        self._file = File(path, self._inboxes.peers)
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> SqliteStore:
        return SqliteStore(self._file, self._inboxes, suspends=False)

    def tasks(self, signal: Callable[[], Signal]) -> SqliteStore:
        return SqliteStore(self._file, self._inboxes, suspends=True)

    def health_checks(self) -> Iterator[HealthCheck]:
        return health_checks(self._file.path)

    def before_fork(self) -> None:
        self._file.before_fork()
        self._inboxes.peers.mutex.acquire()

    def after_fork_in_parent(self) -> None:
        self._inboxes.peers.mutex.release()
        self._file.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        self._inboxes.after_fork_in_child()
        self._file.after_fork_in_child()


def open_sqlite(url: str) -> SqliteEndpoint:
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
    return SqliteEndpoint(Path("/" + path.lstrip("/")))


def default_path() -> Path:
    return DEFAULT_PARENT / f"lockfast-{os.getuid()}" / "locks.db"


def default_store() -> SqliteEndpoint:
    """The default store of this user on this host."""
    path = default_path()
    return SqliteEndpoint(path, lambda: make_private(path.parent))


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


# ---- health checks ---------------------------------------------------------------------------


def health_checks(path: Path) -> Iterator[HealthCheck]:
    yield ok("version", f"SQLite {sqlite3.sqlite_version}")
    yield check_location(file_system_of(path, _mounts()))
    there = path.stat()
    if there.st_mode & 0o002:
        yield warn(
            "rights",
            "every user of this host may write to the file, and so can break or forge locks",
            f"chmod o-w {path.name}",
        )
    elif there.st_mode & 0o020:
        yield note("rights", "the file's group may write to it, and so can break locks")
    else:
        yield ok("rights", "only the file's owner may write to it")
    free = shutil.disk_usage(path.parent).free
    if free < MIN_FREE:
        yield bad(
            "room",
            f"{free // 1024} KiB are free on the file's disk: locks cannot be written",
            "free disk space",
        )
    else:
        yield ok("room", f"{free // 2**20} MiB are free on the file's disk")


def _mounts() -> str:
    try:
        return MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return ""


def file_system_of(path: Path, mounts: str) -> str:
    """The file system's type, by /proc/self/mountinfo; '' if unknown. The last mount counts."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        name = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])
        root = Path(os.fsdecode(os.fsencode(name)))
        if (root == path or root in path.parents) and len(root.parts) >= best:
            best, kind = len(root.parts), right.split(" ")[0]
    return kind


def check_location(kind: str) -> HealthCheck:
    if kind in SHARED:
        return bad(
            "location",
            f"the file is on {kind}, a network file system: locks on it are not safe, and do not "
            "reach other hosts",
            "move it to a local disk, or use a server for locks between hosts",
        )
    if kind.startswith("fuse"):
        return warn(
            "location",
            f"the file is on {kind}: whether file locks are safe there is unknown",
            "move it to a local disk",
        )
    return ok("location", f"a local file system{f' ({kind})' if kind else ''}")
