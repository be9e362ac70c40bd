"""A private MariaDB server; see `OwnServer`. Committed data survive SIGKILL, not a power cut.

If LOCKFAST_MYSQLD names a MySQL server's program, that is run instead, and every test that uses
MariaDB gets MySQL. Tests of what only one of them has check `is_mysql`.
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

# For both: small and fast. Commits reach the kernel, not the disk, so they survive a SIGKILL.
SMALL = (
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-buffer-pool-size=32M",
    "--performance-schema=off",
)
# MySQL by default writes a binlog, opens a second port, and does not start if the folder of
# secure_file_priv is missing.
SMALL_MYSQL = (
    "--innodb-redo-log-capacity=32M",
    "--skip-log-bin",
    "--skip-mysqlx",
    "--secure-file-priv=NULL",
)


class MariaDBServer(OwnServer):
    """A server that is not running until `start`. Its user root needs no password; `database`
    exists, empty. With ``tls`` it uses our certificates (MySQL generates its own otherwise)."""

    is_mysql = bool(MYSQLD)
    PROGRAM = MARIADB[0]
    USER = "mysql"
    database = "lockfast"

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__()
        self.tls = tls

    # -- Connections ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{self.database}"

    def connect(self, **options: Any) -> pymysql.Connection[Any]:
        """Connect over TCP. Options are those of `pymysql.connect`, whose defaults are: no
        autocommit, and a row updated to the same values does not count as changed."""
        address = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "database": self.database,
        }
        return pymysql.connect(**address | {"read_timeout": PATIENCE} | options)

    def call(self, statement: str, *parameters: Any) -> tuple[tuple[Any, ...], ...]:
        """Execute one statement on a new connection over the unix socket; return its rows."""
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
        assert self.tls, "the server was made without tls=True"
        return self.folder / "ca.pem"

    # -- Hooks of OwnServer --------------------------------------------------------------------

    def _prepare(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
            if self._user:
                shutil.chown(folder / "server.key", self._user)
        if MYSQLD:
            arguments = ["--no-defaults", "--initialize-insecure"]
        else:
            arguments = [
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        self._run(
            MARIADB[-1],
            *arguments,
            f"--datadir={folder}/data",
            "--innodb-flush-method=nosync",
            # A starting server removes all temporary tables in its tmpdir, even another server's.
            f"--tmpdir={folder}",
        )
        # Read at every start. With --skip-name-resolve, 127.0.0.1 is not localhost.
        (folder / "init.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            "CREATE USER IF NOT EXISTS root@127.0.0.1;\n"
            "GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;\n"
        )

    def _arguments(self, port: int) -> list[str]:
        certificates = (
            {"ca": "ca.pem", "cert": "server.pem", "key": "server.key"} if self.tls else {}
        )
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
            *(f"--ssl-{option}={self.folder}/{file}" for option, file in certificates.items()),
            *SMALL,
            *(SMALL_MYSQL if MYSQLD else ("--innodb-log-file-size=16M",)),
        ]

    def _answers(self) -> bool:
        # PyMySQL leaks its socket if nothing listens, so probe the unix socket first.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.folder / "socket")) != 0:
                return False
        try:
            return self.call("SELECT 1") == ((1,),)
        except pymysql.OperationalError:
            return False

    def _shut_down(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _remove_data(self) -> None:
        shutil.rmtree(self.folder / "data")
        self._prepare(self.folder)
