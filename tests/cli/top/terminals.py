"""A real terminal to drive `lockfast top` on: a pty at one end, an emulator that knows what a
screen would show at the other."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pyte

# A machine that is busy with other things needs long for everything.
PATIENCE = 30.0
LOCKFAST = [sys.executable, "-m", "lockfast"]
# Ctrl-C, Ctrl-Z and a change of size are sent to whom the terminal controls.
CONTROLLED = [
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
# The two screens of a terminal, and back; a cursor that is hidden, and shown.
OTHER, BACK, HIDES, SHOWS = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"


class Driven:
    """A program on a terminal of so many columns and lines."""

    def __init__(
        self, command: list[str], columns: int = 80, lines: int = 24, **environment: str
    ) -> None:
        self._ours, theirs = os.openpty()
        self.resize(columns, lines, tell=False)
        self.raw = b""
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [*CONTROLLED, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )

    def resize(self, columns: int, lines: int, *, tell: bool = True) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
        if tell:
            for screen in self._screens:
                screen.resize(lines, columns)
        else:
            self._screens = [pyte.Screen(columns, lines), pyte.Screen(columns, lines)]
            self._switch(0)

    def _switch(self, to: int) -> None:
        """To the first or the other screen, which pyte does not know: what is written on one leaves
        the other as it was."""
        self.screen = self._screens[to]
        if to:
            self.screen.reset()
        self._stream = pyte.ByteStream(self.screen)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def text(self) -> str:
        """What is on the screen now."""
        self._read(0.0)
        return "\n".join(self.screen.display)

    def line(self, word: str) -> str:
        return next((line for line in self.text.splitlines() if word in line), "")

    def until(self, so: Callable[[str], object], what: str = "it never came to that") -> str:
        """Wait until the screen is so; the screen."""
        ends = time.monotonic() + PATIENCE
        while not so(text := self.text):
            assert time.monotonic() < ends, f"{what}:\n{text}\n{self.raw[-500:]!r}"
            self._read(0.05)
        return text

    def shows(self, *words: str) -> str:
        return self.until(lambda text: all(word in text for word in words), f"no {words}")

    def ended(self) -> int:
        """Its exit code."""
        ends = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"it did not end:\n{self.text}"
            self._read(0.02)
        self._read(0.0)
        return self.process.returncode

    def is_restored(self) -> bool:
        """As it was: the first screen, a cursor, lines that are echoed and edited."""
        return (
            self.raw.rindex(BACK) > self.raw.rindex(OTHER)
            and self.raw.rindex(SHOWS) > self.raw.rindex(HIDES)
            and termios.tcgetattr(self._theirs) == self.before
        )

    def hang_up(self) -> None:
        """As an ssh whose line is cut."""
        os.close(self._ours)
        os.close(self._theirs)
        self._ours, self._theirs = os.openpty()  # to be closed at the end

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def _read(self, timeout: float) -> None:
        while select.select([self._ours], [], [], timeout)[0]:
            timeout = 0.0
            data = os.read(self._ours, 65536)
            self.raw += data
            for part in re.split(rb"(\x1b\[\?1049[hl])", data):
                if part in (OTHER, BACK):
                    self._switch(int(part == OTHER))
                else:
                    self._stream.feed(part)
