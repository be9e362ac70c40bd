"""The keys and the screen of `lockfast top`, driven by Textual's pilot, without a store."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
from test_top_model import address, inspection
from textual.widgets import DataTable, Input, Sparkline

from lockfast.cli import width_of
from lockfast.cli.top import Model, brief
from lockfast.cli.top_app import LONGEST_FILTER, MOST_SHOWN, NAMES, Notice, TopApp
from lockfast.model import ALL_SLOTS, Who

PATIENCE = 20.0
WAIT, RATE, LAPSED = NAMES.index("LONGEST>"), NAMES.index("≥/s>"), NAMES.index("LAPSED>")


class Polled(SimpleNamespace):
    """A poller that is driven by the test."""

    def __init__(self):
        super().__init__(model=Model(), mutex=threading.Lock(), visible=(), rounds=0)
        self.messages, self.breaks, self.error = deque(), [], ""
        self._now = 0.0

    def problem(self):
        return self.error

    def request_break(self, address, fence):
        self.breaks.append((address, fence))

    def see(self, *inspections):
        """One round that found these."""
        with self.mutex:
            self._now += 1.0
            self.model.listed([one.address for one in inspections], self._now)
            for one in inspections:
                self.model.inspected(one, self._now)
            self.model.sample(self._now)
        self.rounds += 1


class Driven:
    """The app on a screen of this size, and what is on it."""

    def __init__(self, polled, pilot):
        self.polled, self.pilot, self.app = polled, pilot, pilot.app

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def see(self, *inspections):
        self.polled.see(*inspections)
        await self.shows_round()

    async def shows_round(self):
        until = time.monotonic() + PATIENCE
        while self.app._rounds != self.polled.rounds:
            assert time.monotonic() < until
            await self.pilot.pause(0.02)
        await self.pilot.pause()

    @property
    def lines(self):
        """Lines on the screen, as a terminal would show them."""
        size = self.app.size
        update = self.app.screen._compositor.render_strips(size)
        return ["".join(segment.text for segment in strip) for strip in update]

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def names(self):
        """Names in the list, in order, also those below the screen."""
        return [line[0] for line in self.app.table._lines.values()]

    @property
    def asks(self):
        return isinstance(self.app.screen, Notice)


def driven(test, *inspections, size=(80, 24)):
    """Run the test with the app on a screen of this size, after one round of these."""

    async def drive():
        polled = Polled()
        app = TopApp(polled, "redis at somewhere (default)")
        async with app.run_test(size=size) as pilot:
            screen = Driven(polled, pilot)
            await screen.see(*inspections)
            await test(screen)

    asyncio.run(drive())


def held(*names):
    return [inspection(name, number + 1) for number, name in enumerate(names)]


def test_the_list_shows_names_the_longest_wait_first():
    async def test(screen):
        assert screen.names == ["waits long", "one waits", "older", "idle"]
        lines = screen.lines
        assert lines[0].startswith("lockfast top  redis at somewhere (default)")
        assert re.search(r"\d\d:\d\d:\d\d$", lines[0])
        assert lines[1].startswith("4 names  2 contended, 3 waiting")
        assert lines[2].startswith("hand-overs ≥ 0.0/s") and "longest wait 1m10s" in lines[2]
        assert lines[3].split()[:3] == ["NAME", "KIND", "HOLDER"] and "LONGEST▼" in lines[3]
        assert "waits long  lock, 2 waiting" in screen.text
        assert "q quit" in lines[23] and "⏎ details" in lines[23]

    driven(
        test,
        inspection("idle", 1, since=50),
        inspection("older", 1, since=10),
        inspection("one waits", 1, waiters=[99]),
        inspection("waits long", 1, waiters=[99, 30]),
    )


def test_lines_do_not_swap_although_names_are_inspected_one_after_the_other():
    async def test(screen):
        assert screen.names == ["a", "b"]
        await screen.see(
            inspection("a", 1, since=90.0, now=101.9), inspection("b", 2, since=90.0, now=101.3)
        )
        assert screen.names == ["a", "b"]

    driven(test, inspection("a", 1, since=90.0), inspection("b", 2, since=90.0, now=100.3))


def test_every_column_sorts_in_both_directions_by_key_and_by_click():
    async def test(screen):
        for second in range(5):
            await screen.see(
                inspection("busy", second, now=100.0 + second),
                inspection("quiet", 77, now=100.0 + second, slots=3),
            )
        seen = []
        for _ in NAMES:
            await screen.press("s")
            seen.append((screen.app._order, screen.names[0]))
            before = screen.names
            await screen.press("r")
            assert "▲" in screen.text
            keys = [line[screen.app._order] for line in screen.app.table._lines.values()]
            assert screen.names == before[::-1] or keys[0] == keys[-1]
            await screen.press("r")
        assert {order for order, _ in seen} == set(range(len(NAMES)))
        assert dict(seen)[RATE] == dict(seen)[0] == "busy"
        await screen.see(
            inspection("busy", 9, now=106.0), inspection("quiet", 77, left=0.1, now=106.0, slots=3)
        )
        await screen.see(
            inspection("busy", 9, now=107.0), inspection("quiet", 78, now=107.0, slots=3)
        )
        await screen.pilot.click(DataTable, offset=(1, 0))
        assert screen.app._order == 0 and screen.names == ["busy", "quiet"]
        await screen.pilot.click(DataTable, offset=(1, 0))
        assert screen.app._reversed and screen.names == ["quiet", "busy"]
        while screen.app._order != LAPSED:
            await screen.press("s")
        assert screen.names == ["quiet", "busy"] and "lapsed 1" in screen.text

    driven(test, *held("busy", "quiet"))


def test_the_selection_follows_its_name_when_lines_move():
    async def test(screen):
        await screen.press("down")
        assert screen.app.selected.address == address("b")
        await screen.see(*held("0", "a", "b", "c"))
        assert screen.app.selected.address == address("b")
        assert "b  lock, 0 waiting" in screen.text
        await screen.see(*held("a", "c"))
        assert screen.app.selected.address == address("a")
        await screen.see()
        assert screen.app.selected is None and "nothing is held or waited for" in screen.text
        await screen.press("b", "enter", "down")  # no name: nothing to select or to break
        assert not screen.asks

    driven(test, *held("a", "b", "c"))


def test_keys_move_the_selection_which_is_always_on_the_screen():
    async def test(screen):
        for key, at in (
            ("j", 1), ("k", 0), ("down", 1), ("G", 199), ("up", 198), ("g", 0), ("end", 199),
            ("home", 0),
        ):  # fmt: skip
            await screen.press(key)
            assert screen.app.selected.address == address(f"name-{at:03}"), key
            assert any(line.startswith(f"name-{at:03}") for line in screen.lines), key
            assert screen.app.table.shown[0] == address(f"name-{at:03}").full
        await screen.press("pagedown")
        assert 5 < int(screen.names.index(screen.app.selected.address.name)) < 20
        assert len(screen.polled.visible) < 24

    driven(test, *held(*(f"name-{number:03}" for number in range(200))))


def test_a_filter_is_typed_kept_and_cleared():
    async def test(screen):
        await screen.press("slash", *"REP")
        assert screen.names == ["reports"] and "1 match /REP" in screen.text
        await screen.press(*"zz")
        assert not screen.names and "no name matches" in screen.text
        await screen.press("backspace", "backspace", "enter", "s")  # s sorts again
        assert screen.names == ["reports"] and "/REP" in screen.text
        await screen.press("escape")
        assert len(screen.names) == 3 and "/REP" not in screen.text
        await screen.press("slash", *"x" * 200)
        assert len(screen.app.query_one("#filter", Input).value) == LONGEST_FILTER
        await screen.press("escape")
        assert len(screen.names) == 3 and screen.app.table.has_focus
        await screen.press("slash", *"nightly", "enter")
        assert screen.names == ["orders:2"]  # a holder's label

    driven(
        test,
        inspection("orders:1", 1),
        inspection("orders:2", 2, who=Who("h", 1, "t", "nightly")),
        inspection("reports", 3),
    )


def test_the_details_show_holders_the_queue_and_the_latest_hand_overs():
    async def test(screen):
        await screen.see(inspection("pool", 2, 3, slots=3, waiters=[90, 97.5], now=101.0, since=91))
        lines = [line.split() for line in screen.lines]
        assert [line[-1] for line in lines if line[:1] == ["holds"]] == ["1", "1"]
        assert any(line[0] == "1." and line[-3:] == ["11.0", "s", "1"] for line in lines if line)
        assert any(line[0] == "2." and line[-3:] == ["3.5", "s", "1"] for line in lines if line)
        past = [line for line in screen.lines if "from host:1 thread" in line]
        assert len(past) == 1 and past[0].startswith("-0.0s") and "to host:1 thread" in past[0]
        own = screen.app.query_one("#own-waits", Sparkline)
        assert own.data == [0.0, 10.0, 11.0]
        assert screen.app.query_one("#waits", Sparkline).data == [0.0, 10.0, 11.0]
        assert screen.app.query_one("#rates", Sparkline).data[-1] == 1.0

    driven(test, inspection("pool", 1, 2, slots=3, waiters=[90]), size=(80, 40))


def test_a_hold_is_broken_only_by_yes_to_the_question():
    async def test(screen):
        await screen.press("down")
        for answer in ("n", "enter", "escape", "b", "space", "q", "ctrl+p", "tab"):
            await screen.press("b")
            assert screen.asks and "Break the hold on b?" in screen.text
            assert "fence 2 stale" in screen.text and "host, pid 1, thread" in screen.text
            await screen.press(answer)
            assert not screen.asks and "nothing was broken" in screen.text
        assert not screen.polled.breaks
        await screen.press("b", "y")
        assert screen.polled.breaks == [(address("b"), 2)] and "breaking…" in screen.text
        await screen.press("y")
        assert len(screen.polled.breaks) == 1 and "breaking…" not in screen.text

    driven(test, *held("a", "b"))


def test_the_fence_is_that_of_the_question_even_if_the_holder_has_changed():
    async def test(screen):
        await screen.press("b")
        await screen.see(inspection("a", 99))
        assert "fence 1 stale" in screen.text
        await screen.press("y")
        assert screen.polled.breaks == [(address("a"), 1)]

    driven(test, inspection("a", 1))


def test_keys_typed_before_the_question_do_not_answer_it():
    async def test(screen):
        await screen.press("b")
        screen.app.screen._shown_at = math.inf  # as if not drawn yet
        await screen.press("y", "n")
        assert screen.asks and not screen.polled.breaks
        screen.app.screen.on_shown()
        await screen.press("y")
        assert screen.polled.breaks

    driven(test, inspection("a", 1))


def test_with_more_than_one_holder_one_must_be_selected_first():
    async def test(screen):
        await screen.press("b")
        assert not screen.asks and "3 holders: select one" in screen.text
        await screen.press("down", "b")
        assert "fence 2 stale" in screen.text
        await screen.press("n", "end", "b")
        assert not screen.asks and "this is not a holder" in screen.text
        await screen.press("escape")
        assert screen.app.table.has_focus

    driven(test, inspection("s", 1, 2, 3, slots=5, waiters=[1]))


def test_a_name_without_a_holder_cannot_be_broken():
    async def test(screen):
        await screen.press("b")
        assert "not held" in screen.text and not screen.asks
        await screen.press("enter", "b")
        assert "not held" in screen.text and not screen.asks

    driven(test, inspection("n", waiters=[1]))


def test_the_help_explains_keys_and_columns_and_any_key_closes_it():
    async def test(screen):
        await screen.press("question_mark")
        assert "break a hold, after a question" in screen.text and "LAPSED" in screen.text
        await screen.press("q")
        assert not screen.asks and screen.app.is_running
        await screen.press("h", "x")
        assert not screen.asks
        await screen.press("q")
        assert screen.app.return_code == 0

    driven(test, *held("a"))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 10), (20, 4), (1, 1)])
def test_every_screen_fits_every_size(size):
    who = Who("h" * 90, 1, "t", "[red]x[/]\x1b]0;owned\x07")
    name = inspection("订单" * 40 + "\x1b[2J[bold]", 1, 2, slots=5, waiters=range(90), who=who)

    async def test(screen):
        for keys in ((), ("?",), ("b",), ("escape",), ("b", "down"), ("slash", *"xy"), ("escape",)):
            await screen.press(*("question_mark" if key == "?" else key for key in keys))
            lines = screen.lines
            assert len(lines) == size[1] and all(width_of(line) == size[0] for line in lines)
            assert not any(letter in screen.text for letter in "\x1b\x07")
        if size[0] >= 80:
            assert r"\x1b[2J" in screen.text or "…" in screen.text
            assert "LONGEST▼" in screen.text and "≥/s" in screen.text, "the last columns are lost"

    driven(test, name, *held(*map(str, range(100))), size=size)


def test_markup_in_foreign_text_is_shown_as_it_is():
    async def test(screen):
        assert "[bold]x[/bold]" in screen.text and "[red]" in screen.text

    driven(test, inspection("[bold]x[/bold]", 1, who=Who("h", 1, "t", "[red]")))


def test_the_counts_report_unknown_and_hidden_names():
    async def test(screen):
        screen.polled.model._names = [address(str(number)) for number in range(9000)]
        screen.polled.rounds += 1
        await screen.shows_round()
        assert "9000 names (600 known)" in screen.text
        assert f"first {MOST_SHOWN} shown" in screen.text and len(screen.names) == MOST_SHOWN

    driven(test, *held(*(f"{number}" for number in range(600))), size=(120, 40))


def test_a_problem_is_shown_until_it_ends_and_a_message_until_the_next_key():
    async def test(screen):
        screen.polled.error = "no data for 3 s: " + "x" * 200
        await screen.pilot.pause(0.5)
        assert any(line.startswith("no data for 3 s") for line in screen.lines)
        screen.polled.messages.append("a: broken, fence 1")
        await screen.pilot.pause(0.5)
        assert "a: broken, fence 1" in screen.text
        await screen.press("down")
        await screen.pilot.pause(0.5)
        assert "broken" not in screen.text and "no data for" in screen.text
        screen.polled.error = ""
        await screen.pilot.pause(0.5)
        assert "no data for" not in screen.text

    driven(test, *held("a"))


def test_readers_are_marked_in_the_details():
    async def test(screen):
        assert any(line.split()[-1:] == ["read"] for line in screen.lines if "holds" in line)

    driven(test, inspection("rw", 1, slots=ALL_SLOTS))


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0.0s"), (9.94, "9.9s"), (59, "59.0s"), (61, "1m1s"), (7260, "2h1m"),
        (180000, "2d2h"), (-math.inf, "-"),
    ],
)  # fmt: skip
def test_durations_are_brief(seconds, text):
    assert brief(seconds) == text
