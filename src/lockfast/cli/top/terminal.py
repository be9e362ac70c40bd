"""The screen and the keyboard, borrowed: whatever happens they are given back as they were.

Signals are part of it. SIGTERM, SIGHUP and SIGINT end the loop, which gives the screen back;
Ctrl-Z gives it back, stops us, and takes it again afterwards; a new size is drawn anew. All of them
only wake the loop up (a byte in a pipe), so that nothing happens in the middle of something else.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

from lockfast.cli.top.view import PLAIN, Line

# The other screen, no cursor, and lines that are too long are cut, not wrapped.
TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
GIVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
STYLES = {"": "", "bold": "\x1b[1m", "reverse": "\x1b[7m"}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
# How long the rest of an escape sequence may take over a slow line.
REST = 0.05
SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[A-Za-z])")
BEGUN = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?$")
NAMED = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down",
    "\x1b[D": "left", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "esc",
}  # fmt: skip


class Ended(Exception):
    """By a signal, or because the terminal is gone (0)."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")
        self._encoding = sys.stdout.encoding or "ascii"
        self._plain = not _can_say("≥…⏎↑↓", self._encoding)
        self._drawn: list[Line] = []
        self._before: list[object] = []
        self._had: dict[int, object] = {}
        self._came: list[int] = []
        self._typed = ""

    # ---- borrowing -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._had_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in (*ENDING, *OTHERS):
            self._had[number] = signal.signal(number, self._heard)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give()
        for number, handler in self._had.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._had_wakeup)
        for end in self._pipe:
            os.close(end)

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._in)
        # Keys at once and unseen; Ctrl-C and Ctrl-Z are signals still.
        tty.setcbreak(self._in, termios.TCSADRAIN)
        self._drawn = []
        self._write(TAKE)

    def _give(self) -> None:
        with contextlib.suppress(Ended, termios.error):  # a terminal that is gone needs nothing
            self._write(GIVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    # ---- signals ---------------------------------------------------------------------------

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def _obey(self) -> None:
        while self._came:
            number = self._came.pop(0)
            if number in ENDING:
                raise Ended(number)
            if number == signal.SIGTSTP:
                self._suspend()
            elif number == signal.SIGCONT:
                # Stopped by something that we could not hear of (SIGSTOP): who knows how the
                # terminal looks now.
                tty.setcbreak(self._in, termios.TCSADRAIN)
                self._drawn = []
                self._write(TAKE)
            else:
                self._drawn = []

    def _suspend(self) -> None:
        """Back to the shell, until it says fg."""
        self._give()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._heard)
        self._take()

    def wake(self) -> None:
        """End `keys`, from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b"\0")

    # ---- the screen ------------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size((80, 24))
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._out)
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Line]) -> None:
        """What has changed since it was drawn last: an ssh may be slow."""
        if len(lines) != len(self._drawn):
            self._drawn = []
        said = [] if self._drawn else ["\x1b[0m\x1b[2J"]
        for at, line in enumerate(lines):
            if not self._drawn or self._drawn[at] != line:
                text = line.text.translate(PLAIN) if self._plain else line.text
                said.append(f"\x1b[{at + 1};1H{STYLES[line.style]}{text}\x1b[0m\x1b[K")
        self._drawn = list(lines)
        if said:
            self._write("".join(said))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except BlockingIOError:  # somebody made it so, and reads slowly: draw all of it next time
            self._drawn = []
        except OSError as error:
            raise Ended(0) from error

    # ---- the keyboard ----------------------------------------------------------------------

    def keys(self, timeout: float) -> list[str]:
        """What was pressed; nothing after so long, or when `wake` was called. `Ended`, if we are
        to end."""
        self._obey()
        ready = select.select([self._in, self._pipe[0]], [], [], timeout)[0]
        if self._pipe[0] in ready:
            os.read(self._pipe[0], 4096)
        self._obey()
        if self._in not in ready:
            return []
        self._read()
        while BEGUN.search(self._typed) and select.select([self._in], [], [], REST)[0]:
            self._read()
        typed, self._typed = self._typed, ""
        return parsed(typed)

    def forget_typed(self) -> None:
        with contextlib.suppress(termios.error):
            termios.tcflush(self._in, termios.TCIFLUSH)

    def _read(self) -> None:
        try:
            data = os.read(self._in, 1024)
        except OSError as error:
            raise Ended(0) from error
        if not data:
            raise Ended(0)
        self._typed += self._letters.decode(data)


def parsed(text: str) -> list[str]:
    """Keys by name, or the letter itself; sequences that we do not know are passed over."""
    keys = []
    while text:
        sequence = SEQUENCE.match(text)
        taken = sequence[0] if sequence else text[0]
        text = text[len(taken) :]
        if taken in NAMED:
            keys.append(NAMED[taken])
        elif taken.isprintable():
            keys.append(taken)
    return keys


def _can_say(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
