"""Starting the command as a user does, and talking to it. Real processes, real signals."""

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
# A machine that is busy with other things needs long for everything.
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
    """The next line that it says. Read without a buffer: `select` must see what is left."""
    assert process.stdout is not None
    told = b""
    until = time.monotonic() + PATIENCE
    while not told.endswith(b"\n"):
        ready = select.select([process.stdout.fileno()], [], [], until - time.monotonic())[0]
        assert ready, f"it said nothing, after {told!r}"
        letter = os.read(process.stdout.fileno(), 1)
        assert letter, f"it ended after {told!r}: {process.stderr and process.stderr.read()}"
        told += letter
    return told.decode().strip()


def is_silent(process: subprocess.Popen[str], seconds: float) -> bool:
    assert process.stdout is not None
    return not select.select([process.stdout.fileno()], [], [], seconds)[0]


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie is dead, also if nobody buries it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waiters(url: str) -> int:
    """How many wait, read from the file: lockfast itself would bury the dead while it looks."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite://"), timeout=10)) as store:
        ((count,),) = store.execute("SELECT count(*) FROM waiters")
    return int(count)


def one_complaint(process: subprocess.CompletedProcess[str]) -> str:
    assert process.stderr.startswith("lockfast: "), process.stderr
    assert process.stderr.count("\n") == 1, process.stderr
    return process.stderr
