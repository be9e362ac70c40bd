"""Paths of the real servers' programs."""

from __future__ import annotations

import os
import shutil
from glob import glob

# The program of a MySQL server, to run in place of MariaDB (mariadb_server.py).
MYSQLD = os.environ.get("LOCKFAST_MYSQLD", "")
# The server, and the program that creates its data directory.
MARIADB = (MYSQLD, MYSQLD) if MYSQLD else ("mariadbd", "mariadb-install-db")


def program(name: str) -> str | None:
    """Return the path of a program, or None. Debian keeps daemons off a user's PATH: in sbin, and
    PostgreSQL in a folder for each version, of which the newest is taken. A ``.jar`` is searched in
    the folder of Java's libraries. `ensure` searches the same folders."""
    if name.endswith(".jar"):
        jar = os.path.join("/usr/share/java", name)
        return jar if os.path.exists(jar) else None
    versions = sorted(glob("/usr/lib/postgresql/*/bin"), key=_version, reverse=True)
    return shutil.which(name, path=":".join([os.environ["PATH"], "/usr/sbin", *versions]))


def _version(folder: str) -> float:
    try:
        return float(folder.split("/")[-2])
    except ValueError:
        return 0.0
