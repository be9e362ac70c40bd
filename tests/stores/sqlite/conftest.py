"""Child processes that tests control line by line, and that end with the test."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockfast

SOURCE = Path(lockfast.__file__).parent.parent
PATIENCE = 60.0  # how long a test waits for an event that must come; nothing is measured by it

PRELUDE = """
import os, sys, time, threading, signal
import lockfast
url, *rest = sys.argv[1:]
def report(*values): print(*values, flush=True)
def read_line(): return sys.stdin.readline().strip()
"""


class Process:
    """A Python process whose code can use the prelude's ``report`` and ``read_line``."""

    def __init__(self, code: str, *arguments: str) -> None:
        environment = dict(os.environ)
        if "setitimer" in code:
            # Without coverage, whose own Python code the signal handler would interrupt too.
            environment = {name: environment[name] for name in environment if name[:4] != "COVE"}
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": str(SOURCE)},
        )
        self.pid = self._popen.pid
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line.strip())
        self._lines.put("<ended>")

    def line(self, timeout: float = PATIENCE) -> str:
        """The next line that the process reported; ``<ended>`` when it has ended."""
        return self._lines.get(timeout=timeout)

    def send(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(PATIENCE)

    def ended(self) -> int:
        return self._popen.wait(PATIENCE)

    def close(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()  # also ends a stopped process
        self._popen.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass  # the process ended before it read the last line


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start a process; it is killed when the test is over."""
    started: list[Process] = []

    def start(code: str, *arguments: str) -> Process:
        process = Process(code, *arguments)
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite://{path}"


@pytest.fixture
def client(url: str) -> Iterator[lockfast.Client]:
    with lockfast.connect(url) as client:
        yield client


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until the predicate is true, for at most `PATIENCE`."""

    def eventually(predicate: Callable[[], object]) -> None:
        until = time.monotonic() + PATIENCE
        while not predicate():
            assert time.monotonic() < until, "the expected state was never reached"
            time.sleep(0.01)

    return eventually
