"""A program on a real pty, with a terminal emulator at the other end that keeps the screen."""

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

# Generous limit for any single step on a busy machine.
PATIENCE = 30.0
LOCKFAST = [sys.executable, "-m", "lockfast"]
# Ctrl-C, Ctrl-Z and SIGWINCH are sent to the foreground job of the controlling terminal.
CONTROLLED = [
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
# Sequences: alternate screen on and off, cursor hidden and shown.
ALTERNATE, BACK, HIDES, SHOWS = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"


class Driven:
    """A program on a terminal of this size."""

    def __init__(
        self, command: list[str], columns: int = 80, lines: int = 24, **environment: str
    ) -> None:
        self._ours, theirs = os.openpty()
        self.resize(columns, lines, initial=True)
        self.raw = b""
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        inherited = {key: os.environ[key] for key in os.environ if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*CONTROLLED, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", **environment},
        )

    def resize(self, columns: int, lines: int, *, initial: bool = False) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
        if initial:
            self._screens = [pyte.Screen(columns, lines), pyte.Screen(columns, lines)]
            self._switch(0)
        else:
            for screen in self._screens:
                screen.resize(lines, columns)

    def _switch(self, to: int) -> None:
        """Switch to the normal (0) or alternate (1) screen, which pyte does not implement."""
        self.screen = self._screens[to]
        if to:
            self.screen.reset()
        self._stream = pyte.ByteStream(self.screen)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def answer(self, key: str) -> None:
        """Type a key a moment after a question was drawn, as a person does."""
        time.sleep(0.3)
        self.type(key)

    @property
    def text(self) -> str:
        """Text on the screen now."""
        self._read(0.0)
        return "\n".join(self.screen.display)

    def line(self, text: str) -> str:
        """First line of the screen that contains this text."""
        return next((line for line in self.text.splitlines() if text in line), "")

    def until(self, is_so: Callable[[str], object], what: str = "condition not met") -> str:
        """Wait until the screen satisfies the predicate; return its text."""
        ends = time.monotonic() + PATIENCE
        while not is_so(text := self.text):
            assert time.monotonic() < ends, f"{what}:\n{text}\n{self.raw[-500:]!r}"
            self._read(0.05)
        return text

    def shows(self, *texts: str) -> str:
        """Wait until the screen contains all of these texts."""
        return self.until(lambda screen: all(text in screen for text in texts), f"no {texts}")

    def ended(self) -> int:
        """Wait for the end of the program; return its exit code."""
        ends = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"it did not end:\n{self.text}"
            self._read(0.02)
        self._read(0.0)
        return self.process.returncode

    def is_restored(self) -> bool:
        """True if the terminal is back to the normal screen, a visible cursor and its settings."""
        return (
            self.raw.rindex(BACK) > self.raw.rindex(ALTERNATE)
            and self.raw.rindex(SHOWS) > self.raw.rindex(HIDES)
            and termios.tcgetattr(self._theirs) == self.before
        )

    def hang_up(self) -> None:
        """Hang up, as a broken ssh connection does."""
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
                if part in (ALTERNATE, BACK):
                    self._switch(int(part == ALTERNATE))
                else:
                    self._stream.feed(part)
