"""Is this file fit for locks? Where it lies, and who may touch it."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lockfast.stores.health_checks import HealthCheck, bad, note, ok, warn

MOUNTS = Path("/proc/self/mountinfo")
LEAST_ROOM = 16 * 2**20
# File systems that several hosts share. Their locks on files, and memory that is shared through
# them, do not do what SQLite relies on; and a lock in one would not reach the other hosts anyway.
SHARED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf",
}  # fmt: skip


def health_checks(path: Path) -> Iterator[HealthCheck]:
    yield ok("version", f"SQLite {sqlite3.sqlite_version}")
    yield judged_place(file_system_of(path, _mounts()))
    there = path.stat()
    if there.st_mode & 0o002:
        yield warn(
            "rights",
            "every user of this host may write to the file, and so break or forge locks",
            f"chmod o-w {path.name}",
        )
    elif there.st_mode & 0o020:
        yield note("rights", "its group may write to the file, and so break locks")
    else:
        yield ok("rights", "its user alone may write to the file")
    free = shutil.disk_usage(path.parent).free
    if free < LEAST_ROOM:
        yield bad(
            "room", f"{free // 1024} KiB are free on its disk: locks cannot be written", "make room"
        )
    else:
        yield ok("room", f"{free // 2**20} MiB are free on its disk")


def _mounts() -> str:
    try:
        return MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return ""


def file_system_of(path: Path, mounts: str) -> str:
    """The kind of file system that holds it, by the lines of /proc/self/mountinfo; '' if they do
    not tell. The last of several that cover a place is the one that is seen."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        waiter = os.fsencode(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        root = Path(os.fsdecode(waiter))
        if (root == path or root in path.parents) and len(root.parts) >= best:
            best, kind = len(root.parts), right.split(" ")[0]
    return kind


def judged_place(kind: str) -> HealthCheck:
    if kind in SHARED:
        return bad(
            "location",
            f"the file lies on {kind}, a file system that hosts share: locks on it are not safe, "
            "and do not reach other hosts",
            "put it on a local disk, or use a server for locks between hosts",
        )
    if kind.startswith("fuse"):
        return warn(
            "location",
            f"the file lies on {kind}: whether its locks hold is not known",
            "put it on a local disk",
        )
    return ok("location", f"a local file system{f' ({kind})' if kind else ''}")
