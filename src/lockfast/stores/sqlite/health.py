"""Health checks of the SQLite file: its file system, its permissions, and free space."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lockfast.stores.health_checks import HealthCheck, bad, note, ok, warn

MOUNTS = Path("/proc/self/mountinfo")
MIN_FREE = 16 * 2**20
# Network file systems. Their file locks and shared memory do not work as SQLite requires; and a
# lock on one would not reach the other hosts anyway.
SHARED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf",
}  # fmt: skip


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
