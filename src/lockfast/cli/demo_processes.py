"""Processes of the demo, and the folder that they share. Both are removed at the end."""

from __future__ import annotations

import contextlib
import select
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockfast.cli import demo_worker as worker

# Limit for any single step on a busy machine. Past it, the demo has failed.
PATIENCE = 30.0


class Failed(Exception):
    """An expected step did not happen."""


class DemoProcess:
    """One process of the demo (`demo_worker`), in its own group: Ctrl-C must not reach it."""

    def __init__(self, folder: Path, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, str(folder), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            process_group=0,
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def send(self, *command: object) -> None:
        try:
            print(*command, file=self._stdin, flush=True)
        except OSError:
            raise Failed(f"process {self.pid} has ended") from None

    def reply(self) -> list[str]:
        return self.next_reply([self])[1]

    @staticmethod
    def next_reply(processes: Sequence[DemoProcess]) -> tuple[DemoProcess, list[str]]:
        """Wait for the first reply of any of the processes."""
        by_stdout = {process._stdout: process for process in processes}
        ready, _, _ = select.select(list(by_stdout), [], [], PATIENCE)
        if not ready:
            pids = [process.pid for process in processes]
            raise Failed(f"no reply from {pids} in {PATIENCE:g} s")
        reply = ready[0].readline().split()
        if not reply:
            raise Failed(f"process {by_stdout[ready[0]].pid} ended unexpectedly")
        return by_stdout[ready[0]], reply

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def end(self) -> None:
        self._process.kill()  # SIGKILL ends a stopped process too
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # the last command was never read
                pipe.close()


@contextlib.contextmanager
def shared_folder(processes: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockfast-demo-"))
    try:
        (folder / worker.COUNTER).write_bytes(b"")
        (folder / worker.SCORES).write_bytes(bytes(worker.SLOT * processes))
        with contextlib.closing(sqlite3.connect(folder / worker.WITNESS)) as witness, witness:
            witness.execute("CREATE TABLE account (text TEXT, fence INTEGER)")
            witness.execute("INSERT INTO account VALUES ('', 0)")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def demo_processes(folder: Path, number: int) -> Iterator[list[DemoProcess]]:
    started: list[DemoProcess] = []
    try:
        for index in range(number):
            started.append(DemoProcess(folder, index))
        yield list(started)
    finally:
        for process in started:
            process.end()
