"""State of the user interface: the selected line, the filter, the open question. No I/O.

Modes: the list; the details of one name, with its holders and waiters; typing a filter; the
question before a break; the help. A hold is broken only by ``y`` in reply to a question that shows
its holder and fence. The request carries the fence, so a later holder is not broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lockfast.cli.admin import Address, Inspection
from lockfast.cli.top.model import Order, Seen
from lockfast.model import Holder

LONGEST_FILTER = 60


class Mode(Enum):
    LIST = "list"
    NAME = "name"
    FILTER = "filter"
    BREAK = "break"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class Quit:
    """The operator quits."""


@dataclass(frozen=True, slots=True)
class Break:
    """Break this hold, if it still has this fence."""

    address: Address
    fence: int


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
            case Mode.NAME:
                return self._in_name(key, name, page)
        return self._in_list(key, rows, page)

    def line_of(self, rows: Sequence[Seen]) -> int:
        """Line of the selected name; the first line if the name is gone."""
        for line, seen in enumerate(rows):
            if seen.inspection.address == self.selected:
                return line
        return 0

    def _in_list(self, key: str, rows: Sequence[Seen], page: int) -> object:
        line = self.line_of(rows)
        moved = _moved(key, line, len(rows), page)
        if moved is not None:
            self.selected = rows[moved].inspection.address if rows else None
        elif key in ("q", "Q"):
            return Quit()
        elif key == "/":
            self.mode = Mode.FILTER
        elif key == "esc":
            self.filter = ""
        elif key == "s":
            self.order = self.order.next()
        elif key in ("enter", "b") and rows:
            self._open(rows[line])
            if key == "b":
                self._ask(rows[line])
        elif key in ("?", "h"):
            self._back, self.mode = self.mode, Mode.HELP
        return None

    def _open(self, seen: Seen) -> None:
        self.selected = self.name = seen.inspection.address
        self.mode, self.at = Mode.NAME, 0

    def _in_name(self, key: str, name: Seen | None, page: int) -> object:
        if name is not None and name.inspection.address != self.name:
            name = None  # outdated: never break a hold of another name here
        count = len(name.snapshot.holders) + len(name.snapshot.waiters) if name else 0
        moved = _moved(key, min(self.at, max(count - 1, 0)), count, page)
        if moved is not None:
            self.at = moved
        elif key in ("q", "esc", "left", "backspace"):
            self.mode = Mode.LIST
        elif key == "b" and name is not None:
            self._ask(name, self.at)
        elif key in ("?", "h"):
            self._back, self.mode = self.mode, Mode.HELP
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
