"""A redis-server of our own; see `OwnServer`. Nothing is written to disk unless asked for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.servers.certificates import make_certificates
from lab.servers.own_server import PATIENCE, OwnServer


class RedisServer(OwnServer):
    """Not running until `start`. `users` are lines of an ACL file without the word ``user``:
    ``["app on >secret ~lf:* +get"]``; the default user has `password`, or none, and may all."""

    PROGRAM = "redis-server"

    def __init__(
        self, *, tls: bool = False, password: str | None = None, users: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.tls = tls
        self.password = password
        self.users = list(users)

    def restart(self, *, keep_data: bool) -> None:
        super().restart(keep_data=keep_data)
        if "--save" not in self._extra:
            self._forget_dump()  # or one that is killed later would come back with it

    # -- Talking to it -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``redis://``, or ``rediss://`` with TLS; then `ca_file` must be given beside it."""
        return f"redis{'s' if self.tls else ''}://{self._secret}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._secret}{self.folder}/socket?db=0"

    @property
    def ca_file(self) -> Path:
        assert self.tls, "it speaks no TLS"
        return self.folder / "ca.pem"

    def client(self, **options: Any) -> redis.Redis:
        """A plain client for preparing and asserting: it tries once. Options of `redis.Redis`."""
        defaults: dict[str, Any] = {"port": self.port, "password": self.password} | _once()
        if self.tls:
            defaults |= {"ssl": True, "ssl_ca_certs": str(self.ca_file)}
        return redis.Redis("127.0.0.1", **defaults | options)

    def call(self, *words: str | bytes | int | float) -> Any:
        """One command on a connection of its own, through the unix socket."""
        with redis.Redis.from_url(self.unix_url, **_once()) as client:
            return client.execute_command(*words)

    # -- Inside --------------------------------------------------------------------------------

    @property
    def _secret(self) -> str:
        return f":{self.password}@" if self.password else ""

    def _furnish(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
        if self.users:
            # With a file of users Redis ignores a password that is given elsewhere.
            default = f"default on {f'>{self.password}' if self.password else 'nopass'} ~* &* +@all"
            lines = [f"user {user}\n" for user in (default, *self.users)]
            (folder / "users.acl").write_text("".join(lines))

    def _arguments(self, port: int) -> list[str]:
        (self.folder / "socket").unlink(missing_ok=True)  # of one that was killed
        arguments = {
            "--bind": "127.0.0.1",
            "--port": "0" if self.tls else str(port),
            "--unixsocket": "socket",
            "--dir": str(self.folder),
            "--logfile": str(self.folder / "log"),
            "--save": "",
            "--appendonly": "no",
            "--enable-debug-command": "yes",
        }
        if self.tls:
            arguments |= {
                "--tls-port": str(port),
                "--tls-ca-cert-file": "ca.pem",
                "--tls-cert-file": "server.pem",
                "--tls-key-file": "server.key",
                "--tls-auth-clients": "no",
            }
        if self.users:
            arguments["--aclfile"] = str(self.folder / "users.acl")
        elif self.password:
            arguments["--requirepass"] = self.password
        return [word for pair in arguments.items() for word in pair]

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING"))
        except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def _end_gently(self) -> None:
        try:
            self.call("SHUTDOWN", "SAVE", "FORCE")
        except redis.ConnectionError:
            pass  # so it says yes

    def _forget(self) -> None:
        self._forget_dump()
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)

    def _forget_dump(self) -> None:
        (self.folder / "dump.rdb").unlink(missing_ok=True)


def _once() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE}
