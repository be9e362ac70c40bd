"""Aligned tables, as wide as the terminal, or 80 columns where there is no terminal.

A table that does not fit shortens its widest shortenable columns first. ``wide`` shortens nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockfast.cli.sanitize import padded, shorten, width_of

WIDTH, LEAST_WIDTH = 80, 40
GAP = "  "
LEAST = 8  # width below which a column is not shortened further


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    shortens: bool = False


def right_aligned(*titles: str) -> Iterator[Column]:
    return (Column(title, right=True) for title in titles)


def room(*, wide: bool = False) -> int | None:
    """Available width in columns; None if unlimited."""
    if wide:
        return None
    if not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, LEAST_WIDTH)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format the lines of a table, titles first. A column that is empty in all rows is omitted."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    titles = [columns[at] for at in kept]
    cells = [[column.title for column in titles], *([row[at] for at in kept] for row in rows)]
    widths = [max(width_of(line[at]) for line in cells) for at in range(len(kept))]
    if width is not None:
        _shrink(widths, titles, width - len(GAP) * (len(kept) - 1))
    return [
        GAP.join(
            padded(shorten(cell, wide), wide, right=column.right)
            for cell, wide, column in zip(line, widths, titles, strict=True)
        ).rstrip()
        for line in cells
    ]


def _shrink(widths: list[int], columns: Sequence[Column], width: int) -> None:
    while sum(widths) > width:
        able = [at for at, column in enumerate(columns) if column.shortens and widths[at] > LEAST]
        if not able:
            return
        widths[max(able, key=lambda at: widths[at])] -= 1
