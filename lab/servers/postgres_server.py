"""A PostgreSQL of our own; see `OwnServer`. What was committed survives SIGKILL, no power cut."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psycopg

from lab.servers.own_server import PATIENCE, OwnServer


class PostgresServer(OwnServer):
    """Not running until `start`. Its user and its database are postgres; no password."""

    PROGRAM = "postgres"
    USER = "postgres"

    # -- Talking to it -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Over TCP. Options of `psycopg.connect`, whose default is no autocommit."""
        return psycopg.connect(self.url, **{"connect_timeout": int(PATIENCE)} | options)

    def call(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """One statement on a connection of its own, through the unix socket: its rows."""
        with psycopg.connect(
            host=str(self.folder),
            port=self._told_port,
            user="postgres",
            dbname="postgres",
            connect_timeout=int(PATIENCE),
            autocommit=True,
        ) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    # -- Inside --------------------------------------------------------------------------------

    def _furnish(self, folder: Path) -> None:
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
        self._told_port = port  # part of the socket's name
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            # Small and fast. Commits reach the kernel, so they survive our kill, not the disk.
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
        }
        words = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
        return ["-D", f"{self.folder}/data", "-p", str(port), *words]

    def _answers(self) -> bool:
        try:
            return self.call("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _end_gently(self) -> None:
        os.kill(self.pid, signal.SIGINT)  # ends sessions; SIGTERM would wait for them

    def _forget(self) -> None:
        shutil.rmtree(self.folder / "data")
        self._furnish(self.folder)
