"""Output of the demo and the benchmark: a terminal, or plain lines where there is none.

On a terminal a block of lines is redrawn in place. Elsewhere (a pipe, a log, a dumb terminal) only
its final state is written. $NO_COLOR turns colors off, and characters that the encoding lacks are
replaced. Everything fits into 80 columns.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

WIDTH = 80
EIGHTHS = " ▏▎▍▌▋▊▉█"
PLAIN = str.maketrans({"█": "#", "·": "-", "✓": "+", "✗": "x", "…": "~", "→": ">", "—": "-"})
COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Screen:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.moves = self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colors = self.moves and not os.environ.get("NO_COLOR")
        self._blocks = self._can_encode(EIGHTHS)
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
        return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if self._colors else text

    def bar(self, part: float, width: int) -> str:
        """Draw ``part`` (0 … 1) of a bar, padded to its full width."""
        part = min(max(part, 0.0), 1.0)
        if not self._blocks:
            return ("#" * round(part * width)).ljust(width)
        whole, rest = divmod(round(part * width * 8), 8)
        return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)

    def _can_encode(self, text: str) -> bool:
        try:
            text.encode(self._out.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def _write(self, text: str) -> None:
        if not self._blocks:
            text = text.translate(PLAIN)
        self._out.write(text)
        self._out.flush()
