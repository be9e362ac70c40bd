"""Where the programs of real servers are, asked in one way by all who need one."""

from __future__ import annotations

import os
import shutil
from glob import glob

# The program of a MySQL server, to be run where a MariaDB would be (mariadb_server.py).
MYSQLD = os.environ.get("LOCKFAST_MYSQLD", "")
# What runs, and what furnishes its folder before.
MARIADB = (MYSQLD, MYSQLD) if MYSQLD else ("mariadbd", "mariadb-install-db")


def program(name: str) -> str | None:
    """Its path, or None. Debian keeps daemons where users do not look: in sbin, and PostgreSQL in a
    folder for each version (of which the newest is taken). A name.jar is not a program, but needed
    just so: Java's are in one folder. `ensure` looks in the same places."""
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
