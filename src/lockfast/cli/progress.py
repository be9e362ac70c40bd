"""Status line of `lockfast run` while it waits on a terminal: the holder, and the queue position.

A separate thread inspects the store and rewrites the line in place, so the waiting is unaffected;
the line is erased when the wait ends. Without a terminal nothing is inspected or written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lockfast.cli.admin import Inspection
from lockfast.cli.render import describe, held_for, kind_cell
from lockfast.cli.sanitize import escaped, shorten
from lockfast.errors import LockfastError
from lockfast.model import Waiter

DELAY = 0.3  # shorter waits show no line
INTERVAL = 0.5
JOIN_LIMIT = 0.2
ERASE = "\r\x1b[K"


class Progress:
    """Context manager that shows the status line while its block waits."""

    def __init__(self, inspect: Callable[[], Inspection]) -> None:
        self._inspect = inspect
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._drawn = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._mutex:
            self._over.set()
            if self._drawn:
                self._write(ERASE)
        if self._thread is not None:
            # The thread may be waiting for a store that does not answer; its result is not needed.
            self._thread.join(JOIN_LIMIT)

    def _run(self) -> None:
        pause = DELAY
        while not self._over.wait(pause):
            pause = INTERVAL
            try:
                line = status_line(self._inspect())
            except LockfastError:
                line = "waiting: the store does not answer"
            with self._mutex:
                if not self._over.is_set():
                    width = shutil.get_terminal_size((80, 24)).columns - 1
                    self._drawn = True
                    self._write(ERASE + shorten(line, width))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write(text)
            sys.stderr.flush()


def status_line(inspection: Inspection) -> str:
    """Format ``waiting for report, position 2 of 3: held for 3 min 12 s by …``."""
    snapshot = inspection.snapshot
    mine = [position for position, waiter in enumerate(snapshot.waiters, 1) if _is_ours(waiter)]
    where = f", position {mine[0]} of {len(snapshot.waiters)}" if mine else ""
    text = f"waiting for {escaped(inspection.address.name)}{where}"
    if not snapshot.holders:
        return text
    first, more = snapshot.holders[0], len(snapshot.holders) - 1
    others = f" and {more} more ({kind_cell(inspection)})" if more else ""
    return f"{text}: held for {held_for(first, snapshot)} by {describe(first.who)}{others}"


def _is_ours(waiter: Waiter) -> bool:
    return waiter.who.pid == os.getpid() and waiter.who.host == socket.gethostname()
