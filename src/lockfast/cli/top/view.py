"""Render the screen as lines of text, for any size of at least 40 × 8. No I/O.

Foreign text (names, labels, hosts) is escaped (`sanitize`), so that it cannot move the cursor.
Styles (bold, reverse) are added by the terminal, which knows where a line ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockfast.cli import render
from lockfast.cli.sanitize import ELLIPSIS, escaped, padded, printable, shorten, width_of
from lockfast.cli.table import Column, right_aligned, table
from lockfast.cli.top.keys import Mode, Operator
from lockfast.cli.top.model import Seen, Totals
from lockfast.model import Holder, Waiter

COLUMNS = (
    Column("NAME", shortens=True),
    Column("KIND"),
    Column("HOLDER", shortens=True),
    *right_aligned("HELD", "WAIT", "LONGEST", "≥/s", "LAPSED"),
)
DETAILS = (
    Column(""),
    Column("WHO", shortens=True),
    *right_aligned("FENCE", "SINCE", "LEASE", "TAKES"),
)
# On narrower screens some columns are omitted; the details of a name show them.
NARROW = 64
KEYS = {
    Mode.LIST: "q quit  / filter  s sort  ⏎ details  b break  ? help",
    Mode.NAME: "esc back  ↑↓ select  b break  ? help",
    Mode.FILTER: "⏎ keep  esc clear",
    Mode.BREAK: "y break  any other key: cancel",
    Mode.HELP: "any key: back",
}
HELP = """\
↑ ↓ j k, page up/down, g G   select a line
⏎ details of a name: all holders, and all waiters in order
b break a hold, after a question that shows its holder and fence
/ filter by text in names, holders and labels; esc clears
s sort by: longest wait, longest hold, hand-overs, lapsed, name
q quit   Ctrl-Z suspend

HELD: how long it has been held.  WAIT: number of waiters.
LONGEST: the longest wait so far.
≥/s: observed hand-overs per second, a lower bound.
LAPSED: holds that ended because the lease expired without a release,
as far as observed here.
With very many names, each round inspects the names on the screen,
names with waiters, and some of the others in rotation."""
LEAST_LINES, LEAST_COLUMNS = 8, 40
PLAIN = str.maketrans({"≥": ">", "…": "~", "⏎": "RET", "↑": "^", "↓": "v", "—": "-"})


@dataclass(frozen=True, slots=True)
class Scene:
    """Contents of a screen."""

    where: str
    clock: str
    totals: Totals
    rows: Sequence[Seen]
    name: Seen | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: str = ""  # "", "bold", "reverse"


def frame(scene: Scene, operator: Operator, width: int, height: int) -> list[Line]:
    """Render exactly ``height`` lines of at most ``width`` columns."""
    if width < LEAST_COLUMNS or height < LEAST_LINES:
        message = shorten(f"at least {LEAST_COLUMNS}×{LEAST_LINES}", width)
        return _filled([Line(message)], height)[:height]
    lines = [_title(scene, width), _counts(scene, operator, width)]
    match operator.mode:
        case Mode.HELP:
            body = [Line(shorten(line, width)) for line in HELP.splitlines()]
        case Mode.BREAK:
            body = _question(operator, width)
        case Mode.NAME:
            body = _details(scene.name, operator, width, height - 3)
        case _:
            body = _list(scene, operator, width, height - 3)
    lines += body[: height - 3]
    return [*_filled(lines, height - 1), _status(scene, operator, width)]


def page(height: int) -> int:
    """Number of lines of the list."""
    return max(height - 4, 1)


def window(selected: int, count: int, height: int) -> int:
    """First visible line, such that the selected one is visible, and centered if possible."""
    return max(min(selected - height // 2, count - height), 0)


def _title(scene: Scene, width: int) -> Line:
    left = shorten(f"lockfast top  {printable(scene.where)}", width - len(scene.clock) - 1)
    return Line(padded(left, width - len(scene.clock)) + scene.clock, "bold")


def _counts(scene: Scene, operator: Operator, width: int) -> Line:
    totals = scene.totals
    known = "" if totals.known >= totals.names else f" ({totals.known} known)"
    parts = [
        f"{totals.names} names{known}",
        f"{totals.contended} contended, {totals.waiting} waiting",
        f"hand-overs ≥ {totals.rate:.1f}/s",
        *([f"lapsed {totals.lapsed}"] if totals.lapsed else []),
        f"by {operator.order.value}",
    ]
    if operator.filter and operator.mode is not Mode.FILTER:
        parts.append(f"/{escaped(operator.filter)}")
    return Line(_truncated("  ".join(parts), width))


def _list(scene: Scene, operator: Operator, width: int, height: int) -> list[Line]:
    if not scene.rows:
        message = "no name matches" if operator.filter else "nothing is held or waited for"
        return [Line(""), Line(shorten(f"  {message}", width))]
    selected = operator.line_of(scene.rows)
    first = window(selected, len(scene.rows), height - 1)
    some = scene.rows[first : first + height - 1]
    kept = (0, 3, 4, 5, 7) if width < NARROW else range(len(COLUMNS))
    titles, *lines = _table(COLUMNS, [_row(seen) for seen in some], kept, width)
    return [Line(titles, "bold"), *_highlighted(lines, selected - first, width)]


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int], width: int
) -> list[str]:
    some = [[row[at] for at in kept] for row in rows]
    return [_truncated(line, width) for line in table([columns[at] for at in kept], some, width)]


def _highlighted(lines: Sequence[str], selected: int, width: int) -> list[Line]:
    return [
        Line(padded(line, width), "reverse") if at == selected else Line(line)
        for at, line in enumerate(lines)
    ]


def _row(seen: Seen) -> list[str]:
    snapshot = seen.snapshot
    first = snapshot.holders[0] if snapshot.holders else None
    more = f" +{len(snapshot.holders) - 1}" if len(snapshot.holders) > 1 else ""
    return [
        escaped(seen.inspection.address.name),
        render.kind_cell(seen.inspection),
        render.describe_short(first.who) + more if first else "-",
        brief(snapshot.now - seen.held_since) if first else "-",
        str(len(snapshot.waiters)),
        brief(snapshot.now - seen.waited_since) if snapshot.waiters else "-",
        f"{seen.rate:.1f}",
        str(seen.lapsed or ""),
    ]


def _details(name: Seen | None, operator: Operator, width: int, height: int) -> list[Line]:
    title = escaped(operator.name.name) if operator.name else ""
    if name is None or name.inspection.address != operator.name:
        return [Line(shorten(title, width), "bold"), Line("  no holders, no waiters")]
    snapshot = name.snapshot
    rows = [_holder(one, name) for one in snapshot.holders]
    rows += [_waiter(position, one, name) for position, one in enumerate(snapshot.waiters, 1)]
    selected = min(operator.at, len(rows) - 1)
    first = window(selected, len(rows), height - 2)
    kept = (0, 1, 2) if width < NARROW else range(len(DETAILS))
    titles, *lines = _table(DETAILS, rows[first : first + height - 2], kept, width)
    kind = f"  {render.kind_cell(name.inspection)}, {len(snapshot.waiters)} waiting"
    head = Line(shorten(title, width - width_of(kind)) + kind, "bold")
    return [head, Line(titles), *_highlighted(lines, selected - first, width)]


def _holder(one: Holder, name: Seen) -> list[str]:
    takes = render.mode(one.take, name.snapshot.slots) or str(one.take)
    since = render.held_for(one, name.snapshot)
    return ["holds", render.describe(one.who), str(one.fence), since, render.lease_left(one), takes]


def _waiter(position: int, one: Waiter, name: Seen) -> list[str]:
    takes = render.mode(one.take, name.snapshot.slots) or str(one.take)
    return [
        f"{position}.",
        render.describe(one.who),
        "",
        render.waiting_for(one, name.snapshot),
        "",
        takes,
    ]


def _question(operator: Operator, width: int) -> list[Line]:
    if operator.target is None:
        return []
    inspection, holder = operator.target
    text = (
        f"Break the hold on {escaped(inspection.address.name)}?",
        "",
        f"  held by  {render.describe(holder.who)}",
        f"  for      {render.held_for(holder, inspection.snapshot)}",
        f"  lease    {render.lease_left(holder)} left, unless it is renewed",
        f"  fence    {holder.fence}",
        "",
        "The next waiter gets the lock at once. The holder, if alive, continues",
        "until its next renewal: only the fence protects what both write to.",
        "",
        "y: break it, if it still has this fence.   Any other key: cancel.",
    )
    first, *rest = [shorten(line, width) for line in text]
    return [Line(first, "bold"), *map(Line, rest)]


def _status(scene: Scene, operator: Operator, width: int) -> Line:
    if operator.mode is Mode.FILTER:
        text = f"/{escaped(operator.filter)}▏  {KEYS[Mode.FILTER]}"
    else:
        text = operator.message or scene.problem or KEYS[operator.mode]
    return Line(padded(_truncated(printable(text), width), width), "reverse")


def _truncated(text: str, width: int) -> str:
    """Cut the end of a text that is too wide; `shorten` would cut the middle of a sentence."""
    while width_of(text) > width:
        text = text[: width - 1 if len(text) > width else -2] + ELLIPSIS
    return text


def _filled(lines: list[Line], height: int) -> list[Line]:
    return lines + [Line("")] * (height - len(lines))


def brief(seconds: float) -> str:
    """Format a duration for a narrow column."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    for most, unit, part, rest in ((60, 1, "s", ""), (3600, 60, "m", "s"), (86400, 3600, "h", "m")):
        if whole < most:
            smaller = f"{whole % unit // (unit // 60):02}{rest}" if rest else ""
            return f"{whole // unit}{part}{smaller}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
