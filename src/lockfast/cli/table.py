"""Tables for people: aligned, as wide as the terminal, or 80 columns where there is none.

Where a table does not fit, its widest columns of those that may be cut give way first. With
``wide`` nothing is cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lockfast.cli.sanitize import cut, padded, width_of

WIDTH, LEAST_WIDTH = 80, 40
GAP = "  "
LEAST = 8  # of a column that is cut


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    cuts: bool = False


def room(*, wide: bool = False) -> int | None:
    """Columns of the terminal; None for as many as are needed."""
    if wide:
        return None
    if not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, LEAST_WIDTH)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Its lines, the titles first. A column in which no row says anything is left out."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    titles = [columns[at] for at in kept]
    cells = [[column.title for column in titles], *([row[at] for at in kept] for row in rows)]
    widths = [max(width_of(line[at]) for line in cells) for at in range(len(kept))]
    if width is not None:
        _shrink(widths, titles, width - len(GAP) * (len(kept) - 1))
    return [
        GAP.join(
            padded(cut(cell, wide), wide, right=column.right)
            for cell, wide, column in zip(line, widths, titles, strict=True)
        ).rstrip()
        for line in cells
    ]


def _shrink(widths: list[int], columns: Sequence[Column], width: int) -> None:
    while sum(widths) > width:
        able = [at for at, column in enumerate(columns) if column.cuts and widths[at] > LEAST]
        if not able:
            return
        widths[max(able, key=lambda at: widths[at])] -= 1
