"""What keys do, and what a screen shows of it, without a screen."""

from __future__ import annotations

import pytest
from test_top_model import address, inspection

from both_apis import until
from lockfast.cli.admin import Admin
from lockfast.cli.sanitize import width_of
from lockfast.cli.top.keys import LONGEST_FILTER, Break, Mode, Operator, Quit
from lockfast.cli.top.model import Seen, Totals
from lockfast.cli.top.poller import Poller
from lockfast.cli.top.terminal import parsed
from lockfast.cli.top.view import Scene, brief, frame, window
from lockfast.errors import BackendError
from lockfast.model import ALL_SLOTS, Who


def rows(*names):
    return [Seen(inspection(name, number + 1), 0.0) for number, name in enumerate(names)]


def press(operator, keys, listed=(), name=None, page=10):
    for key in keys:
        answer = operator.press(key, listed, name, page)
    return answer


def test_a_hold_is_broken_by_a_yes_to_a_question_and_by_nothing_else():
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


def test_the_fence_is_that_of_the_question_whatever_the_name_became_meanwhile():
    operator, before = Operator(), rows("a")
    press(operator, ["b"], before)
    now = [Seen(inspection("a", 99), 1.0)]
    assert press(operator, ["y"], now, now[0]) == Break(address("a"), 1)


def test_of_several_holders_one_is_chosen_first():
    operator = Operator()
    several = Seen(inspection("s", 1, 2, 3, slots=5, waiters=[1]), 0.0)
    press(operator, ["b"], [several])
    assert operator.mode is Mode.NAME and "3 hold it" in operator.message
    press(operator, ["down", "b"], [several], several)
    assert operator.target[1].fence == 2
    press(operator, ["n", "end", "b"], [several], several)
    assert operator.mode is Mode.NAME and "waits" in operator.message


def test_what_nobody_holds_cannot_be_broken():
    operator, waited = Operator(), Seen(inspection("n", waiters=[1]), 0.0)
    press(operator, ["b"], [waited])
    assert "nobody holds it" in operator.message and operator.target is None
    press(operator, ["b"], [waited], None)
    assert operator.target is None


def test_nothing_of_another_name_is_broken_in_a_names_view():
    """The list and the name are looked up before each key; were one of them old, it is not used."""
    operator, listed = Operator(), rows("a", "b")
    press(operator, ["enter", "b"], listed, listed[1])
    assert operator.name == address("a") and operator.target is None


def test_a_chosen_name_is_followed_when_lines_move():
    operator = Operator()
    press(operator, ["down"], rows("a", "b", "c"))
    assert operator.line_of(rows("x", "y", "b")) == 2
    assert operator.line_of(rows("x")) == 0
    press(operator, ["page down"], rows(*map(str, range(50))), page=20)
    assert operator.chosen == address("20")
    press(operator, ["page up", "up"], rows(*map(str, range(50))), page=20)
    assert operator.chosen == address("0")
    press(operator, ["down"], [])
    assert operator.chosen is None


def test_a_filter_takes_letters_and_has_an_end():
    operator = Operator()
    press(operator, ["/", *"qsb", "up", "backspace"])
    assert operator.filter == "qs" and operator.mode is Mode.FILTER
    press(operator, ["x"] * 200)
    assert len(operator.filter) == LONGEST_FILTER
    press(operator, ["enter"])
    assert operator.mode is Mode.LIST
    press(operator, ["/", "esc"])
    assert operator.filter == "" and operator.mode is Mode.LIST


def test_help_leads_back_to_where_it_was_asked_for():
    operator, listed = Operator(), rows("a")
    press(operator, ["enter", "?"], listed, listed[0])
    assert operator.mode is Mode.HELP
    assert press(operator, ["q"], listed, listed[0]) is None
    assert operator.mode is Mode.NAME
    press(operator, ["esc", "?"], listed, listed[0])
    press(operator, ["x", "ctrl"], listed)
    assert operator.mode is Mode.LIST
    assert press(operator, ["q"], listed) == Quit()


def test_keys_are_told_from_what_a_terminal_sends():
    assert parsed("\x1b[A\x1bOBjk\r\n\x7f\x1b[5~") == [
        "up", "down", "j", "k", "enter", "enter", "backspace", "page up",
    ]  # fmt: skip
    assert parsed("\x1b") == ["esc"] and parsed("ä/") == ["ä", "/"]
    assert parsed("\x1b[1;5C\x1b[200~\x01") == []  # what we do not know does nothing


# ---- lines ----------------------------------------------------------------------------------

TOTALS = Totals(3, 3, 1, 2, 1.25, 0)


def shown(operator, listed=(), name=None, width=80, height=24, trouble="", totals=TOTALS):
    scene = Scene("redis at somewhere (default)", "12:00:00", totals, listed, name, trouble)
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
    text = "\n".join(shown(operator, listed, name, *size, trouble="no answer " * 30))
    assert "\x1b" not in text


def test_a_chosen_line_is_always_on_the_screen():
    operator, listed = Operator(), rows(*(f"name-{number}" for number in range(200)))
    for key in ("down", "page down", "end", "up", "page up", "home"):
        press(operator, [key], listed, page=20)
        chosen = operator.chosen.name
        lines = frame(Scene("", "", TOTALS, listed, None), operator, 80, 24)
        marked = [line.text for line in lines[2:-1] if line.style == "reverse"]
        assert [line.split()[0] for line in marked] == [chosen]
    assert window(0, 5, 20) == 0 and window(199, 200, 20) == 180


def test_the_view_says_what_it_does_not_show():
    operator = Operator()
    assert "9000 names (500 known)" in shown(operator, totals=Totals(9000, 500, 0, 0, 0, 4))[1]
    assert "lapsed 4" in shown(operator, totals=Totals(9000, 500, 0, 0, 0, 4))[1]
    assert "nothing is held" in shown(operator)[3]
    operator.filter = "x"
    assert "nothing that matches" in shown(operator)[3]
    operator.mode, operator.name = Mode.NAME, address("gone")
    assert "nobody holds it" in shown(operator)[3]


def test_trouble_is_shown_where_keys_are_and_keeps_its_beginning():
    line = shown(Operator(), trouble="nothing seen for 3 s: " + "x" * 200)[-1]
    assert line.startswith("nothing seen for 3 s") and line.endswith("…")


def test_readers_and_writers_are_told_apart():
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


# ---- looking --------------------------------------------------------------------------------


class CountingAdmin(Admin):
    """A store of very many names that counts what it is asked."""

    def __init__(self, count):
        self.names = [address(f"{number:06}") for number in range(count)]
        self.walks = self.looks = 0
        self.fails = False

    def addresses(self, prefix, *, everywhere):
        self.walks += 1
        if self.fails:
            raise BackendError("away")
        return self.names

    def look(self, address):
        self.looks += 1
        return inspection(address.name, 1)


def polling(admin, interval=1.0):
    return Poller(admin, "", everywhere=False, interval=interval, news=lambda: None)


def test_a_round_asks_a_bounded_number_of_things():
    admin = CountingAdmin(100_000)
    poller = polling(admin)
    poller._round(1e9)
    assert admin.walks == 1 and 0 < admin.looks <= 200
    assert poller.model.totals().names == 100_000


def test_a_walk_that_takes_long_is_not_repeated_soon(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top.poller.clock.now", lambda: now[0])
    admin = CountingAdmin(10)
    walk = admin.addresses

    def slow(*said, **more):
        now[0] += 3.0
        return walk(*said, **more)

    admin.addresses = slow
    poller = polling(admin)
    for _ in range(40):
        poller._round(now[0])
        now[0] += 1.0
    assert admin.walks == 2  # 3 s of walking, then 30 s of peace


def test_a_slow_store_is_looked_at_for_half_of_the_time(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("lockfast.cli.top.poller.clock.now", lambda: now[0])
    admin = CountingAdmin(1000)
    look = admin.look

    def slow(address):
        now[0] += 0.1
        return look(address)

    admin.look = slow
    polling(admin)._round(now[0])
    assert admin.looks in (5, 6)  # half a second of looks that take 0.1 s


def test_trouble_ends_when_the_store_answers_again():
    admin = CountingAdmin(1)
    admin.fails = True
    poller = polling(admin, 0.2)
    told = []
    poller._news = lambda: told.append(poller.trouble())
    poller.start()
    until(lambda: len(told) >= 2)
    assert "away" in told[0] and told[1].startswith("nothing seen for")
    admin.fails = False
    until(lambda: not told[-1])
    poller.stop()
    assert not poller._thread.is_alive()
