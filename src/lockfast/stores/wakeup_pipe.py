"""A pipe that interrupts a thread listening for wake-ups. An interrupt while nobody listens is kept
for the next listener."""

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
        """The descriptor to poll, and the time-out: 0 if an interrupt is pending."""
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
                with contextlib.suppress(BlockingIOError):  # full: the listener will wake up anyway
                    os.write(self._pipe[1], b"!")

    def drain(self) -> None:
        """Empty the pipe after it became readable."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 4096)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._interrupted = False
        self._close()

    def _close(self) -> None:
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self._close()
