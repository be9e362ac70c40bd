"""Keys, rendered lines and the poller, without a terminal."""

from __future__ import annotations

import pytest
from test_top_model import address, inspection

from both_apis import until
from lockfast.cli.admin import Admin
from lockfast.cli.screen import width_of
from lockfast.cli.top import parsed
from lockfast.cli.top_model import Break, Poller, Seen, Totals
from lockfast.cli.top_view import (
    LONGEST_FILTER,
    Mode,
    Operator,
    Quit,
    Scene,
    brief,
    frame,
    window,
)
from lockfast.errors import BackendError
from lockfast.model import ALL_SLOTS, Who


def rows(*names):
    return [Seen(inspection(name, number + 1), 0.0) for number, name in enumerate(names)]


def press(operator, keys, listed=(), name=None, page=10):
    for key in keys:
        answer = operator.press(key, listed, name, page)
    return answer


def test_a_hold_is_broken_only_by_yes_to_the_question():
    listed = rows("a", "b")
    for answer in ("n", "enter", "esc", "b", " ", "q"):
        operator = Operator()
        assert press(operator, ["down", "b"], listed) is None
        assert operator.mode is Mode.BREAK
        assert press(operator, [answer], listed, listed[1]) is None
        assert operator.mode is Mode.NAME and operator.message == "nothing was broken"
        assert operator.target is None
    operator = Operator()
    press(operator, ["down", "b"], listed)
    assert press(operator, ["y"], listed, listed[1]) == Break(address("b"), 2)
    assert press(operator, ["y"], listed, listed[1]) is None


def test_the_fence_is_that_of_the_question_even_if_the_holder_has_changed():
    operator, before = Operator(), rows("a")
    press(operator, ["b"], before)
    now = [Seen(inspection("a", 99), 1.0)]
    assert press(operator, ["y"], now, now[0]) == Break(address("a"), 1)


def test_with_more_than_one_holder_one_must_be_selected_first():
    operator = Operator()
    shared = Seen(inspection("s", 1, 2, 3, slots=5, waiters=[1]), 0.0)
    press(operator, ["b"], [shared])
    assert operator.mode is Mode.NAME and "3 holders" in operator.message
    press(operator, ["down", "b"], [shared], shared)
    assert operator.target[1].fence == 2
    press(operator, ["n", "end", "b"], [shared], shared)
    assert operator.mode is Mode.NAME and "waiter" in operator.message


def test_a_name_without_a_holder_cannot_be_broken():
    operator, waited = Operator(), Seen(inspection("n", waiters=[1]), 0.0)
    press(operator, ["b"], [waited])
    assert "not held" in operator.message and operator.target is None
    press(operator, ["b"], [waited], None)
    assert operator.target is None


def test_a_hold_of_another_name_is_not_broken_in_the_details():
    """List and details are updated before each key; outdated details are not used."""
    operator, listed = Operator(), rows("a", "b")
    press(operator, ["enter", "b"], listed, listed[1])
    assert operator.name == address("a") and operator.target is None


def test_the_selection_follows_its_name_when_lines_move():
    operator = Operator()
    press(operator, ["down"], rows("a", "b", "c"))
    assert operator.line_of(rows("x", "y", "b")) == 2
    assert operator.line_of(rows("x")) == 0
    press(operator, ["page down"], rows(*map(str, range(50))), page=20)
    assert operator.selected == address("20")
    press(operator, ["page up", "up"], rows(*map(str, range(50))), page=20)
    assert operator.selected == address("0")
    press(operator, ["down"], [])
    assert operator.selected is None


def test_a_filter_takes_characters_up_to_a_limit():
    operator = Operator()
    press(operator, ["/", *"qsb", "up", "backspace"])
    assert operator.filter == "qs" and operator.mode is Mode.FILTER
    press(operator, ["x"] * 200)
    assert len(operator.filter) == LONGEST_FILTER
    press(operator, ["enter"])
    assert operator.mode is Mode.LIST
    press(operator, ["/", "esc"])
    assert operator.filter == "" and operator.mode is Mode.LIST


def test_help_returns_to_the_previous_mode():
    operator, listed = Operator(), rows("a")
    press(operator, ["enter", "?"], listed, listed[0])
    assert operator.mode is Mode.HELP
    assert press(operator, ["q"], listed, listed[0]) is None
    assert operator.mode is Mode.NAME
    press(operator, ["esc", "?"], listed, listed[0])
    press(operator, ["x", "ctrl"], listed)
    assert operator.mode is Mode.LIST
    assert press(operator, ["q"], listed) == Quit()


def test_keys_are_parsed_from_terminal_input():
    assert parsed("\x1b[A\x1bOBjk\r\n\x7f\x1b[5~") == [
        "up", "down", "j", "k", "enter", "enter", "backspace", "page up",
    ]  # fmt: skip
    assert parsed("\x1b") == ["esc"] and parsed("ä/") == ["ä", "/"]
    assert parsed("\x1b[1;5C\x1b[200~\x01") == []  # unknown sequences are ignored


# ---- lines ----------------------------------------------------------------------------------

TOTALS = Totals(3, 3, 1, 2, 1.25, 0)


def shown(operator, listed=(), name=None, width=80, height=24, problem="", totals=TOTALS):
    scene = Scene("redis at somewhere (default)", "12:00:00", totals, listed, name, problem)
    lines = frame(scene, operator, width, height)
    assert len(lines) == height
    assert all(width_of(line.text) <= width for line in lines), lines
    return [line.text for line in lines]


@pytest.mark.parametrize("size", [(80, 24), (40, 8), (200, 60), (41, 9), (39, 24), (80, 7), (1, 1)])
@pytest.mark.parametrize("mode", Mode)
def test_every_mode_fits_every_size(size, mode):
    operator = Operator()
    name = Seen(
        inspection(
            "订单" * 40 + "\x1b[2J", 1, 2, slots=5, waiters=range(90), who=Who("h" * 90, 1, "t")
        ),
        0.0,
    )
    listed = [name, *rows(*map(str, range(100)))]
    press(operator, ["b", "down"], listed, name)
    operator.mode = mode
    if mode is Mode.BREAK:
        operator.target = (name.inspection, name.snapshot.holders[0])
    operator.filter = "x" * 60
    text = "\n".join(shown(operator, listed, name, *size, problem="no answer " * 30))
    assert "\x1b" not in text


def test_the_selected_line_is_always_on_the_screen():
    operator, listed = Operator(), rows(*(f"name-{number}" for number in range(200)))
    for key in ("down", "page down", "end", "up", "page up", "home"):
        press(operator, [key], listed, page=20)
        selected = operator.selected.name
        lines = frame(Scene("", "", TOTALS, listed, None), operator, 80, 24)
        marked = [line.text for line in lines[2:-1] if line.style == "reverse"]
        assert [line.split()[0] for line in marked] == [selected]
    assert window(0, 5, 20) == 0 and window(199, 200, 20) == 180


def test_the_view_reports_unknown_names_and_empty_lists():
    operator = Operator()
    assert "9000 names (500 known)" in shown(operator, totals=Totals(9000, 500, 0, 0, 0, 4))[1]
    assert "lapsed 4" in shown(operator, totals=Totals(9000, 500, 0, 0, 0, 4))[1]
    assert "nothing is held" in shown(operator)[3]
    operator.filter = "x"
    assert "no name matches" in shown(operator)[3]
    operator.mode, operator.name = Mode.NAME, address("gone")
    assert "no holders" in shown(operator)[3]


def test_a_problem_replaces_the_key_line_and_keeps_its_beginning():
    line = shown(Operator(), problem="no data for 3 s: " + "x" * 200)[-1]
    assert line.startswith("no data for 3 s") and line.endswith("…")


def test_readers_are_marked_in_the_details():
    operator = Operator()
    name = Seen(inspection("rw", 1, slots=ALL_SLOTS), 0.0)
    press(operator, ["enter"], [name])
    assert "read" in shown(operator, [name], name)[4]


@pytest.mark.parametrize(
    "seconds, text",
    [(-1, "0.0s"), (9.94, "9.9s"), (59, "59s"), (61, "1m01s"), (7260, "2h01m"), (180000, "2d02h")],
)
def test_durations_are_brief(seconds, text):
    assert brief(seconds) == text


# ---- polling --------------------------------------------------------------------------------


class CountingAdmin(Admin):
    """A store with very many names that counts listings and inspections."""

    def __init__(self, count):
        self.names = [address(f"{number:06}") for number in range(count)]
        self.listings = self.inspections = 0
        self.fails = False

    def addresses(self, prefix, *, everywhere):
        self.listings += 1
        if self.fails:
            raise BackendError("unreachable")
        return self.names

    def inspect(self, address):
        self.inspections += 1
        return inspection(address.name, 1)


def poller_of(admin, interval=1.0):
    return Poller(admin, "", everywhere=False, interval=interval, on_update=lambda: None)


def test_a_round_sends_a_bounded_number_of_requests():
    admin = CountingAdmin(100_000)
    poller = poller_of(admin)
    poller._round(1e9)
    assert admin.listings == 1 and 0 < admin.inspections <= 200
    assert poller.model.totals().names == 100_000


def test_a_slow_listing_is_not_repeated_soon(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top_model.clock.now", lambda: now[0])
    admin = CountingAdmin(10)
    addresses = admin.addresses

    def slow(*args, **kwargs):
        now[0] += 3.0
        return addresses(*args, **kwargs)

    admin.addresses = slow
    poller = poller_of(admin)
    for _ in range(40):
        poller._round(now[0])
        now[0] += 1.0
    assert admin.listings == 2  # a listing of 3 s, then a pause of 30 s


def test_a_slow_store_is_inspected_for_half_of_the_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top_model.clock.now", lambda: now[0])
    admin = CountingAdmin(1000)
    inspect = admin.inspect

    def slow(address):
        now[0] += 0.1
        return inspect(address)

    admin.inspect = slow
    poller_of(admin)._round(now[0])
    assert admin.inspections in (5, 6)  # half a second of inspections that take 0.1 s


def test_a_problem_ends_when_the_store_answers_again():
    admin = CountingAdmin(1)
    admin.fails = True
    poller = poller_of(admin, 0.2)
    problems = []
    poller._on_update = lambda: problems.append(poller.problem())
    poller.start()
    until(lambda: len(problems) >= 2)
    assert "unreachable" in problems[0] and problems[1].startswith("no data for")
    admin.fails = False
    until(lambda: not problems[-1])
    poller.stop()
    assert not poller._thread.is_alive()
