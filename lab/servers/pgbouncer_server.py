"""A private PgBouncer in transaction mode, in front of a PostgreSQL server; see `OwnServer`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg

from lab.servers.own_server import OwnServer
from lab.servers.postgres_server import PostgresServer


class PgBouncerServer(OwnServer):
    """A pooler that is not running until `start`. Each transaction may get another session."""

    PROGRAM = "pgbouncer"
    USER = "postgres"

    def __init__(self, behind: PostgresServer) -> None:
        super().__init__()
        self._behind = behind

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _prepare(self, folder: Path) -> None:
        (folder / "users").write_text('"postgres" ""\n')

    def _arguments(self, port: int) -> list[str]:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": str(self.folder),
            "auth_type": "trust",
            "auth_file": str(self.folder / "users"),
            "pool_mode": "transaction",
            "default_pool_size": "4",
            "server_round_robin": "1",  # so that no client keeps its session by chance
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        behind = f"host=127.0.0.1 port={self._behind.port}"
        text = f"[databases]\npostgres = {behind}\n[pgbouncer]\n" + "\n".join(lines) + "\n"
        file = self.folder / "pgbouncer.ini"
        file.write_text(text)
        return [str(file)]

    def _answers(self) -> bool:
        ports = [path.name.rsplit(".", 1)[1] for path in self.folder.glob(".s.PGSQL.*")]
        if not ports:
            return False
        try:
            conninfo = f"host={self.folder} port={ports[0]} user=postgres dbname=postgres"
            with psycopg.connect(conninfo, autocommit=True) as connection:
                return connection.execute("SELECT 1").fetchall() == [(1,)]
        except psycopg.OperationalError:
            return False

    def _shut_down(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def _remove_data(self) -> None:
        """Do nothing: PgBouncer stores no data."""
