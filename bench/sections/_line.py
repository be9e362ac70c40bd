"""One line of the table: a figure, its comparison, and whether the target is met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """``met`` is None where there is no target."""

    what: str
    value: float
    unit: str
    against: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None


def at_most(
    limit: float, what: str, value: float, unit: str, against: str = "", ratio: str = ""
) -> Line:
    """A line whose value should not be above the limit."""
    return Line(what, value, unit, against, ratio, f"≤ {number(limit)} {unit}", value <= limit)


def at_least(
    limit: float, what: str, value: float, unit: str, against: str = "", ratio: str = ""
) -> Line:
    """A line whose value should not be below the limit."""
    return Line(what, value, unit, against, ratio, f"≥ {number(limit)} {unit}", value >= limit)


def times(what: str, value: float, unit: str, against: str, ratio: float, least: float) -> Line:
    """A line whose ratio to another figure of the same run should not be below ``least``."""
    return Line(what, value, unit, against, f"{ratio:.2f}×", f"≥ {least:g}×", ratio >= least)


def number(value: float) -> str:
    """Format with three significant digits."""
    if math.isnan(value):
        return "–"
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def table(title: str, lines: Sequence[Line]) -> str:
    """Format the lines as a table with headings."""
    rows = [("what", "value", "against", "ratio", "target", "")]
    for line in lines:
        mark = "" if line.met is None else "✓" if line.met else "✗"
        value = f"{number(line.value)} {line.unit}".rstrip()
        rows.append((line.what, value, line.against, line.ratio, line.target, mark))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {1, 3}  # figures are compared from the right
    text = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = "  ".join("─" * width for width in widths).rstrip()
    return "\n".join([f"── {title} ", text[0], rule, *text[1:]])
