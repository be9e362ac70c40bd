"""A private PostgreSQL server; see `OwnServer`. Commits survive SIGKILL, not a power cut."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psycopg

from lab.servers.own_server import PATIENCE, OwnServer


class PostgresServer(OwnServer):
    """A server that is not running until `start`. User and database are postgres; no password."""

    PROGRAM = "postgres"
    USER = "postgres"

    # -- Connections ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Connect over TCP. Options are those of `psycopg.connect`; by default no autocommit."""
        return psycopg.connect(self.url, **{"connect_timeout": int(PATIENCE)} | options)

    def call(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Execute one statement on a new connection over the unix socket; return its rows."""
        with psycopg.connect(
            host=str(self.folder),
            port=self._socket_port,
            user="postgres",
            dbname="postgres",
            connect_timeout=int(PATIENCE),
            autocommit=True,
        ) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    # -- Hooks of OwnServer --------------------------------------------------------------------

    def _prepare(self, folder: Path) -> None:
        self._run(
            "initdb",
            *("-D", f"{folder}/data"),
            *("-A", "trust"),
            *("-U", "postgres"),
            *("-E", "UTF8"),
            "--no-locale",
            "--no-sync",
            "--no-instructions",
        )

    def _arguments(self, port: int) -> list[str]:
        self._socket_port = port  # part of the unix socket's name
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            # Small and fast. Commits reach the kernel, not the disk, so they survive a SIGKILL.
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
        }
        arguments = [argument for pair in settings.items() for argument in ("-c", "=".join(pair))]
        return ["-D", f"{self.folder}/data", "-p", str(port), *arguments]

    def _answers(self) -> bool:
        try:
            return self.call("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _shut_down(self) -> None:
        os.kill(self.pid, signal.SIGINT)  # SIGTERM would wait for open sessions

    def _remove_data(self) -> None:
        shutil.rmtree(self.folder / "data")
        self._prepare(self.folder)
