"""`lockfast top` on a real terminal of 80×24: what it shows, what keys do, and that it leaves no
trace on the screen, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from terminals import LOCKFAST, PATIENCE

import lockfast
from lab.fault_proxy import FaultProxy

ESC = "\x1b"
HOLDS = (
    "import sys, lockfast\n"
    "client = lockfast.connect(sys.argv[1])\n"
    "with client.lock(sys.argv[2], label=sys.argv[3]) as hold:\n"
    "    print(hold.fence, flush=True)\n"
    "    sys.stdin.read()\n"
)


class Others:
    """Other processes that hold a name, or wait for it."""

    def __init__(self, url):
        self._url = url
        self._started = []

    def hold(self, name, label):
        """Its fence, when it has it."""
        return int(self.ask(name, label).stdout.readline())

    def ask(self, name, label):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, self._url, name, label],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end(self):
        for process in self._started:
            with process:
                process.kill()


@pytest.fixture
def others(url):
    others = Others(url)
    yield others
    others.end()


def test_what_is_held_and_waited_for_stands_there_and_who_waits_longest_first(top, others, client):
    client.lock("quiet").acquire()
    others.hold("orders:42", "import")
    waiter = others.ask("orders:42", "export")
    screen = top()
    screen.shows("orders:42", "quiet", "2 names", "1 waited for by 1", "import")
    lines = screen.text.splitlines()
    assert len(lines) == 24 and all(len(line) == 80 for line in lines)
    assert lines[0].startswith("lockfast top  sqlite://")
    assert lines[2].split()[:3] == ["NAME", "KIND", "HOLDER"]
    assert lines[3].startswith("orders:42") and lines[4].startswith("quiet")
    assert "q quit" in lines[23]
    assert waiter.poll() is None
    screen.type("q")
    assert screen.ended() == 0 and screen.is_restored()


def test_a_name_is_looked_at_and_its_hold_broken_only_with_a_yes(top, others):
    fence = others.hold("orders:42", "import")
    waiter = others.ask("orders:42", "export")
    screen = top()
    screen.shows("1 waited for by 1")
    screen.type("\r")
    screen.shows("holds", "(import)", str(fence), "1.", "(export)", "lock, 1 waiting")
    screen.type("b")
    screen.shows(
        "Break the hold on orders:42?", "(import)", f"fence    {fence}", "Any other key: no"
    )
    screen.type("n")
    screen.shows("nothing was broken", "holds")
    assert str(fence) in screen.line("holds")
    screen.type("b")
    screen.shows("Break the hold on orders:42?")
    screen.type("y")
    heir = int(waiter.stdout.readline())
    assert heir > fence
    screen.shows("orders:42: broken", str(heir), "lock, 0 waiting")
    screen.type("q")
    screen.shows("NAME", "KIND")
    screen.type("q")
    assert screen.ended() == 0 and screen.is_restored()


def test_what_was_typed_before_the_question_is_no_answer_to_it(top, client):
    hold = client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    screen.type("byyy")  # at once, as a cat on the keyboard does
    screen.shows("Break the hold on orders:42?")
    time.sleep(0.5)
    screen.shows("Break the hold on orders:42?")
    screen.type("q")
    screen.shows("nothing was broken")
    assert client.inspect("orders:42").holders[0].fence == hold.fence


def test_a_hold_that_changed_hands_behind_the_question_is_left_alone(top, client):
    first = client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    screen.type("b")
    screen.shows(f"fence    {first.fence}")
    first.release()
    second = client.lock("orders:42").acquire()
    screen.type("y")
    screen.shows("does not hold it any more, nothing was broken")
    assert client.inspect("orders:42").holders[0].fence == second.fence


def test_a_filter_is_typed_kept_and_cleared(top, client):
    for name in ("orders:1", "orders:2", "reports"):
        client.lock(name).acquire()
    screen = top()
    screen.shows("orders:1", "orders:2", "reports")
    screen.type("/REP")
    screen.until(lambda text: "orders:1" not in text and "reports" in text and "/REP" in text)
    screen.type("\x7f\x7f\x7fzz")
    screen.shows("nothing that matches")
    screen.type("\x7f\x7fs:2\r")
    screen.until(lambda text: "orders:2" in text and "reports" not in text)
    screen.shows("q quit")
    screen.type(ESC)
    screen.shows("orders:1", "orders:2", "reports")


def test_a_line_is_chosen_by_arrows_and_letters_and_followed(top, client):
    holds = {name: client.lock(name).acquire() for name in ("a", "b", "c")}
    screen = top()
    screen.shows("3 names")

    def chosen(text):
        for number, line in enumerate(text.splitlines()[3:6], 3):
            if screen.screen.buffer[number][0].reverse:
                return line.split()[0]

    assert screen.until(lambda text: chosen(text) == "a")
    screen.type(f"{ESC}[B")
    screen.until(lambda text: chosen(text) == "b")
    screen.type("j")
    screen.until(lambda text: chosen(text) == "c")
    screen.type(f"{ESC}OAk")
    screen.until(lambda text: chosen(text) == "a")
    screen.type("G")
    screen.until(lambda text: chosen(text) == "c")
    holds["a"].release()  # the lines move up, and what was chosen stays so
    screen.until(lambda text: "2 names" in text and chosen(text) == "c")


def test_help_and_the_ways_to_sort(top, client):
    client.lock("orders:42").acquire()
    screen = top()
    screen.shows("by wait")
    screen.type("?")
    screen.shows("Ctrl-Z suspend", "LAPSED are holds")
    screen.type(" ")
    for order in ("by hold", "by hand-overs", "by lapsed", "by name", "by wait"):
        screen.type("s")
        screen.shows(order)


def test_a_hostile_name_cannot_move_the_cursor(top, client):
    client.lock("evil\x1b[2J\x1b[H\r\nname\x07", label="\x1b]0;owned\x07").acquire()
    screen = top()
    screen.shows(r"evil\x1b[2J")
    assert screen.text.startswith("lockfast top")
    screen.type("\r")
    screen.shows("holds", r"]0;owned\x07")
    assert b"\x1b]0;" not in screen.raw and b"\x07" not in screen.raw


def test_letters_of_two_columns_keep_the_table_straight(top, client):
    client.lock("订单:42").acquire()
    client.lock("orders").acquire()
    screen = top()
    screen.shows("订", "orders")
    titles = screen.line("NAME")
    for word in ("orders", "订"):
        # pyte shows such a letter as itself and an empty cell.
        row = next(line for line in screen.text.splitlines() if line.startswith(word))
        assert "lock" in row
    number = next(n for n, line in enumerate(screen.text.splitlines()) if line.startswith("订"))
    cells = "".join(screen.screen.buffer[number][x].data or "\0" for x in range(80))
    assert cells.index("lock") == titles.index("KIND")


def test_another_size_is_drawn_anew(top, client):
    for number in range(40):
        client.lock(f"name-{number:02}").acquire()
    screen = top()
    screen.shows("40 names", "name-19")
    screen.resize(100, 45)
    screen.shows("name-39")
    assert "q quit" in screen.text.splitlines()[44]
    screen.resize(50, 10)
    screen.until(lambda text: "q quit" in text.splitlines()[9] and "name-06" not in text)
    screen.resize(20, 4)
    screen.shows("at least")
    screen.resize(80, 24)
    screen.shows("NAME", "name-19")


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it_and_gives_the_screen_back(top, client, number, code):
    screen = top()
    screen.shows("nothing is held")
    os.kill(screen.process.pid, number)
    assert screen.ended() == code and screen.is_restored()


def test_ctrl_c_ends_it(top, client):
    screen = top()
    screen.shows("nothing is held")
    screen.type("\x03")
    assert screen.ended() == 130 and screen.is_restored()


def test_a_bug_of_ours_gives_the_screen_back_too(driven, url):
    code = (
        "import sys\n"
        "from lockfast.cli.top import view\n"
        "from lockfast.cli.verbs import top\n"
        "def broken(*said): raise RuntimeError('a bug')\n"
        "top.frame = broken\n"
        "from lockfast.cli.main import main\n"
        "main(['top', '--url', sys.argv[1]])\n"
    )
    screen = driven([sys.executable, "-c", code, url])
    assert screen.ended() == 1 and screen.is_restored()
    assert "RuntimeError: a bug" in screen.text  # on the first screen, where it can be read


@pytest.mark.skipif(shutil.which("bash") is None, reason="a shell with job control")
def test_ctrl_z_gives_the_screen_to_the_shell_and_fg_takes_it_again(driven, url, client):
    client.lock("orders:42").acquire()
    shell = driven(["bash", "--norc", "--noprofile", "-i"], PS1="ready> ")
    shell.shows("ready>")
    shell.type(f"{sys.executable} -m lockfast top --interval 0.2 --url {url}\r")
    shell.shows("orders:42", "q quit")
    shell.type("\x1a")
    shell.shows("Stopped", "ready>")
    shell.until(lambda text: "q quit" not in text)
    shell.type("echo still-$((40 + 2))\r")
    shell.shows("still-42")
    shell.type("fg\r")
    shell.shows("orders:42", "q quit")
    shell.until(lambda text: "still-42" not in text)
    shell.type("q")
    shell.shows("ready>", "still-42")
    shell.type("exit\r")
    assert shell.ended() == 0


def test_one_that_was_stopped_unheard_draws_itself_again(top, client):
    client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    os.kill(screen.process.pid, signal.SIGSTOP)
    screen.screen.reset()  # somebody else wrote over it meanwhile
    os.kill(screen.process.pid, signal.SIGCONT)
    screen.shows("orders:42", "q quit", "lockfast top")


def test_where_there_is_no_terminal_it_says_what_to_use_instead(url):
    done = subprocess.run(
        [*LOCKFAST, "top", "--url", url], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "ls --json" in done.stderr
    done = subprocess.run(
        [*LOCKFAST, "top", "--interval", "0"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2 and "--interval" in done.stderr


def test_a_terminal_that_knows_only_ascii_gets_ascii(top, client):
    client.lock("orders:42").acquire()
    screen = top(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    screen.shows("orders:42", ">/s", "RET look")
    assert screen.raw.isascii()


def test_a_terminal_that_goes_away_ends_it(top, client):
    screen = top()
    screen.shows("nothing is held")
    screen.hang_up()
    assert screen.process.wait(PATIENCE) in (0, 129)


def test_on_redis_it_shows_looks_and_breaks_as_well(top, redis_server, others):
    others._url = redis_server.url
    fence = others.hold("top:orders", "import")
    others.ask("top:orders", "export")
    screen = top("top:", where=redis_server.url)
    screen.shows("top:orders", "1 waited for by 1", "redis at 127.0.0.1")
    screen.type("b")
    screen.shows(f"fence    {fence}")
    screen.type("y")
    screen.shows("top:orders: broken", "(export)")
    screen.type("qq")
    assert screen.ended() == 0 and screen.is_restored()


def test_a_store_that_does_not_answer_is_said_and_it_goes_on(top, redis_server):
    with (
        FaultProxy(("127.0.0.1", redis_server.port)) as network,
        lockfast.connect(redis_server.url, namespace="top") as client,
    ):
        client.lock("orders:42").acquire()
        screen = top("--namespace", "top", where=f"redis://127.0.0.1:{network.port}/0")
        screen.shows("orders:42")
        network.refuse()
        network.reset()
        screen.shows("nothing seen for", "orders:42")
        screen.type("?")
        screen.shows("Ctrl-Z suspend")  # keys do not wait for a store
        screen.type("?b")
        screen.shows("Break the hold on orders:42?")
        screen.type("y")
        screen.shows("whether it was broken is unknown")
        screen.type("q")
        network.accept()
        client.lock("new").acquire()
        screen.until(lambda text: "new" in text and "nothing seen for" not in text)
        screen.type("q")
        assert screen.ended() == 0 and screen.is_restored()


def test_many_hand_overs_and_a_lease_that_runs_out_are_told(top, url, client):
    stop = threading.Event()

    def take_turns():
        with lockfast.connect(url) as mine:
            while not stop.is_set():
                with mine.lock("hot"):
                    time.sleep(0.05)

    threads = [threading.Thread(target=take_turns) for _ in range(3)]
    for thread in threads:
        thread.start()
    screen = top()
    screen.shows("hot")
    client.lock("short", lease=1.0).acquire()  # it is not renewed, and not released
    screen.shows("short")
    screen.shows("lapsed 1")
    screen.until(lambda text: "hand-overs ≥ 0." not in text, "no hand-overs")
    stop.set()
    for thread in threads:
        thread.join()
