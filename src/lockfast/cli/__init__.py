"""The command `lockfast` (`main`), and the output that its verbs share: tables, text made safe.

Names, labels and hosts are chosen by whoever takes a lock. They must not move the operator's
cursor, clear the screen, reverse the text direction or misreport their width, so every character
that is not printable is shown as an escape.

Tables are as wide as the terminal, or 80 columns where there is none. A table that does not fit
shortens its widest shortenable columns first.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

ELLIPSIS = "…"
WIDTH, LEAST_WIDTH = 80, 40
GAP = "  "
LEAST = 8  # width below which a column is not shortened further
EIGHTHS = " ▏▎▍▌▋▊▉█"
NUMBER = r"(?:(\d+(?:\.\d+)?)"
DURATION = re.compile("".join(f"{NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms"))).fullmatch
PLAIN = str.maketrans({"█": "#", "·": "-", "✓": "+", "✗": "x", "…": "~", "→": ">", "—": "-"})
COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def printable(text: str) -> str:
    """Escape what is not printable in a message of ours, which may quote foreign text."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def escaped(text: str) -> str:
    """Escape foreign text. Backslashes are doubled, so two different texts never look the same."""
    return printable(text.replace("\\", "\\\\"))


def shell_quoted(text: str) -> str:
    """Quote foreign text so that it can be pasted into a shell as one word."""
    safe = escaped(text)
    if safe == text:
        return shlex.quote(text)
    return "$'" + safe.replace("'", "\\'") + "'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    # A shell reads \x as one byte, and in UTF-8 only code points below 0x80 are one byte.
    if 0x80 <= ord(letter) < 0x100:
        return f"\\u{ord(letter):04x}"
    return letter.encode("unicode_escape").decode()


def width_of(text: str) -> int:
    """Number of terminal columns that the text occupies."""
    if text.isascii():
        return len(text)
    return sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Cut the middle of a text that is too wide: names usually differ at their ends."""
    if width_of(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = _first(text[::-1], (width - 1) // 2)[::-1]
    return _first(text, width - 1 - width_of(tail)) + ELLIPSIS + tail


def _first(text: str, width: int) -> str:
    taken = 0
    for at, letter in enumerate(text):
        taken += _columns(letter)
        if taken > width:
            return text[:at]
    return text


def padded(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def room(*, wide: bool = False) -> int | None:
    """Available width in columns; None, if ``wide``, for a table that is not shortened."""
    if wide:
        return None
    if not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, LEAST_WIDTH)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format the lines of a table, titles first. A column that is empty in all rows is omitted.

    A ``>`` after a title aligns its column to the right; with ``…`` it may be shortened to fit.
    """
    widths = fitted(titles, rows, width, len(GAP))
    return [
        GAP.join(
            padded(shorten(line[at], wide), wide, right=titles[at][-1:] == ">")
            for at, wide in widths.items()
        ).rstrip()
        for line in ([title.rstrip(">…") for title in titles], *rows)
    ]


def fitted(
    titles: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, gap: int
) -> dict[int, int]:
    """Width of each column of a `table`, by its index; columns that are empty are left out."""
    rows = list(rows)
    widths = {
        at: max(width_of(title.rstrip(">…")), *(width_of(row[at]) for row in rows))
        for at, title in enumerate(titles)
        if any(row[at] for row in rows)
    }
    while width is not None and sum(widths.values()) + gap * (len(widths) - 1) > width:
        able = [at for at in widths if titles[at][-1:] == "…" and widths[at] > LEAST]
        if not able:
            break
        widths[max(able, key=lambda at: widths[at])] -= 1
    return widths


def duration(text: str) -> float:
    """Seconds of a duration as people write it: ``10s``, ``5m``, ``1h30m``, ``500ms``, ``2.5``."""
    match = DURATION(text)
    if match is None or not text:
        try:
            return float(text)
        except ValueError:
            wrong = f"{text!r} is no duration: give seconds, or 500ms, 10s, 5m, 1h30m, 2d"
            raise argparse.ArgumentTypeError(wrong) from None
    parts = zip(match.groups(), (86400.0, 3600.0, 60.0, 1.0, 0.001), strict=True)
    return sum(float(part) * size for part, size in parts if part)


def is_terminal(stream: TextIO) -> bool:
    """True if escape sequences can be written to the stream."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colors(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def painted(color: str, text: str) -> str:
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m"


def can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Screen:
    """Screen of the demo and the benchmark, at most 80 columns wide.

    On a terminal a block of lines is redrawn in place. Elsewhere (a pipe, a log, a dumb terminal)
    only its final state is written. Characters that the encoding lacks are replaced.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.moves = is_terminal(self._out)
        self._colors = has_colors(self._out)
        self._blocks = can_encode(self._out, EIGHTHS)
        self._drawn = 0
        self.width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH) - 1
        if self.moves:
            # Hide the cursor and turn wrapping off: on a terminal narrower than reported, wrapped
            # lines would break the count of lines to move up.
            self._write("\x1b[?25l\x1b[?7l")

    def close(self) -> None:
        """Restore the terminal."""
        if self.moves:
            self._write("\x1b[?25h\x1b[?7h\x1b[0m")

    def line(self, text: str = "") -> None:
        """Print a line. A live block above it keeps its last state."""
        self._drawn = 0
        self._write(text + "\n")

    def live(self, lines: Sequence[str], *, last: bool = False) -> None:
        """Redraw the live block in place. Without a terminal only the ``last`` state is printed."""
        if self.moves:
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            self._write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
            self._drawn = 0 if last else len(lines)
        elif last:
            self._write("".join(f"{line}\n" for line in lines))

    def paint(self, color: str, text: str) -> str:
        return painted(color, text) if self._colors else text

    def bar(self, part: float, width: int) -> str:
        """Draw ``part`` (0 … 1) of a bar, padded to its full width."""
        part = min(max(part, 0.0), 1.0)
        if not self._blocks:
            return ("#" * round(part * width)).ljust(width)
        whole, rest = divmod(round(part * width * 8), 8)
        return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)

    def _write(self, text: str) -> None:
        if not self._blocks:
            text = text.translate(PLAIN)
        self._out.write(text)
        self._out.flush()
