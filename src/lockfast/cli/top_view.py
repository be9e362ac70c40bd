"""The user interface of `lockfast top`, without I/O: keys change the state, the state is rendered.

Modes: the list; the details of one name, with its holders and waiters; typing a filter; the
question before a break; the help. A hold is broken only by ``y`` in reply to a question that shows
its holder and fence. The request carries the fence, so a later holder is not broken.

The screen is rendered as lines of text, for any size of at least 40 × 8. Foreign text (names,
labels, hosts) is escaped, so that it cannot move the cursor. Styles (bold, reverse) are added by
the terminal, which knows where a line ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from lockfast.cli.admin import Address, Inspection, describe, lease_left
from lockfast.cli.screen import escaped, padded, printable, shorten, table, truncated, width_of
from lockfast.cli.top_model import Break, Order, Seen, Totals
from lockfast.model import Holder, Waiter

R = TypeVar("R")
LONGEST_FILTER = 60


class Mode(Enum):
    LIST = "list"
    NAME = "name"
    FILTER = "filter"
    BREAK = "break"
    HELP = "help"


COLUMNS = ("NAME…", "KIND", "HOLDER…", "HELD>", "WAIT>", "LONGEST>", "≥/s>", "LAPSED>")
DETAILS = ("", "WHO…", "FENCE>", "SINCE>", "LEASE>", "TAKES>")
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
class Quit:
    """The operator quits."""


class Operator:
    """Handles the keys. ``rows`` are the current lines of the list, ``name`` the open name."""

    def __init__(self) -> None:
        self.mode = Mode.LIST
        self.order = Order.WAIT
        self.filter = ""
        self.selected: Address | None = None  # line of the list; follows the name when lines move
        self.name: Address | None = None  # the name whose details are open
        self.at = 0  # selected holder or waiter in the details
        self.target: tuple[Inspection, Holder] | None = None  # hold that the question is about
        self.message = ""
        self._back = Mode.LIST

    def press(self, key: str, rows: Sequence[Seen], name: Seen | None, page: int) -> object:
        """Handle a key. `Quit` and `Break` are returned for the caller to carry out."""
        self.message = ""
        match self.mode:
            case Mode.FILTER:
                self._type(key)
                return None
            case Mode.BREAK:
                return self._answer(key)
            case Mode.HELP:
                self.mode = self._back
                return None
            case _ if key in ("?", "h"):
                self._back, self.mode = self.mode, Mode.HELP
                return None
            case Mode.NAME:
                return self._in_name(key, name, page)
        return self._in_list(key, rows, page)

    def line_of(self, rows: Sequence[Seen]) -> int:
        """Line of the selected name; the first line if the name is gone."""
        for line, seen in enumerate(rows):
            if seen.address == self.selected:
                return line
        return 0

    def _in_list(self, key: str, rows: Sequence[Seen], page: int) -> object:
        line = self.line_of(rows)
        moved = _moved(key, line, len(rows), page)
        if moved is not None:
            self.selected = rows[moved].address if rows else None
        elif key in ("q", "Q"):
            return Quit()
        elif key == "/":
            self.mode = Mode.FILTER
        elif key == "esc":
            self.filter = ""
        elif key == "s":
            self.order = self.order.next()
        elif key in ("enter", "b") and rows:
            self.selected = self.name = rows[line].address
            self.mode, self.at = Mode.NAME, 0
            if key == "b":
                self._ask(rows[line])
        return None

    def _in_name(self, key: str, name: Seen | None, page: int) -> object:
        if name is not None and name.address != self.name:
            name = None  # outdated: never break a hold of another name here
        count = len(name.snapshot.holders) + len(name.snapshot.waiters) if name else 0
        moved = _moved(key, min(self.at, max(count - 1, 0)), count, page)
        if moved is not None:
            self.at = moved
        elif key in ("q", "esc", "left", "backspace"):
            self.mode = Mode.LIST
        elif key == "b" and name is not None:
            self._ask(name, self.at)
        return None

    def _ask(self, seen: Seen, at: int | None = None) -> None:
        holders = seen.snapshot.holders
        if not holders:
            self.message = "not held: there is nothing to break"
        elif at is None and len(holders) > 1:
            self.message = f"{len(holders)} holders: select one, then press b"
        elif at is not None and at >= len(holders):
            self.message = "this is a waiter: only a hold can be broken"
        else:
            self.target = (seen.inspection, holders[at or 0])
            self._back, self.mode = self.mode, Mode.BREAK

    def _answer(self, key: str) -> object:
        self.mode = self._back
        target, self.target = self.target, None
        if key in ("y", "Y") and target is not None:
            return Break(target[0].address, target[1].fence)
        self.message = "nothing was broken"
        return None

    def _type(self, key: str) -> None:
        if key == "enter":
            self.mode = Mode.LIST
        elif key == "esc":
            self.filter, self.mode = "", Mode.LIST
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and len(self.filter) < LONGEST_FILTER:
            self.filter += key


def _moved(key: str, line: int, count: int, page: int) -> int | None:
    """Line after a movement key; None for other keys."""
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page,
        "home": -count, "g": -count, "end": count, "G": count,
    }  # fmt: skip
    if key not in steps:
        return None
    return min(max(line + steps[key], 0), max(count - 1, 0))


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
        return [Line(message), *[Line("")] * (height - 1)]
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
    empty = [Line("")] * (height - 1 - len(lines))
    return [*lines, *empty, _status(scene, operator, width)]


def page(height: int) -> int:
    """Number of lines of the list."""
    return max(height - 4, 1)


def window(selected: int, count: int, height: int) -> int:
    """First visible line, such that the selected one is visible, and centered if possible."""
    return max(min(selected - height // 2, count - height), 0)


def visible(operator: Operator, rows: Sequence[Seen], lines: int) -> list[Address]:
    """Names on the screen: the open one, or those in the list."""
    if operator.name and operator.mode in (Mode.NAME, Mode.BREAK):
        return [operator.name]
    first = window(operator.line_of(rows), len(rows), lines)
    return [seen.address for seen in rows[first : first + lines]]


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
    return Line(truncated("  ".join(parts), width))


def _list(scene: Scene, operator: Operator, width: int, height: int) -> list[Line]:
    if not scene.rows:
        message = "no name matches" if operator.filter else "nothing is held or waited for"
        return [Line(""), Line(shorten(f"  {message}", width))]
    kept = (0, 3, 4, 5, 7) if width < NARROW else range(len(COLUMNS))
    selected = operator.line_of(scene.rows)
    titles, *lines = _table(COLUMNS, kept, scene.rows, _row, selected, width, height - 1)
    return [Line(titles.text, "bold"), *lines]


def _table(
    titles: Sequence[str], kept: Sequence[int], rows: Sequence[R],
    cells: Callable[[R], list[str]], selected: int, width: int, height: int,
) -> list[Line]:  # fmt: skip
    """Render these columns of as many rows as fit, with the selected one, below their titles."""
    first = window(selected, len(rows), height)
    some = [cells(row) for row in rows[first : first + height]]
    some = [[row[at] for at in kept] for row in some]
    lines = [truncated(line, width) for line in table([titles[at] for at in kept], some, width)]
    marked = selected - first + 1
    return [
        Line(padded(line, width), "reverse") if at == marked else Line(line)
        for at, line in enumerate(lines)
    ]


def _row(seen: Seen) -> list[str]:
    now, waiters = seen.snapshot.now, seen.snapshot.waiters
    return [
        escaped(seen.address.name),
        seen.inspection.kind_cell,
        seen.inspection.holder_cell,
        brief(now - seen.held_since) if seen.snapshot.holders else "-",
        str(len(waiters)),
        brief(now - seen.waited_since) if waiters else "-",
        f"{seen.rate:.1f}",
        str(seen.lapsed or ""),
    ]


def _details(name: Seen | None, operator: Operator, width: int, height: int) -> list[Line]:
    title = escaped(operator.name.name) if operator.name else ""
    if name is None or name.address != operator.name:
        return [Line(shorten(title, width), "bold"), Line("  no holders, no waiters")]
    inspection, snapshot = name.inspection, name.snapshot

    def cells(first: str, one: Holder | Waiter, fence: str, lease: str) -> list[str]:
        takes = inspection.mode(one) or str(one.take)
        return [first, describe(one.who), fence, inspection.age(one), lease, takes]

    rows = [cells("holds", one, str(one.fence), lease_left(one)) for one in snapshot.holders]
    rows += [cells(f"{number}.", one, "", "") for number, one in enumerate(snapshot.waiters, 1)]
    kept = (0, 1, 2) if width < NARROW else range(len(DETAILS))
    selected = min(operator.at, len(rows) - 1)
    lines = _table(DETAILS, kept, rows, list, selected, width, height - 2)
    kind = f"  {inspection.kind_cell}, {len(snapshot.waiters)} waiting"
    return [Line(shorten(title, width - width_of(kind)) + kind, "bold"), *lines]


def _question(operator: Operator, width: int) -> list[Line]:
    if operator.target is None:
        return []
    inspection, holder = operator.target
    text = (
        f"Break the hold on {escaped(inspection.address.name)}?",
        "",
        f"  held by  {describe(holder.who)}",
        f"  for      {inspection.age(holder)}",
        f"  lease    {lease_left(holder)} left, unless it is renewed",
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
    return Line(padded(truncated(printable(text), width), width), "reverse")


def brief(seconds: float) -> str:
    """Format a duration for a narrow column."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
