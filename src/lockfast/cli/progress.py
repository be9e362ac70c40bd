"""While `lockfast run` waits on a terminal: one line, kept up to date in its place, that says who
holds the lock and where in the queue we stand; wiped away when the waiting ends.

A thread of its own looks, so that waiting is what it always was. What it cannot find out it does
not say. Where stderr is no terminal nothing is written, and nothing is asked.
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

from lockfast.cli.admin import Sight
from lockfast.cli.render import held_for, kind_cell, whose
from lockfast.cli.sanitize import cut, shown
from lockfast.errors import LockfastError
from lockfast.model import Waiter

PATIENCE = 0.3  # who waits no longer than this need not be told
PACE = 0.5
LAST_LOOK = 0.2
WIPE = "\r\x1b[K"


class Progress:
    """Around the waiting."""

    def __init__(self, look: Callable[[], Sight]) -> None:
        self._look = look
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._drawn = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)
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
                self._write(WIPE)
        if self._thread is not None:
            # It may be asking a store that does not answer: what it hears nobody will see.
            self._thread.join(LAST_LOOK)

    def _tell(self) -> None:
        pause = PATIENCE
        while not self._over.wait(pause):
            pause = PACE
            try:
                line = described(self._look())
            except LockfastError:
                line = "waiting: the store does not answer"
            with self._mutex:
                if not self._over.is_set():
                    width = shutil.get_terminal_size((80, 24)).columns - 1
                    self._drawn = True
                    self._write(WIPE + cut(line, width))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write(text)
            sys.stderr.flush()


def described(sight: Sight) -> str:
    """``waiting for report, 2nd of 3: held by …, for 3 min 12 s``."""
    snapshot = sight.snapshot
    mine = [position for position, waiter in enumerate(snapshot.waiters, 1) if _is_ours(waiter)]
    where = f", place {mine[0]} of {len(snapshot.waiters)}" if mine else ""
    said = f"waiting for {shown(sight.address.name)}{where}"
    if not snapshot.holders:
        return said
    first, more = snapshot.holders[0], len(snapshot.holders) - 1
    others = f" and {more} more ({kind_cell(sight)})" if more else ""
    return f"{said}: held for {held_for(first, snapshot)} by {whose(first.who)}{others}"


def _is_ours(waiter: Waiter) -> bool:
    return waiter.who.pid == os.getpid() and waiter.who.host == socket.gethostname()
