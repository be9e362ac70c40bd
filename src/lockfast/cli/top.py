"""`lockfast top [PREFIX]`: a live full-screen view of the names that are held or waited for.

`top_model` polls the store and keeps what was observed; `top_view` is the user interface; here are
the loop and the terminal, which is always restored, however the program ends.

Signals are handled here too. SIGTERM, SIGHUP and SIGINT end the loop, which restores the terminal;
Ctrl-Z restores it, stops the process, and takes the terminal again afterwards; a change of size
redraws all. The handlers only wake the loop (a byte in a pipe), so that no signal is handled in the
middle of an operation.

The screen is drawn with a dozen escape sequences that every terminal since the VT100 knows, and
termios. A full-screen library (textual, rich, curses) was rejected: it brings windows, layouts and
events, of which a list and a few keys need none, and curses needs a terminal description that the
remote end of an ssh session often lacks.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Self

from lockfast.cli.admin import administer
from lockfast.cli.main import USAGE, exits, fail, names, option, store, verb
from lockfast.cli.screen import can_encode
from lockfast.cli.top_model import Break, Poller
from lockfast.cli.top_view import PLAIN, Line, Mode, Operator, Quit, Scene, frame, page, visible
from lockfast.errors import ConfigurationError

# Alternate screen, no cursor, no wrapping of long lines.
TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
RESTORE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
STYLES = {"": "", "bold": "\x1b[1m", "reverse": "\x1b[7m"}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
REST = 0.05  # limit for the rest of an escape sequence to arrive over a slow connection
SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[A-Za-z])")
INCOMPLETE = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?$")
NAMED = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down",
    "\x1b[D": "left", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "esc",
}  # fmt: skip

INTERVAL, LEAST_INTERVAL = 1.0, 0.2
EPILOG = f"""\
keys:
  arrows, j k   select a name
  Enter         show all holders and waiters of the name
  b             break a hold, after a confirmation that shows its fence
  /             filter names, holders and labels
  s             change the sort order (at first: longest wait)
  ?             explain the columns
  q             quit

Needs a terminal of at least 40 × 8; works over ssh. Figures come from inspecting the store, which
keeps no statistics: hand-overs are a lower bound. With very many names, each round inspects the
names on the screen, names with waiters, and some of the others in rotation. For scripts, use
lockfast ls --json.

examples:
  lockfast top
  lockfast top orders: --url redis://localhost:6379/0
  lockfast top --all-namespaces --interval 5

{exits("quit with q")}"""
EVERY = f"seconds between two rounds (default: {INTERVAL:g})"


@verb(
    "Watch the names that are held or waited for, live.",
    EPILOG,
    [
        *names("show"),
        option("--interval", type=float, metavar="S", default=INTERVAL, help=EVERY),
        *store(),
    ],
)
def top(args: argparse.Namespace) -> int:
    if not LEAST_INTERVAL <= args.interval <= 3600:
        allowed = f"must be between {LEAST_INTERVAL} and 3600"
        raise ConfigurationError(f"--interval {args.interval:g}: {allowed}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        return fail("top needs a terminal; for scripts use lockfast ls --json", USAGE)
    with administer(args) as admin, Terminal() as terminal:
        poller = Poller(
            admin,
            args.prefix,
            everywhere=args.all_namespaces,
            interval=args.interval,
            on_update=terminal.wake,
        )
        where = f"{admin.store} ({'all' if args.all_namespaces else admin.namespace})"
        poller.start()
        try:
            return _loop(terminal, poller, where, args.interval)
        except Ended as end:
            (number,) = end.args
            return 128 + number if number else 0
        finally:
            poller.stop()


def _loop(terminal: Terminal, poller: Poller, where: str, interval: float) -> int:
    operator = Operator()
    while True:
        width, height = terminal.size()
        rows, name, totals = poller.look(operator.order, operator.filter, operator.name)
        poller.visible = visible(operator, rows, page(height))
        while poller.messages:
            operator.message = poller.messages.popleft()
        scene = Scene(where, time.strftime("%H:%M:%S"), totals, rows, name, poller.problem())
        terminal.draw(frame(scene, operator, width, height))
        for key in terminal.keys(interval):
            rows, name, _ = poller.look(operator.order, operator.filter, operator.name)
            match operator.press(key, rows, name, page(height)):
                case Quit():
                    return 0
                case Break() as request:
                    operator.message = "breaking…"
                    poller.request_break(request)
            if operator.mode is Mode.BREAK:
                # Keys typed before the question was on the screen must not answer it.
                terminal.discard_typed()
                break


class Ended(Exception):
    """The program has to end: by this signal, or because the terminal is gone (0)."""


class Terminal:
    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")
        self._encoding = sys.stdout.encoding or "ascii"
        self._plain = not can_encode(sys.stdout, "≥…⏎↑↓")
        self._drawn: list[Line] = []
        self._before: list[object] = []
        self._handlers: dict[int, object] = {}
        self._received: list[int] = []
        self._typed = ""

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in (*ENDING, *OTHERS):
            self._handlers[number] = signal.signal(number, self._on_signal)
        self._take()
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_wakeup_fd)
        for end in self._pipe:
            os.close(end)

    def _take(self, *, saves: bool = True) -> None:
        if saves:
            self._before = termios.tcgetattr(self._in)
        # Deliver keys at once and without echo; Ctrl-C and Ctrl-Z still send signals.
        tty.setcbreak(self._in, termios.TCSADRAIN)
        self._drawn = []
        self._write(TAKE)

    def _restore(self) -> None:
        with contextlib.suppress(Ended, termios.error):  # nothing to restore if it is gone
            self._write(RESTORE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)

    def _handle_signals(self) -> None:
        while self._received:
            number = self._received.pop(0)
            if number in ENDING:
                raise Ended(number)
            if number == signal.SIGTSTP:
                self._suspend()
            elif number == signal.SIGCONT:
                # Continued after SIGSTOP, which cannot be caught: the terminal's state is unknown.
                self._take(saves=False)
            else:
                self._drawn = []

    def _suspend(self) -> None:
        """Return to the shell until fg."""
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)
        self._take()

    def wake(self) -> None:
        """Make `keys` return. May be called from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b"\0")

    def size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size((80, 24))
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._out)
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines that have changed since the last call: the connection may be slow."""
        if len(lines) != len(self._drawn):
            self._drawn = []
        output = [] if self._drawn else ["\x1b[0m\x1b[2J"]
        for at, line in enumerate(lines):
            if not self._drawn or self._drawn[at] != line:
                text = line.text.translate(PLAIN) if self._plain else line.text
                output.append(f"\x1b[{at + 1};1H{STYLES[line.style]}{text}\x1b[0m\x1b[K")
        self._drawn = list(lines)
        if output:
            self._write("".join(output))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except BlockingIOError:  # made non-blocking by another program: redraw all next time
            self._drawn = []
        except OSError as error:
            raise Ended(0) from error

    def keys(self, timeout: float) -> list[str]:
        """Wait for keys; none after the timeout or `wake`. Raises `Ended` to end the program."""
        self._handle_signals()
        ready = select.select([self._in, self._pipe[0]], [], [], timeout)[0]
        if self._pipe[0] in ready:
            os.read(self._pipe[0], 4096)
        self._handle_signals()
        if self._in not in ready:
            return []
        self._read()
        while INCOMPLETE.search(self._typed) and select.select([self._in], [], [], REST)[0]:
            self._read()
        typed, self._typed = self._typed, ""
        return parsed(typed)

    def discard_typed(self) -> None:
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
    """Split input into keys: named ones, or the character itself. Unknown sequences are ignored."""
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
