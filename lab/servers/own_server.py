"""A private server: in a temporary folder, on a free port of loopback, ended with the interpreter.

`OwnServer` starts, pauses, restarts and stops a server. A subclass names the program, prepares its
folder, gives its arguments, and checks whether it answers. Checks use a unix socket in the folder,
so that they never reach another server that happens to run. The server ends with `stop`, when the
interpreter exits, and, through a guard process, also when the interpreter is killed.
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

PATIENCE = 30.0  # seconds to start on a busy machine; no test measures it
ATTEMPTS = 20
# Below the kernel's ephemeral ports: no other process gets our port by chance while the server is
# down between two starts.
PORTS = range(20000, 30000)
# Waits for the end of its input, which comes when our process is gone, for whatever reason. Kills
# the server's children too: those of a paused server do not notice its death. A dying process may
# still write a file while the folder is removed; so wait before each attempt, and repeat it.
GUARD = """
read -r _
kill -9 "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null) 2>/dev/null
for _ in 1 2 3 4 5; do sleep 0.1; rm -rf -- "$2" && break; done
"""


class OwnServer:
    """A server that is not running until `start`."""

    PROGRAM = ""
    USER: str | None = None  # the user to run as if we are root, for servers that refuse root

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

    # -- Hooks of subclasses -------------------------------------------------------------------

    def _prepare(self, folder: Path) -> None:
        """Put files into the new folder, before the first start."""

    def _arguments(self, port: int) -> list[str]:
        """Return the arguments of the program."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Return True if the server answers; polled after a start. Return False if it refuses."""
        raise NotImplementedError

    def _shut_down(self) -> None:
        """Ask the server to end and to keep its data; the caller waits for its end."""
        raise NotImplementedError

    def _remove_data(self) -> None:
        """Remove the data from the folder of a server that is not running."""
        raise NotImplementedError

    # -- Start and stop ------------------------------------------------------------------------

    def start(self, *extra_args: str) -> Self:
        """Start the server, with additional arguments, and wait until it answers. It keeps its
        port, and after `kill` its folder and arguments, unless new ones are passed."""
        assert not self.is_running, f"{self.PROGRAM} is already running"
        self._extra = extra_args or self._extra
        if self._folder is None:
            atexit.register(self._stop_at_exit)
            self._folder = _new_folder()
            if self._user:
                shutil.chown(self._folder, self._user)
            self._prepare(self._folder)
        for _ in range(ATTEMPTS):
            port = self._port or _free_port()
            if self._runs_on(port):
                self._port = port
                return self
            time.sleep(0.05 if self._port else 0)  # our port, taken by another process for now
        raise RuntimeError(f"{self.PROGRAM} did not start:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """Kill the server and remove its folder. It may be started again: empty, on its port."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """Send SIGKILL, also to a paused server. Its files stay for the next start."""
        if self._process is not None:
            children = _children(self._process.pid)
            self._process.kill()
            for pid in children:
                _signal(pid, signal.SIGKILL)
            _wait_until(lambda: all(_state(pid) in ("Z", "") for pid in children))
        self._reap()

    def pause(self) -> None:
        """Send SIGSTOP; on return the server and all its children are stopped. The kernel still
        accepts connections for it."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        children = _children(self.pid)  # a stopped server forks no more
        for pid in children:
            _signal(pid, signal.SIGSTOP)
        _wait_until(lambda: all(_state(pid) in ("T", "Z", "") for pid in children))

    def resume(self) -> None:
        """Send SIGCONT."""
        for pid in (*_children(self.pid), self.pid):
            _signal(pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool) -> None:
        """Restart on the same port: shut down and with its data, or killed and empty."""
        if keep_data:
            assert self._process is not None
            self._shut_down()
            self._process.wait(PATIENCE)
            self._reap()
        else:
            self.kill()
            self._remove_data()
        self.start()

    # -- State ---------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.PROGRAM} is not running"
        return self._process.pid

    @property
    def port(self) -> int:
        assert self._port is not None, f"{self.PROGRAM} was never started"
        return self._port

    @property
    def folder(self) -> Path:
        assert self._folder is not None, f"{self.PROGRAM} is not running"
        return self._folder

    @property
    def log(self) -> str:
        """The server's log and its output, also from before it opened its log file."""
        return (self.folder / "log").read_text(errors="replace")

    # -- Inside --------------------------------------------------------------------------------

    @property
    def _user(self) -> str | None:
        return self.USER if os.geteuid() == 0 else None

    def _run(self, name: str, *arguments: str) -> None:
        """Run an auxiliary program to its end, in the server's folder and as its user."""
        done = subprocess.run(
            [_found(name), *arguments], capture_output=True, **self._process_options()
        )
        assert done.returncode == 0, f"{name}: {(done.stdout + done.stderr).decode()[-2000:]}"

    def _process_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if self._user:
            options |= {"user": self._user, "group": self._user, "extra_groups": []}
        return options

    def _runs_on(self, port: int) -> bool:
        """Start the server on a port. Return False if it ended: the port was taken, or the log
        has another reason."""
        # In a session of its own: Ctrl-C at the terminal reaches the tests, which then stop it.
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_found(self.PROGRAM), *self._arguments(port), *self._extra],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._process_options(),
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
                raise RuntimeError(f"{self.PROGRAM} did not answer:\n{self.log[-2000:]}")
            time.sleep(0.01)
        self._reap()
        return False

    def _reap(self) -> None:
        # The guard ends first: it must not outlive the pid that it would kill.
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
        if os.getpid() == self._owner:  # not in a forked child that exits
            self.stop()


def _found(name: str) -> str:
    path = program(name)
    assert path, f"{name} is not installed: run lab/servers/ensure"
    return path


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lf"))
    if len(str(folder)) > 80:  # the kernel's limit for the path of a socket is 107
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="lf", dir="/tmp"))
    return folder


def _free_port() -> int:
    """Return a port that was free a moment ago; the caller tries again if it is taken by now."""
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
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(pid: int) -> str:
    """Return the kernel's letter for a process's state: T stopped, Z zombie; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended first


def _wait_until(is_true: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, f"still not so after {PATIENCE:.0f} s"
        time.sleep(0.005)
