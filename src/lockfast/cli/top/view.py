"""The screen as lines of text, for any size from 40×8 on. No I/O.

What strangers wrote (names, labels, hosts) passes through `plain`, so that none of it can move the
cursor; what marks a line (bold, reverse) is added by the terminal, which knows where a line ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockfast.cli.render import held_for, kind_cell, lease_left, mode, tersely, waits_for, whose
from lockfast.cli.sanitize import CUT, cut, legible, padded, shown, width_of
from lockfast.cli.table import Column, table
from lockfast.cli.top.keys import Mode, Operator
from lockfast.cli.top.model import Seen, Totals
from lockfast.model import Holder, Waiter

COLUMNS = (
    Column("NAME", cuts=True),
    Column("KIND"),
    Column("HOLDER", cuts=True),
    Column("HELD", right=True),
    Column("WAIT", right=True),
    Column("LONGEST", right=True),
    Column("≥/s", right=True),
    Column("LAPSED", right=True),
)
PEOPLE = (
    Column(""),
    Column("WHO", cuts=True),
    Column("FENCE", right=True),
    Column("SINCE", right=True),
    Column("LEASE", right=True),
    Column("TAKES", right=True),
)
# Below so many columns some are left out: who, and how often, can be seen in the name's own view.
NARROW = 64
KEYS = {
    Mode.LIST: "q quit  / filter  s sort  ⏎ look  b break  ? help",
    Mode.NAME: "esc back  ↑↓ choose  b break  ? help",
    Mode.FILTER: "⏎ keep  esc clear",
    Mode.BREAK: "y break it  any other key: no",
    Mode.HELP: "any key: back",
}
HELP = """\
↑ ↓ j k, page up/down, g G   choose a line
⏎ look at a name: all who hold it and wait for it, in order
b break a hold, after a question that shows its holder and its fence
/ show only names, holders and labels with some text in them; esc clears
s sort by: longest wait, longest hold, hand-overs, lapsed, name
q quit   Ctrl-Z suspend

HELD is for how long, WAIT how many wait, LONGEST the one who has waited
longest. ≥/s is hand-overs a second that were seen:
between two looks there may be more. LAPSED are holds that ended with
their lease and without a release, as far as that was seen here.
Of a store with very many names some are looked at in each round: those
shown, those waited for, and the others in turn."""
LEAST_LINES, LEAST_COLUMNS = 8, 40
PLAIN = str.maketrans({"≥": ">", "…": "~", "⏎": "RET", "↑": "^", "↓": "v", "—": "-"})


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a screen shows."""

    where: str
    clock: str
    totals: Totals
    rows: Sequence[Seen]
    name: Seen | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: str = ""  # "", "bold", "reverse"


def frame(scene: Scene, operator: Operator, width: int, height: int) -> list[Line]:
    """Exactly ``height`` lines of at most ``width`` columns."""
    if width < LEAST_COLUMNS or height < LEAST_LINES:
        few = [Line(cut(f"{LEAST_COLUMNS}×{LEAST_LINES} at least", width))]
        return _filled(few, height)[:height]
    lines = [_title(scene, width), _counts(scene, operator, width)]
    match operator.mode:
        case Mode.HELP:
            body = [Line(cut(line, width)) for line in HELP.splitlines()]
        case Mode.BREAK:
            body = _question(operator, width)
        case Mode.NAME:
            body = _people(scene.name, operator, width, height - 3)
        case _:
            body = _list(scene, operator, width, height - 3)
    lines += body[: height - 3]
    return [*_filled(lines, height - 1), _status(scene, operator, width)]


def page(height: int) -> int:
    """Lines of the list."""
    return max(height - 4, 1)


def window(chosen: int, count: int, height: int) -> int:
    """Where the list begins, so that the chosen line is on the screen, in its middle if it can."""
    return max(min(chosen - height // 2, count - height), 0)


def _title(scene: Scene, width: int) -> Line:
    left = cut(f"lockfast top  {legible(scene.where)}", width - len(scene.clock) - 1)
    return Line(padded(left, width - len(scene.clock)) + scene.clock, "bold")


def _counts(scene: Scene, operator: Operator, width: int) -> Line:
    totals = scene.totals
    known = "" if totals.known >= totals.names else f" ({totals.known} known)"
    parts = [
        f"{totals.names} names{known}",
        f"{totals.contended} waited for by {totals.waiting}",
        f"hand-overs ≥ {totals.rate:.1f}/s",
        *([f"lapsed {totals.lapsed}"] if totals.lapsed else []),
        f"by {operator.order.value}",
    ]
    if operator.filter and operator.mode is not Mode.FILTER:
        parts.append(f"/{shown(operator.filter)}")
    return Line(_begun("  ".join(parts), width))


def _list(scene: Scene, operator: Operator, width: int, height: int) -> list[Line]:
    if not scene.rows:
        said = "nothing that matches" if operator.filter else "nothing is held or waited for"
        return [Line(""), Line(cut(f"  {said}", width))]
    chosen = operator.line_of(scene.rows)
    first = window(chosen, len(scene.rows), height - 1)
    some = scene.rows[first : first + height - 1]
    kept = (0, 3, 4, 5, 7) if width < NARROW else range(len(COLUMNS))
    titles, *lines = _table(COLUMNS, [_row(seen) for seen in some], kept, width)
    return [Line(titles, "bold"), *_marked(lines, chosen - first, width)]


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int], width: int
) -> list[str]:
    some = [[row[at] for at in kept] for row in rows]
    lines = table([columns[at] for at in kept], some, width)
    return [_begun(line, width) for line in lines]


def _marked(lines: Sequence[str], chosen: int, width: int) -> list[Line]:
    return [
        Line(padded(line, width), "reverse") if at == chosen else Line(line)
        for at, line in enumerate(lines)
    ]


def _row(seen: Seen) -> list[str]:
    snapshot = seen.snapshot
    first = snapshot.holders[0] if snapshot.holders else None
    more = f" +{len(snapshot.holders) - 1}" if len(snapshot.holders) > 1 else ""
    return [
        shown(seen.sight.address.name),
        kind_cell(seen.sight),
        tersely(first.who) + more if first else "-",
        brief(snapshot.now - seen.held_since) if first else "-",
        str(len(snapshot.waiters)),
        brief(snapshot.now - seen.waited_since) if snapshot.waiters else "-",
        f"{seen.rate:.1f}",
        str(seen.lapsed or ""),
    ]


def _people(name: Seen | None, operator: Operator, width: int, height: int) -> list[Line]:
    address = operator.name
    title = shown(address.name) if address else ""
    if name is None or name.sight.address != address:
        return [Line(cut(title, width), "bold"), Line("  nobody holds it, nobody waits")]
    snapshot = name.snapshot
    rows = [_holder(one, name) for one in snapshot.holders]
    rows += [_waiter(position, one, name) for position, one in enumerate(snapshot.waiters, 1)]
    chosen = min(operator.at, len(rows) - 1)
    first = window(chosen, len(rows), height - 2)
    kept = (0, 1, 2) if width < NARROW else range(len(PEOPLE))
    titles, *lines = _table(PEOPLE, rows[first : first + height - 2], kept, width)
    kind = f"  {kind_cell(name.sight)}, {len(snapshot.waiters)} waiting"
    return [
        Line(cut(title, width - width_of(kind)) + kind, "bold"),
        Line(titles),
        *_marked(lines, chosen - first, width),
    ]


def _holder(one: Holder, name: Seen) -> list[str]:
    takes = mode(one.take, name.snapshot.slots) or str(one.take)
    since = held_for(one, name.snapshot)
    return ["holds", whose(one.who), str(one.fence), since, lease_left(one), takes]


def _waiter(position: int, one: Waiter, name: Seen) -> list[str]:
    takes = mode(one.take, name.snapshot.slots) or str(one.take)
    return [f"{position}.", whose(one.who), "", waits_for(one, name.snapshot), "", takes]


def _question(operator: Operator, width: int) -> list[Line]:
    if operator.target is None:
        return []
    sight, holder = operator.target
    said = (
        f"Break the hold on {shown(sight.address.name)}?",
        "",
        f"  held by  {whose(holder.who)}",
        f"  for      {held_for(holder, sight.snapshot)}",
        f"  lease    {lease_left(holder)} left, unless it is renewed",
        f"  fence    {holder.fence}",
        "",
        "Whoever is next gets it at once. The holder, if it lives, goes on until",
        "its next renewal: only the fence protects what both write to.",
        "",
        "y: break it, if it still has this fence.   Any other key: no.",
    )
    first, *rest = [cut(line, width) for line in said]
    return [Line(first, "bold"), *map(Line, rest)]


def _status(scene: Scene, operator: Operator, width: int) -> Line:
    if operator.mode is Mode.FILTER:
        text = f"/{shown(operator.filter)}▏  {KEYS[Mode.FILTER]}"
    else:
        text = operator.message or scene.trouble or KEYS[operator.mode]
    return Line(padded(_begun(legible(text), width), width), "reverse")


def _begun(text: str, width: int) -> str:
    """A sentence that is too long loses its end, not its middle."""
    while width_of(text) > width:
        text = text[: width - 1 if len(text) > width else -2] + CUT
    return text


def _filled(lines: list[Line], height: int) -> list[Line]:
    return lines + [Line("")] * (height - len(lines))


def brief(seconds: float) -> str:
    """A duration for a narrow column."""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for most, unit, part, rest in ((60, 1, "s", ""), (3600, 60, "m", "s"), (86400, 3600, "h", "m")):
        if whole < most:
            smaller = f"{whole % unit // (unit // 60):02}{rest}" if rest else ""
            return f"{whole // unit}{part}{smaller}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
