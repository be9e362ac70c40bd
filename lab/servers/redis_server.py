"""A private redis-server; see `OwnServer`. It writes nothing to disk unless configured to."""

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
    """A server that is not running until `start`. ``users`` are lines of an ACL file without the
    leading ``user``: ``["app on >secret ~lf:* +get"]``. The default user has all permissions, and
    ``password`` or none."""

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
            self._remove_dump()  # or a later kill and start would load it

    # -- Connections ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``redis://``, or ``rediss://`` with TLS; then clients need `ca_file` too."""
        return f"redis{'s' if self.tls else ''}://{self._secret}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._secret}{self.folder}/socket?db=0"

    @property
    def ca_file(self) -> Path:
        assert self.tls, "the server was made without tls=True"
        return self.folder / "ca.pem"

    def client(self, **options: Any) -> redis.Redis:
        """A plain client for set-up and assertions, without retries. Options of `redis.Redis`."""
        defaults: dict[str, Any] = {"port": self.port, "password": self.password} | _no_retry()
        if self.tls:
            defaults |= {"ssl": True, "ssl_ca_certs": str(self.ca_file)}
        return redis.Redis("127.0.0.1", **defaults | options)

    def call(self, *command: str | bytes | int | float) -> Any:
        """Execute one command on a new connection over the unix socket."""
        with redis.Redis.from_url(self.unix_url, **_no_retry()) as client:
            return client.execute_command(*command)

    # -- Hooks of OwnServer --------------------------------------------------------------------

    @property
    def _secret(self) -> str:
        return f":{self.password}@" if self.password else ""

    def _prepare(self, folder: Path) -> None:
        if self.tls:
            make_certificates(folder)
        if self.users:
            # With an ACL file, Redis ignores --requirepass.
            default = f"default on {f'>{self.password}' if self.password else 'nopass'} ~* &* +@all"
            lines = [f"user {user}\n" for user in (default, *self.users)]
            (folder / "users.acl").write_text("".join(lines))

    def _arguments(self, port: int) -> list[str]:
        (self.folder / "socket").unlink(missing_ok=True)  # left by a killed server
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
        return [argument for pair in arguments.items() for argument in pair]

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING"))
        except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def _shut_down(self) -> None:
        try:
            self.call("SHUTDOWN", "SAVE", "FORCE")
        except redis.ConnectionError:
            pass  # the server closes the connection when it ends

    def _remove_data(self) -> None:
        self._remove_dump()
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)

    def _remove_dump(self) -> None:
        (self.folder / "dump.rdb").unlink(missing_ok=True)


def _no_retry() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE}
