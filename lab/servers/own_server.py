"""A server of our own: in a temporary folder, on a free port of loopback, ended with us.

What is the same for every kind: its life. A kind says in a few methods what it is called, how its
folder is furnished, with which words it starts, and when it answers. It is asked through a unix
socket in its folder, which nobody else has, so it is never another one that happens to run. It ends
with `stop`, when the interpreter exits, and, through a guard, also when the interpreter is killed.
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
from pathlib import Path
from typing import Any, Self

from lab.servers.programs import program

PATIENCE = 30.0  # how long it may take to start on a busy machine; nothing is measured by it
ATTEMPTS = 20
# Below the ports that kernels give to those who ask for any: none of them takes ours while it is
# down between two starts.
PORTS = range(20000, 30000)
# Waits for the end of its input, which comes when we are gone, however that happened. Children are
# ended too: those of a server that is paused do not see that it died. The pause is for the dying:
# they must write no file while the folder is removed; if one did, once more.
GUARD = """
read -r _
kill -9 "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null) 2>/dev/null
for _ in 1 2 3 4 5; do sleep 0.1; rm -rf -- "$2" && break; done
"""


class OwnServer:
    """Not running until `start`."""

    PROGRAM = ""
    USER: str | None = None  # who runs it if we are root, for servers that refuse root

    def __init__(self) -> None:
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

    # -- What a kind says ----------------------------------------------------------------------

    def _furnish(self, folder: Path) -> None:
        """Put into the new folder what it needs before its first start."""

    def _arguments(self, port: int) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        """Asked again and again until it is so. False, also if it refuses: not yet."""
        raise NotImplementedError

    def _end_gently(self) -> None:
        """Ask it to end and to keep what it knows; it is waited for afterwards."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Remove from the folder what it knew; it is not running."""
        raise NotImplementedError

    # -- Its life ------------------------------------------------------------------------------

    def start(self, *extra_args: str) -> Self:
        """Run it, with these arguments more, and wait until it answers. It keeps its port, and
        after `kill` its folder and arguments, unless new ones are given."""
        assert not self.is_running, "it runs already"
        self._extra = extra_args or self._extra
        if self._folder is None:
            atexit.register(self._stop_at_exit)
            self._folder = _new_folder()
            if self._user:
                shutil.chown(self._folder, self._user)
            self._furnish(self._folder)
        for _ in range(ATTEMPTS):
            port = self._port or _free_port()
            if self._runs_on(port):
                self._port = port
                return self
            time.sleep(0.05 if self._port else 0)  # ours, for now taken by somebody else
        raise RuntimeError(f"{self.PROGRAM} does not start:\n{self.log[-2000:]}")

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
            children = _children(self._process.pid)
            self._process.kill()
            for pid in children:
                _signal(pid, signal.SIGKILL)
            _wait_until(lambda: all(_state(pid) in ("Z", "") for pid in children))
        self._bury()

    def pause(self) -> None:
        """SIGSTOP; on return it stands still, with all its children. The kernel still accepts
        connections for it."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        children = _children(self.pid)  # no more of them from now on
        for pid in children:
            _signal(pid, signal.SIGSTOP)
        _wait_until(lambda: all(_state(pid) in ("T", "Z", "") for pid in children))

    def resume(self) -> None:
        """SIGCONT."""
        for pid in (*_children(self.pid), self.pid):
            _signal(pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool) -> None:
        """Start it again on the same port, with what it knew, or killed and empty."""
        if keep_data:
            assert self._process is not None
            self._end_gently()
            self._process.wait(PATIENCE)
            self._bury()
        else:
            self.kill()
            self._forget()
        self.start()

    # -- Looking at it -------------------------------------------------------------------------

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

    # -- Inside --------------------------------------------------------------------------------

    @property
    def _user(self) -> str | None:
        return self.USER if os.geteuid() == 0 else None

    def _run(self, name: str, *arguments: str) -> None:
        """Run a program of the server's to its end, in its folder and as its user."""
        done = subprocess.run([_found(name), *arguments], capture_output=True, **self._waiter())
        assert done.returncode == 0, f"{name}: {(done.stdout + done.stderr).decode()[-2000:]}"

    def _waiter(self) -> dict[str, Any]:
        waiter: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if self._user:
            waiter |= {"user": self._user, "group": self._user, "extra_groups": []}
        return waiter

    def _runs_on(self, port: int) -> bool:
        """Start it there. False if it ended: the port was taken, or the log says what else."""
        # A session of its own: an interrupt at the terminal is for the tests, which then stop it.
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_found(self.PROGRAM), *self._arguments(port), *self._extra],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._waiter(),
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "sh", str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            if self._answers():
                return True
            if time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"{self.PROGRAM} does not answer:\n{self.log[-2000:]}")
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

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a child that was forked and exits
            self.stop()


def _found(name: str) -> str:
    path = program(name)
    assert path, f"no {name} on this machine: lab/servers/ensure installs it"
    return path


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lf"))
    if len(str(folder)) > 80:  # the kernel's limit for the path of a socket is 107
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="lf", dir="/tmp"))
    return folder


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


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(pid: int) -> str:
    """The kernel's letter for it, T if it is stopped, Z if it is dead; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it was faster


def _wait_until(so: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.005)
