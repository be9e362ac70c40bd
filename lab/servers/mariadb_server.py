"""A MariaDB of our own; see `OwnServer`. What was committed survives SIGKILL, not a power cut.

Where LOCKFAST_MYSQLD names the program of a MySQL server, that is run instead, and every test that
asks for a MariaDB gets a MySQL. What one of them alone can do says so by `is_mysql`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pymysql

from lab.servers.certificates import make_certificates
from lab.servers.own_server import PATIENCE, OwnServer
from lab.servers.programs import MARIADB, MYSQLD

# The same for both: small and fast. Commits reach the kernel, so they survive our kill, not the
# disk.
SMALL = (
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-buffer-pool-size=32M",
    "--performance-schema=off",
)
# MySQL writes a log for replicas unless it is told not to, opens a second port, and does not start
# where a package's folder for files is missing.
SMALL_MYSQL = (
    "--innodb-redo-log-capacity=32M",
    "--skip-log-bin",
    "--skip-mysqlx",
    "--secure-file-priv=NULL",
)


class MariaDBServer(OwnServer):
    """Not running until `start`. Its user root needs no password; `database` is there, empty. With
    ``tls`` it has certificates of ours (MySQL makes some for itself without)."""

    is_mysql = bool(MYSQLD)
    PROGRAM = MARIADB[0]
    USER = "mysql"
    database = "lockfast"

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__()
        self.tls = tls

    # -- Talking to it -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{self.database}"

    def connect(self, **options: Any) -> pymysql.Connection[Any]:
        """Over TCP. Options of `pymysql.connect`, whose defaults are: no autocommit, and a row
        that is written again with the same values does not count as changed."""
        waiter = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": self.database}
        return pymysql.connect(**waiter | {"read_timeout": PATIENCE} | options)

    def call(self, statement: str, *parameters: Any) -> tuple[tuple[Any, ...], ...]:
        """One statement on a connection of its own, through the unix socket: its rows."""
        with (
            pymysql.connect(
                unix_socket=str(self.folder / "socket"),
                user="root",
                autocommit=True,
                read_timeout=PATIENCE,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, parameters)
            rows: tuple[tuple[Any, ...], ...] = cursor.fetchall()
            return rows

    @property
    def ca_file(self) -> Path:
        assert self.tls, "it has no certificates of ours"
        return self.folder / "ca.pem"

    # -- Inside --------------------------------------------------------------------------------

    def _furnish(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
            if self._user:
                shutil.chown(folder / "server.key", self._user)
        if MYSQLD:
            words = ["--no-defaults", "--initialize-insecure"]
        else:
            words = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
        self._run(
            MARIADB[-1],
            *words,
            f"--datadir={folder}/data",
            "--innodb-flush-method=nosync",
            # A server that starts removes temporary tables where it keeps them: also another's.
            f"--tmpdir={folder}",
        )
        # Read at every start: without names of hosts, 127.0.0.1 is not localhost.
        (folder / "init.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            "CREATE USER IF NOT EXISTS root@127.0.0.1;\n"
            "GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;\n"
        )

    def _arguments(self, port: int) -> list[str]:
        shown = {"ca": "ca.pem", "cert": "server.pem", "key": "server.key"} if self.tls else {}
        return [
            "--no-defaults",
            "--bind-address=127.0.0.1",
            f"--port={port}",
            f"--socket={self.folder}/socket",
            f"--datadir={self.folder}/data",
            f"--tmpdir={self.folder}",
            f"--pid-file={self.folder}/pid",
            f"--init-file={self.folder}/init.sql",
            "--skip-name-resolve",
            *(f"--ssl-{word}={self.folder}/{file}" for word, file in shown.items()),
            *SMALL,
            *(SMALL_MYSQL if MYSQLD else ("--innodb-log-file-size=16M",)),
        ]

    def _answers(self) -> bool:
        # PyMySQL leaves its socket open if nobody is there; so it is asked only if somebody is.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.folder / "socket")) != 0:
                return False
        try:
            return self.call("SELECT 1") == ((1,),)
        except pymysql.OperationalError:
            return False

    def _end_gently(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _forget(self) -> None:
        shutil.rmtree(self.folder / "data")
        self._furnish(self.folder)
