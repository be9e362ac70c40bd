"""A redis-server of our own: in a temporary folder, on a free port of loopback, ended with us.

It is asked through a unix socket in its folder, which nobody else has, so it is never another one
that happens to run. Nothing is written to disk unless asked for. It ends with `stop`, when the
interpreter exits, and, through a guard, also when the interpreter is killed.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE = 30.0  # how long it may take to start on a busy machine; nothing is measured by it
ATTEMPTS = 20
# Below the ports that kernels give to those who ask for any: none of them takes ours while it is
# down between two starts.
PORTS = range(20000, 30000)
PATH = f"{os.environ['PATH']}:/usr/sbin"
# Waits for the end of its input, which comes when we are gone, however that happened.
# The pause is for the dying: it must write no file while its folder is removed.
GUARD = 'read -r _; kill -9 "$1" 2>/dev/null; sleep 0.1; rm -rf -- "$2"'


class RedisServer:
    """Not running until `start`. `users` are lines of an ACL file without the word ``user``:
    ``["app on >secret ~hf:* +get"]``; the default user has `password`, or none, and may all."""

    def __init__(
        self, *, tls: bool = False, password: str | None = None, users: Sequence[str] = ()
    ) -> None:
        self.tls = tls
        self.password = password
        self.users = list(users)
        self._port: int | None = None
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._extra: tuple[str, ...] = ()
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    # -- Its life ------------------------------------------------------------------------------

    def start(self, *extra_args: str) -> Self:
        """Run it, with these arguments of redis-server, and wait until it answers. It keeps its
        port, and after `kill` its folder and arguments, unless new ones are given."""
        assert not self.is_running, "it runs already"
        self._extra = extra_args or self._extra
        if self._folder is None:
            atexit.register(self._stop_at_exit)
            self._folder = self._furnished()
        for _ in range(ATTEMPTS):
            port = self._port or _free_port()
            if self._runs_on(port):
                self._port = port
                return self
            time.sleep(0.05 if self._port else 0)  # ours, for now taken by somebody else
        raise RuntimeError(f"redis-server does not start:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """End it and remove its folder. It may be started again: empty, on the same port."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """SIGKILL, also to one that is paused. What it wrote to disk stays for the next start."""
        if self._process is not None:
            self._process.kill()
        self._bury()

    def pause(self) -> None:
        """SIGSTOP; on return it stands still. The kernel still accepts connections for it."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool) -> None:
        """Start it again on the same port, with what it knew, or killed and empty."""
        if keep_data:
            try:
                self.call("SHUTDOWN", "SAVE", "FORCE")
            except redis.ConnectionError:
                pass  # so it says yes
            assert self._process is not None
            self._process.wait(PATIENCE)
            self._bury()
            self.start()
            if "--save" not in self._extra:
                self._forget_dump()  # or one that is killed later would come back with it
        else:
            self.kill()
            self._forget_dump()
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
            self.start()

    # -- Talking to it -------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def port(self) -> int:
        assert self._port is not None, "it was never started"
        return self._port

    @property
    def folder(self) -> Path:
        assert self._folder is not None, "it is not running"
        return self._folder

    @property
    def log(self) -> str:
        """What it said; also before it knew where to write its log."""
        return (self.folder / "log").read_text(errors="replace")

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

    def _furnished(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="hf"))
        if len(str(folder)) > 80:  # the kernel's limit for the path of a socket is 107
            folder.rmdir()
            folder = Path(tempfile.mkdtemp(prefix="hf", dir="/tmp"))
        if self.tls:
            make_certificates(folder)
        if self.users:
            # With a file of users Redis ignores a password that is given elsewhere.
            default = f"default on {f'>{self.password}' if self.password else 'nopass'} ~* &* +@all"
            lines = [f"user {user}\n" for user in (default, *self.users)]
            (folder / "users.acl").write_text("".join(lines))
        return folder

    def _arguments(self, port: int) -> list[str]:
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
        return [word for pair in arguments.items() for word in pair] + list(self._extra)

    def _runs_on(self, port: int) -> bool:
        """Start it there. False if it ended: the port was taken, or the log says what else."""
        program = shutil.which("redis-server", path=PATH)
        assert program, "no redis-server on this machine: tests/servers/ensure installs it"
        (self.folder / "socket").unlink(missing_ok=True)  # of one that was killed
        # A session of its own: an interrupt at the terminal is for the tests, which then stop it.
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, *self._arguments(port)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            try:
                if self.call("PING"):
                    return True
            except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                pass  # not yet
            if time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"redis-server does not answer:\n{self.log[-2000:]}")
            time.sleep(0.01)
        self._bury()
        return False

    def _bury(self) -> None:
        # The guard first: it must not outlive the pid that it would kill.
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait(PATIENCE)
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard = None
        if self._process is not None:
            self._process.wait(PATIENCE)
            self._process = None

    def _forget_dump(self) -> None:
        (self.folder / "dump.rdb").unlink(missing_ok=True)

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a child that was forked and exits
            self.stop()


def _once() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE}


def _free_port() -> int:
    """Free a moment ago; who starts a server there tries again if it is not any more."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


CERTIFICATES = """
[req]
distinguished_name = name
prompt = no
[name]
CN = holdfast tests
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, DNS:localhost
"""


def make_certificates(folder: Path) -> None:
    """ca.pem, and server.pem with server.key that it signed for 127.0.0.1 and localhost."""
    (folder / "openssl.cnf").write_text(CERTIFICATES)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf"
    for command in (
        f"req -x509 {key} -extensions ca -days 2 -keyout ca.key -out ca.pem",
        f"req -new {key} -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        " -extfile openssl.cnf -extensions server -out server.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
