"""The screen of `lockfast top`, on Textual: a table of names, and the claims of the selected one.

A hold is broken only by ``y`` in reply to a question that shows its holder and fence, and only by a
``y`` typed after the question appeared. The request carries the fence, so a later holder is not
broken.

Foreign text is escaped, and never parsed as markup. No key waits for the store.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Sparkline, Static

from lockfast.cli import escaped, fitted, printable, shorten
from lockfast.cli.admin import (
    LAPSED,
    Event,
    Inspection,
    about_break,
    describe,
    in_short,
    lease_left,
)
from lockfast.cli.top import KEYS, SORT_KEYS, Poller, Seen, brief
from lockfast.model import Holder, Waiter

REFRESH, GONE = 0.2, 3.0  # seconds between two looks; until the end after a hang-up
MOST_SHOWN, LONGEST_FILTER = 500, 60  # lines of the list; letters
HELP = f"""\
{KEYS}

HELD     how long it has been held
WAIT     number of waiters
LONGEST  how long the first waiter has waited
≥/s      observed hand-overs per second, a lower bound
LAPSED   holds that ended because their lease expired without a release

With very many names, each round inspects those on the screen, those with
waiters, and some of the others in rotation.            Any key: back"""

# ``>`` aligns to the right, ``…`` may be shortened (`cli.fitted`).
NAMES = ("NAME…", "KIND", "HOLDER…", "HELD>", "WAIT>", "LONGEST>", "≥/s>", "LAPSED>")
BY_WAIT = 5  # the column that the list is sorted by at first
CLAIMS = ("", "WHO…", "FENCE>", "FOR>", "LEASE>", "TAKES>")


class Table(DataTable[Text]):
    """A table that is filled again and again, and keeps the selection on its line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "details", key_display="⏎"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g,home", "scroll_top", show=False),
        Binding("G,end", "scroll_bottom", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0)
        self._titles: list[tuple[str, int]] = []
        self._lines: dict[str, list[str]] = {}

    @property
    def shown(self) -> list[str]:
        """Keys of the selected line, then of those on the screen."""
        lines, first = [*self._lines], int(self.scroll_offset.y)
        return [*lines[self.cursor_row :][:1], *lines[first : first + self.size.height]]

    def fill(self, titles: Sequence[str], lines: Mapping[str, Sequence[str]]) -> None:
        """Replace the contents: cells by the key of their line. Foreign text must be escaped."""
        room = self.size.width - 2 - len(titles)  # for the scroll bar and the gaps
        widths = fitted(titles, lines.values(), max(room, 1), 0)
        for at in [at for at in widths if titles[at].endswith("…")][-1:]:  # the rest of the screen
            widths[at] += max(room - sum(widths.values()), 0)
        columns = [(titles[at], width + 1) for at, width in widths.items()]
        cells = {key: [line[at] for at in widths] for key, line in lines.items()}
        selected, top, before = self.shown[:1], self.scroll_offset.y, self._lines
        self._lines = cells
        if columns == self._titles and [*before] == [*cells]:
            for key, line in cells.items():
                for at, cell in enumerate(line):
                    if cell != before[key][at]:
                        self.update_cell(key, str(at), _cell(cell, *columns[at]))
            return
        self._titles = columns
        with self.app.batch_update():
            self.clear(columns=True)
            for at, (title, width) in enumerate(columns):
                label = _cell(title.rstrip("…>"), title, width)
                self.add_column(label, width=width, key=str(at))
            for key, line in cells.items():
                self.add_row(*map(_cell, line, *zip(*columns, strict=True)), key=key)
            if selected and selected[0] in cells:
                self.move_cursor(row=[*cells].index(selected[0]), scroll=False)
                self.scroll_to(y=top, animate=False, immediate=True)


def _cell(text: str, title: str, width: int) -> Text:
    right = title.endswith(">")
    text = shorten(text, width - 1) + " " * (not right)
    return Text(text, justify="right" if right else "left", no_wrap=True)


class Filter(Input):
    def on_key(self, event: events.Key) -> None:
        if event.key == "backspace":  # now: a letter behind it would overtake it
            event.stop()
            event.prevent_default()
            self.action_delete_left()


class Notice(ModalScreen[bool]):
    """A text above the screen. Any key closes it; ``y`` returns True. Keys typed before it was on
    the screen are ignored: they must not answer the question."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self._shown_at = text, math.inf

    def compose(self) -> ComposeResult:
        yield Static(Text(self._text), id="notice")

    def on_mount(self) -> None:
        self.call_after_refresh(self.on_shown)

    def on_shown(self) -> None:
        self._shown_at = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if event.time > self._shown_at:
            self.dismiss(event.key in ("y", "Y"))


class TopApp(App[None]):
    """Draw the model. ``where`` names the store and the namespace."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("b", "break", "break"),
        Binding("question_mark,h", "help", "help", key_display="?"),
        Binding("escape", "to_list", show=False),
        Binding("ctrl+c", "end(130)", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]
    CSS = """
    #title, #counts, #subject, #status, #filter, .trends { height: 1; }
    #title, #subject { text-style: bold; }
    .trends Static { width: auto; margin-right: 1; }
    .trends Sparkline { width: 1fr; margin-right: 2; }
    #panes { height: 1fr; }
    #names { height: 3fr; }
    #details { height: 2fr; border-top: solid $primary; }
    #claims { height: 1fr; }
    #status { display: none; background: $warning; color: $text; }
    #filter { border: none; display: none; }
    DataTable > .datatable--header { background: $surface; text-style: bold; }
    Notice { align: center middle; }
    #notice { width: auto; max-width: 100%; height: auto; padding: 1 2; border: solid $primary;
              background: $surface; }
    """

    def __init__(self, poller: Poller, where: str) -> None:
        super().__init__()
        self._poller, self._where = poller, where
        self._order, self._reversed, self._filter = BY_WAIT, False, ""
        self._rounds, self._message = -1, ""
        self._rows: dict[str, Seen] = {}
        self.table, self.claims = Table(id="names"), Table(id="claims")
        texts = ("title", "counts", "rate", "wait", "subject", "status")
        self._texts = {id: Static(id=id, markup=False) for id in texts}
        lines = ("rates", "waits", "own-rates", "own-waits")
        self._lines = {id: Sparkline(id=id) for id in lines}
        self._box = Filter(id="filter", max_length=LONGEST_FILTER, placeholder="⏎ keep  esc clear")

    def compose(self) -> ComposeResult:
        text, line = self._texts, self._lines
        yield text["title"]
        yield text["counts"]
        yield Horizontal(text["rate"], line["rates"], text["wait"], line["waits"], classes="trends")
        own = (Static("hand-overs"), line["own-rates"], Static("waits"), line["own-waits"])
        trends = Horizontal(*own, classes="trends")
        details = Vertical(text["subject"], trends, self.claims, id="details")
        yield Container(self.table, details, id="panes")
        yield self._box
        yield text["status"]
        yield Footer()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.action_end, 128 + number)
        self.table.focus()
        self.set_interval(REFRESH, self._look)
        self.call_after_refresh(self._look)

    @property
    def selected(self) -> Seen | None:
        """The name whose line is selected."""
        return next((self._rows[name] for name in self.table.shown if name in self._rows), None)

    # ---- what is shown ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Show the model, if the poller has finished a round since the last time."""
        while self._poller.messages:
            self._message = self._poller.messages.popleft()
        self._show_status()
        if self._rounds != self._poller.rounds:
            self._rounds = self._poller.rounds
            self._show()

    def _show(self) -> None:
        with self._poller.mutex:
            model = self._poller.model
            found, totals = model.matching(self._filter), model.totals()
            self._plot("rates", model.rates)
            self._plot("waits", model.waits)
        # Stable: equal keys stay sorted by name.
        found.sort(key=SORT_KEYS[self._order], reverse=self._reversed)
        self._rows = {seen.address.full: seen for seen in found[:MOST_SHOWN]}
        known = f" ({totals.known} known)" if totals.known < totals.names else ""
        text = f"{totals.names} names{known}  {totals.contended} contended"
        text += f", {totals.waiting} waiting"
        text += f"  lapsed {totals.lapsed}" if totals.lapsed else ""
        text += f"  {len(found)} match /{escaped(self._filter)}" if self._filter else ""
        text += f"  first {MOST_SHOWN} shown" if len(found) > MOST_SHOWN else ""
        width = self.size.width
        where = shorten(f"lockfast top  {printable(self._where)}", width - 9)
        self._write("title", where.ljust(width - 8) + time.strftime("%H:%M:%S"))
        self._write("counts", shorten(text, width))
        self._write("rate", f"hand-overs ≥ {totals.rate:.1f}/s")
        self._write("wait", f"longest wait {brief(totals.longest_wait)}")
        lines = {name: seen.cells() for name, seen in self._rows.items()}
        titles = [*NAMES]
        title = titles[self._order].rstrip("…>")
        titles[self._order] = titles[self._order].replace(title, title + "▼▲"[self._reversed])
        self.table.fill(titles, lines)
        visible = dict.fromkeys(self.table.shown)
        self._poller.visible = [self._rows[name].address for name in visible]
        self._show_details()

    @on(DataTable.RowHighlighted, "#names")
    def _show_details(self) -> None:
        seen = self.selected
        if seen is None:
            none = "no name matches" if self._filter else "nothing is held or waited for"
            self._write("subject", none if self._rounds > 0 else "")
            self.claims.fill(CLAIMS, {})
            return
        snapshot, width = seen.snapshot, self.claims.size.width
        kind = f"  {seen.inspection.kind_cell}, {len(snapshot.waiters)} waiting"
        self._write("subject", shorten(escaped(seen.address.name), width - len(kind)) + kind)
        self._plot("own-rates", seen.rates)
        self._plot("own-waits", seen.waits)
        lines = {f"{one.fence}": _claim(seen.inspection, "holds", one) for one in snapshot.holders}
        for number, one in enumerate(snapshot.waiters, 1):
            lines[f"waiter {number}"] = _claim(seen.inspection, f"{number}.", one)
        for number, event in enumerate(reversed(seen.recent)):
            lines[f"event {number}"] = _past(event, snapshot.now)
        self.claims.fill(CLAIMS, lines)

    def _show_status(self) -> None:
        text = printable(self._message or self._poller.problem())
        self._texts["status"].display = bool(text)
        self._write("status", text)

    def _write(self, id: str, text: str) -> None:
        self._texts[id].update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _plot(self, id: str, values: Iterable[float]) -> None:
        # With equal values the sparkline would be drawn at full height, as a constant zero too.
        self._lines[id].data = [0.0, *values]

    # ---- keys ------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        self._message = ""
        self._show_status()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)
        # After a stop (Ctrl-Z, SIGSTOP) too, and after an update under way: Textual draws no more.
        self.set_timer(REFRESH, lambda: self.refresh(layout=True))

    def action_end(self, code: int) -> None:
        if code == 128 + signal.SIGHUP:  # Textual may wait for the terminal, which is gone
            threading.Timer(GONE, os._exit, (code,)).start()
        self.exit(return_code=code)

    def action_filter(self) -> None:
        self._box.display = True
        self.screen.set_focus(self._box)  # at once: the next keys are typed already

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show()

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self._box.display = False
        self.table.focus()

    def action_to_list(self) -> None:
        """Leave the details; in the list, clear the filter."""
        if not self.claims.has_focus:
            self._box.value = ""
        self._keep_filter()

    def action_sort(self) -> None:
        self._sort((self._order + 1) % len(NAMES))

    def action_reverse(self) -> None:
        self._sort(self._order)

    @on(DataTable.HeaderSelected, "#names")
    def _sort_by(self, event: DataTable.HeaderSelected) -> None:
        self._sort(event.column_index)

    def _sort(self, column: int) -> None:
        """Sort by the column; reverse the order if it is sorted by it already."""
        self._reversed = column == self._order and not self._reversed
        self._order = column
        self._show()

    @on(DataTable.RowSelected, "#names")
    def _go_to_details(self) -> None:
        self.claims.focus()

    def action_help(self) -> None:
        self.push_screen(Notice(HELP))

    def action_break(self) -> None:
        seen = self.selected
        if seen is None:
            return
        holders = {str(holder.fence): holder for holder in seen.snapshot.holders}
        chosen = next(iter(self.claims.shown), None) if self.claims.has_focus else None
        if not holders:
            self._message = "not held: there is nothing to break"
        elif chosen is not None and chosen not in holders:
            self._message = "this is not a holder: only a hold can be broken"
        elif chosen is None and len(holders) > 1:
            self.claims.focus()
            self._message = f"{len(holders)} holders: select one, then press b"
        else:
            self._ask(seen, holders[chosen] if chosen else seen.snapshot.holders[0])
        self._show_status()

    def _ask(self, seen: Seen, holder: Holder) -> None:
        def answered(breaks: bool | None) -> None:
            self._message = "breaking…" if breaks else "nothing was broken"
            if breaks:
                self._poller.request_break(seen.address, holder.fence)
            self._show_status()

        name = escaped(seen.address.name)
        about = f"Break the hold on {name}?\n\n{about_break(seen.inspection, holder)}"
        yes = "y: break it, if it still has this fence.   Any other key: cancel."
        self.push_screen(Notice(f"{about}\n\n{yes}"), answered)


def _claim(inspection: Inspection, what: str, one: Holder | Waiter) -> list[str]:
    """Cells of a holder or a waiter."""
    fence, lease = "", ""
    if isinstance(one, Holder):
        fence, lease = str(one.fence), lease_left(one)
    return [what, describe(one.who), fence, inspection.age(one), lease, inspection.takes(one)]


def _past(event: Event, now: float) -> list[str]:
    """Cells of a hold that began or ended: how long ago, to whom, from whom."""
    new, old = event.holder, event.before
    lapsed = event.how == LAPSED
    text = f"to {in_short(new.who)}" if new else ("lapsed" if lapsed else "ended")
    if old is not None:
        text += f" from {in_short(old.who)}" + " (lapsed)" * (new is not None and lapsed)
    fence = str(new.fence if new else old.fence if old else "")
    return ["-" + brief(now - event.seen.now), text, fence, "", "", ""]
