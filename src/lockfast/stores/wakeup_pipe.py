"""A pipe with which a thread that hears is woken up. Not forgotten if nobody hears just now."""

from __future__ import annotations

import contextlib
import os
import threading


class WakeupPipe:
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._interrupted = False
        self._pipe: tuple[int, int] | None = None

    def ready(self, timeout: float | None) -> tuple[int, float | None]:
        """The descriptor to listen to, and for how long: not at all if poked before."""
        with self._mutex:
            if self._pipe is None:
                self._pipe = os.pipe()
                os.set_blocking(self._pipe[0], False)
                os.set_blocking(self._pipe[1], False)
            if self._interrupted:
                self._interrupted = False
                timeout = 0.0
            return self._pipe[0], timeout

    def interrupt(self) -> None:
        with self._mutex:
            self._interrupted = True
            if self._pipe is not None:
                with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
                    os.write(self._pipe[1], b"!")

    def heard(self) -> None:
        """It was written to: empty it."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 4096)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._interrupted = False
        self._drop()

    def _drop(self) -> None:
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self._drop()
