"""What the operator is about: which line is chosen, what is typed, what is asked. No I/O.

Modes: the list; one name, with its holders and waiters; a filter that is being typed; a question
before something is broken; the help. A hold is broken only by ``y`` to a question that shows its
holder and its fence, and the fence goes with the request: who else holds it by then is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lockfast.cli.admin import Address, Sight
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
    """Enough seen."""


@dataclass(frozen=True, slots=True)
class Break:
    """End this hold, if it still has this fence."""

    address: Address
    fence: int


class Operator:
    """One who presses keys. ``rows`` is what the list shows now, ``name`` what is looked at."""

    def __init__(self) -> None:
        self.mode = Mode.LIST
        self.order = Order.WAIT
        self.filter = ""
        self.chosen: Address | None = None  # a line of the list, which it follows
        self.name: Address | None = None  # whose holders and waiters are shown
        self.at = 0  # which of them
        self.target: tuple[Sight, Holder] | None = None  # what is to be broken
        self.message = ""
        self._back = Mode.LIST

    def press(self, key: str, rows: Sequence[Seen], name: Seen | None, page: int) -> object:
        """Do what the key says; `Quit` and `Break` are for others to do."""
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
        """Where in the list the chosen name is now; the first line if it is not there any more."""
        for line, seen in enumerate(rows):
            if seen.sight.address == self.chosen:
                return line
        return 0

    # ---- the list --------------------------------------------------------------------------

    def _in_list(self, key: str, rows: Sequence[Seen], page: int) -> object:
        line = self.line_of(rows)
        moved = _moved(key, line, len(rows), page)
        if moved is not None:
            self.chosen = rows[moved].sight.address if rows else None
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
        self.chosen = self.name = seen.sight.address
        self.mode, self.at = Mode.NAME, 0

    # ---- one name --------------------------------------------------------------------------

    def _in_name(self, key: str, name: Seen | None, page: int) -> object:
        if name is not None and name.sight.address != self.name:
            name = None  # of another name nothing may be broken here
        count = 0
        if name is not None:
            count = len(name.snapshot.holders) + len(name.snapshot.waiters)
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
            self.message = "nobody holds it: there is nothing to break"
        elif at is None and len(holders) > 1:
            self.message = f"{len(holders)} hold it: choose one, then b"
        elif at is not None and at >= len(holders):
            self.message = "this one waits: only a hold can be broken"
        else:
            self.target = (seen.sight, holders[at or 0])
            self._back, self.mode = self.mode, Mode.BREAK

    def _answer(self, key: str) -> object:
        self.mode = self._back
        target, self.target = self.target, None
        if key in ("y", "Y") and target is not None:
            return Break(target[0].address, target[1].fence)
        self.message = "nothing was broken"
        return None

    # ---- the filter ------------------------------------------------------------------------

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
    """The line after a key that moves; None if it does not."""
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page,
        "home": -count, "g": -count, "end": count, "G": count,
    }  # fmt: skip
    if key not in steps:
        return None
    return min(max(line + steps[key], 0), max(count - 1, 0))
