"""Start the command as a user does: real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOCKFAST = [sys.executable, "-m", "lockfast"]
ON_A_TERMINAL = [
    sys.executable,
    "-c",
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
]
# Generous limit for any single step on a busy machine.
PATIENCE = 30.0

Start = Callable[..., "subprocess.Popen[str]"]


def run(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOCKFAST, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        start_new_session=True,
        check=False,
        **more,
    )


def line(process: subprocess.Popen[str]) -> str:
    """Read the next line of output. Unbuffered: `select` must see what is left."""
    assert process.stdout is not None
    text = b""
    until = time.monotonic() + PATIENCE
    while not text.endswith(b"\n"):
        ready = select.select([process.stdout.fileno()], [], [], until - time.monotonic())[0]
        assert ready, f"no output after {text!r}"
        letter = os.read(process.stdout.fileno(), 1)
        assert letter, f"it ended after {text!r}: {process.stderr and process.stderr.read()}"
        text += letter
    return text.decode().strip()


def is_silent(process: subprocess.Popen[str], seconds: float) -> bool:
    assert process.stdout is not None
    return not select.select([process.stdout.fileno()], [], [], seconds)[0]


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """True if the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waiters(url: str) -> int:
    """Count the waiters in the file itself: lockfast would remove dead ones while inspecting."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite://"), timeout=10)) as store:
        ((count,),) = store.execute("SELECT count(*) FROM waiters")
    return int(count)


def error_line(process: subprocess.CompletedProcess[str]) -> str:
    assert process.stderr.startswith("lockfast: "), process.stderr
    assert process.stderr.count("\n") == 1, process.stderr
    return process.stderr
