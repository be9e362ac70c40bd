"""`lockfast top` on a real terminal of 80×24: its screens and keys, and the restored terminal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from terminals import ALTERNATE, LOCKFAST, PATIENCE

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
    """Other processes that hold a name or wait for it."""

    def __init__(self, url):
        self._url = url
        self._started = []

    def hold(self, name, label):
        """Acquire in another process; return the fence."""
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


def test_the_list_shows_held_and_contended_names_longest_wait_first(top, others, client):
    client.lock("quiet").acquire()
    others.hold("orders:42", "import")
    waiter = others.ask("orders:42", "export")
    screen = top()
    screen.shows("orders:42", "quiet", "2 names", "1 contended, 1 waiting", "import")
    screen.until(lambda text: "q quit" in text and text.splitlines()[4].startswith("orders:42 "))
    lines = screen.text.splitlines()
    assert len(lines) == 24 and all(len(line) == 80 for line in lines)
    assert lines[0].startswith("lockfast top  sqlite://")
    assert lines[3].split()[:3] == ["NAME", "KIND", "HOLDER"] and "LAPSED" in lines[3]
    assert lines[4].startswith("orders:42") and lines[5].startswith("quiet")
    assert "hand-overs ≥" in lines[2] and "longest wait" in lines[2] and "▁" in lines[2]
    assert "q quit" in lines[23]
    assert waiter.poll() is None
    screen.type("q")
    assert screen.ended() == 0 and screen.is_restored()


def test_the_details_show_a_hold_and_only_yes_breaks_it(top, others):
    fence = others.hold("orders:42", "import")
    waiter = others.ask("orders:42", "export")
    screen = top()
    screen.shows("1 contended, 1 waiting")
    screen.type("\r")
    screen.shows("holds", "(import)", str(fence), "1.", "(export)", "lock, 1 waiting")
    screen.type("b")
    screen.shows(
        "Break the hold on orders:42?", "(import)", f"fence {fence} stale", "Any other key: cancel"
    )
    screen.answer("n")
    screen.shows("nothing was broken", "holds")
    assert str(fence) in screen.line("holds")
    screen.type("b")
    screen.shows("Break the hold on orders:42?")
    screen.answer("y")
    heir = int(waiter.stdout.readline())
    assert heir > fence
    screen.shows("orders:42: broken", str(heir), "lock, 0 waiting", "(export)", " import")
    screen.type("q")
    assert screen.ended() == 0 and screen.is_restored()


def test_keys_typed_before_the_question_do_not_answer_it(top, client):
    hold = client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    screen.type("byyy")  # at once
    screen.shows("Break the hold on orders:42?")
    time.sleep(0.5)
    screen.shows("Break the hold on orders:42?")
    screen.type("q")
    screen.shows("nothing was broken")
    assert client.inspect("orders:42").holders[0].fence == hold.fence


def test_a_hold_acquired_while_the_question_is_open_is_not_broken(top, client):
    first = client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    screen.type("b")
    screen.shows(f"fence {first.fence} stale")
    first.release()
    second = client.lock("orders:42").acquire()
    screen.answer("y")
    screen.shows("any more, nothing was broken")
    assert client.inspect("orders:42").holders[0].fence == second.fence


def test_a_filter_is_typed_kept_and_cleared(top, client):
    for name in ("orders:1", "orders:2", "reports"):
        client.lock(name).acquire()
    screen = top()
    screen.shows("orders:1", "orders:2", "reports")
    screen.type("/")
    screen.shows("esc clear")
    screen.type("REP")
    screen.until(lambda text: "orders:1" not in text and "reports" in text and "/REP" in text)
    screen.type("\x7f\x7f\x7fzz")
    screen.shows("no name matches")
    screen.type("\x7f\x7fs:2")
    screen.shows("1 match /s:2")
    screen.type("\r")
    screen.until(lambda text: "orders:2" in text and "reports" not in text)
    screen.shows("q quit")
    screen.type(ESC)
    screen.shows("orders:1", "orders:2", "reports")


def test_a_hostile_name_cannot_move_the_cursor(top, client):
    client.lock("evil\x1b[2J\x1b[H\r\nname\x07", label="\x1b]0;owned\x07").acquire()
    screen = top()
    screen.shows(r"evil\x1b[2J")
    assert screen.text.startswith("lockfast top")
    screen.type("\r")
    screen.shows("holds", r"]0;owned\x07")
    drawn = re.sub(rb"\x1b]22;\w+\x07", b"", screen.raw)  # Textual's own: the pointer's shape
    assert b"\x1b]0;" not in drawn and b"\x07" not in drawn


def test_wide_characters_keep_the_table_aligned(top, client):
    client.lock("订单:42").acquire()
    client.lock("orders").acquire()
    screen = top()
    screen.shows("订", "orders")
    titles = screen.line("NAME")
    for name in ("orders", "订"):
        # pyte shows a wide character as itself and an empty cell.
        row = next(line for line in screen.text.splitlines() if line.startswith(name))
        assert "lock" in row
    number = next(n for n, line in enumerate(screen.text.splitlines()) if line.startswith("订"))
    cells = "".join(screen.screen.buffer[number][x].data or "\0" for x in range(80))
    assert cells.index("lock") == titles.index("KIND")


def test_a_change_of_size_redraws_the_screen(top, client):
    for number in range(40):
        client.lock(f"name-{number:02}").acquire()
    screen = top()
    screen.shows("40 names", "name-06")
    screen.resize(100, 45)
    screen.shows("name-20")
    assert "q quit" in screen.text.splitlines()[44]
    screen.resize(50, 10)
    screen.until(lambda text: "q quit" in text.splitlines()[9] and "name-16" not in text)
    screen.resize(20, 4)
    screen.resize(80, 24)
    screen.shows("NAME", "LAPSED", "name-06")


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_top_and_restores_the_terminal(top, client, number, code):
    screen = top()
    screen.shows("nothing is held")
    os.kill(screen.process.pid, number)
    assert screen.ended() == code and screen.is_restored()


def test_ctrl_c_ends_top(top, client):
    screen = top()
    screen.shows("nothing is held")
    screen.type("\x03")
    assert screen.ended() == 130 and screen.is_restored()


def test_an_unexpected_exception_restores_the_terminal(driven, url):
    code = (
        "import sys\n"
        "from lockfast.cli import top\n"
        "def broken(*args): raise RuntimeError('a bug')\n"
        "from lockfast.cli import top_app\n"
        "top_app.brief = broken\n"
        "from lockfast.cli.main import main\n"
        "sys.exit(main(['top', '--url', sys.argv[1]]))\n"
    )
    screen = driven([sys.executable, "-c", code, url])
    assert screen.ended() == 1 and screen.is_restored()
    assert (
        b"RuntimeError" in screen.raw and b"a bug" in screen.raw
    )  # on the normal screen, where it can be read


@pytest.mark.skipif(shutil.which("bash") is None, reason="a shell with job control")
def test_ctrl_z_returns_to_the_shell_and_fg_resumes(driven, url, client):
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
    shell.until(lambda text: "still-42" in text and text.count("ready>") == 4)
    shell.type("exit\r")
    assert shell.ended() == 0


def test_the_screen_is_redrawn_after_sigstop(top, client):
    client.lock("orders:42").acquire()
    screen = top()
    screen.shows("orders:42")
    os.kill(screen.process.pid, signal.SIGSTOP)
    screen.screen.reset()  # as if overwritten meanwhile
    os.kill(screen.process.pid, signal.SIGCONT)
    screen.shows("orders:42", "q quit", "lockfast top")


def test_without_a_terminal_the_error_names_the_alternative(url):
    done = subprocess.run(
        [*LOCKFAST, "top", "--url", url], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "ls --json" in done.stderr
    done = subprocess.run(
        [*LOCKFAST, "top", "--interval", "0"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2 and "--interval" in done.stderr


def test_a_terminal_without_utf_8_gets_one_line(top):
    screen = top(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert screen.ended() == 2 and "needs a UTF-8 terminal" in screen.text
    assert ALTERNATE not in screen.raw


def test_without_textual_one_line_says_how_to_install_it(top, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['textual'] = None\n")
    screen = top(PYTHONPATH=str(tmp_path))
    assert screen.ended() == 2 and "pip install 'lockfast[top]'" in screen.text
    assert len(screen.text.split("\n", 1)[1].strip()) == 0 and "Traceback" not in screen.text


def test_no_other_verb_imports_textual():
    code = "import sys, lockfast.cli.{0}; print('textual' in sys.modules)"
    for module in ("main", "run", "top", "holds"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True
        )
        assert done.stdout == "False\n", module


def test_a_hang_up_ends_top(top, client):
    screen = top()
    screen.shows("nothing is held")
    screen.hang_up()
    assert screen.process.wait(PATIENCE) in (0, 129)


def test_top_shows_and_breaks_holds_on_redis(top, redis_server, others):
    others._url = redis_server.url
    fence = others.hold("top:orders", "import")
    others.ask("top:orders", "export")
    screen = top("top:", where=redis_server.url)
    screen.shows("top:orders", "1 contended, 1 waiting", "redis at 127.0.0.1")
    screen.type("b")
    screen.shows(f"fence {fence} stale")
    screen.answer("y")
    screen.shows("top:orders: broken", "(export)")
    screen.type("q")
    assert screen.ended() == 0 and screen.is_restored()


def test_an_outage_of_the_store_is_shown_and_top_continues(top, redis_server):
    with (
        FaultProxy(("127.0.0.1", redis_server.port)) as network,
        lockfast.connect(redis_server.url, namespace="top") as client,
    ):
        client.lock("orders:42").acquire()
        screen = top("--namespace", "top", where=f"redis://127.0.0.1:{network.port}/0")
        screen.shows("orders:42")
        network.refuse()
        network.reset()
        screen.shows("no data for", "orders:42")
        screen.type("?")
        screen.shows("Ctrl-Z suspends")  # keys do not wait for the store
        screen.answer("?")
        screen.until(lambda text: "Ctrl-Z suspends" not in text)
        screen.type("b")
        screen.shows("Break the hold on orders:42?")
        screen.answer("y")
        screen.shows("whether it was broken is unknown")
        network.accept()
        client.lock("new").acquire()
        screen.until(lambda text: "new" in text and "no data for" not in text)
        screen.type("q")
        assert screen.ended() == 0 and screen.is_restored()


def test_hand_overs_and_an_expired_lease_are_counted(top, url, client):
    stop = threading.Event()

    def contend():
        with lockfast.connect(url) as mine:
            while not stop.is_set():
                with mine.lock("hot"):
                    time.sleep(0.05)

    threads = [threading.Thread(target=contend) for _ in range(3)]
    for thread in threads:
        thread.start()
    screen = top()
    screen.shows("hot")
    client.lock("short", lease=1.0).acquire()  # neither renewed nor released
    screen.shows("short")
    screen.shows("lapsed 1")
    screen.until(lambda text: "hand-overs ≥ 0." not in text, "no hand-overs")
    stop.set()
    for thread in threads:
        thread.join()
