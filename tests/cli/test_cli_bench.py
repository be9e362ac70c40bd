"""`lockfast bench`: it measures what it says, shows no password, and leaves nothing behind.

No figure is asserted: only that there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, is_alive, line, one_complaint, run, wait_until

import lockfast
from lockfast.cli.bench import BROKEN, Plan, _show, _sweep
from lockfast.cli.bench_messages import Noted, Visits
from lockfast.cli.bench_outcome import Outcome, middle, outcome
from lockfast.cli.bench_report import Report, Store
from lockfast.cli.chart import MOST_STORES, Bar, Chart, duration, short
from lockfast.cli.screen import Screen

if TYPE_CHECKING:
    from lab.servers.redis_server import RedisServer

SECRET = "swordfish"
SHORT = ("--seconds", "0.4", "--rounds", "2", "--processes", "2", "--contenders", "1,3")
CROWD = """
import sys, threading, lockfast
lock = lockfast.connect(sys.argv[1], namespace="bench-2").lock("name", lease=60)
for _ in range(1 + 3):
    threading.Thread(target=lock.acquire).start()
"""
SVG = "{http://www.w3.org/2000/svg}"


class Measured:
    """One run of the command, and all that it said."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.locks = folder / "locks.db"
        self.svg, self.json = folder / "chart.svg", folder / "figures.json"
        files = ("--svg", self.svg, "--json", self.json)
        self.done = run("bench", "--compare", *SHORT, *files, f"sqlite://{self.locks}", redis_url)


def database(server: RedisServer, number: int) -> str:
    return re.sub(r"/0$", f"/{number}", server.url)


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[Measured]:
    """On stores on which somebody else holds a lock meanwhile."""
    folder = tmp_path_factory.mktemp("bench")
    urls = f"sqlite://{folder / 'locks.db'}", database(redis_server, 9)
    with contextlib.ExitStack() as bystanders:
        holds = [
            bystanders.enter_context(
                bystanders.enter_context(lockfast.connect(url)).lock("bystander")
            )
            for url in urls
        ]
        measured = Measured(folder, urls[1])
        for hold in holds:
            hold.renew()  # or HoldLost
        yield measured


# ---- what is shown --------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_store_and_number_of_contenders(measured: Measured) -> None:
    done = measured.done
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert re.search(r"2 stores × 2 numbers of contenders × 2 rounds × 0.4 s: about \d+ s$", first)
    figure = r"\s+[\d,.]+"
    for store, server in (("SQLite", r"\s+–"), ("Redis", figure)):
        row = re.compile(rf"\s*(1|3)?  {store} {figure * 6}{server}$")
        assert sum(bool(row.match(one)) for one in lines) == 2, done.stdout
    assert sum("█" in one and "1.00×" in one for one in lines) >= 2  # the fastest of each number
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_the_json_has_every_figure(measured: Measured) -> None:
    told = json.loads(measured.json.read_text())
    assert (told["seconds"], told["rounds"], told["processes"]) == (0.4, 2, 2)
    assert [store["store"] for store in told["stores"]] == ["SQLite", "Redis"]
    found = {(one["store"], one["contenders"]): one for one in told["results"]}
    assert found.keys() == {(store, size) for store in ("SQLite", "Redis") for size in (1, 3)}
    for (store, _), one in found.items():
        assert one["handovers"] > 0
        assert 0 < one["p50"] <= one["p99"]
        assert 0 < one["fairness"] <= 1
        assert one["requests"] > 1  # one to acquire, one to release, but for those at the edges
        assert one["cpu"] > 0
        assert (one["overlaps"], one["given_up"]) == (0, 0)
        assert (one["server_cpu"] is None) == (store == "SQLite")


def test_the_chart_is_well_formed_and_names_every_store(measured: Measured) -> None:
    drawing = ElementTree.parse(measured.svg).getroot()
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"SQLite", "Redis", "1, uncontended", "3 contenders"} <= set(texts)
    assert texts.count("3 contenders") == 2  # in both panels
    told = json.loads(measured.json.read_text())
    assert any(told["date"] in (text or "") and told["machine"] in (text or "") for text in texts)
    bars = [bar.get("class") for bar in drawing.iter(f"{SVG}rect")]
    for store in ("s0", "s1"):
        assert bars.count(store) == 1 + 2 + 2  # in the legend, and in both panels twice
        assert bars.count(f"{store} pale") == 2
    for one in told["results"]:
        assert {short(one["handovers"]), duration(one["p50"]), duration(one["p99"])} <= set(texts)


def test_nothing_is_left_in_the_stores(measured: Measured, redis_server: RedisServer) -> None:
    with contextlib.closing(sqlite3.connect(measured.locks, timeout=10)) as store:
        assert store.execute("SELECT count(*) FROM waiters").fetchall() == [(0,)]
        names = store.execute("SELECT name FROM holds").fetchall()
    assert names == [("default:bystander",)]
    with redis_server.client(db=9, decode_responses=True) as server:
        left = [key for key in server.scan_iter() if "bystander" not in key]
        assert 1 <= len(left) <= 2, "one name, whatever was measured"
        for key in left:  # the last fence and the last place in the queue, for a while
            assert re.fullmatch(r"lf:\{bench-\w+:bench-\w+\}(:w)?", key)
            assert server.hkeys(key) in ([".f"], [".n"])
            assert 0 < server.pttl(key) <= 130_000


def test_without_a_url_it_is_a_new_file_and_memory(url: str, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    quick = ("--seconds", "0.1", "--rounds", "1", "--contenders", "2")
    done = run("bench", *quick, env={**os.environ, "TMPDIR": str(stage)})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +2  SQLite .*\n +memory +[\d,]+", done.stdout, re.MULTILINE)
    assert not list(stage.iterdir())
    assert not (tmp_path / "locks.db").exists(), "the store of $LOCKFAST_URL was used"


def test_two_stores_of_a_kind_are_told_apart(tmp_path: Path) -> None:
    quick = ("--seconds", "0.1", "--rounds", "1", "--contenders", "1")
    done = run("bench", *quick, *(f"sqlite://{tmp_path}/{name}.db" for name in "ab"))
    assert re.search(r"^ +1  SQLite 1 .*\n +SQLite 2 ", done.stdout, re.MULTILINE), done.stdout


# ---- what cannot be done --------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [f"redis://:{SECRET}@127.0.0.1:1/0"],
        ["memory://", f"redis://:{SECRET}@127.0.0.1:1/0"],
        [f"redis://:{SECRET}@127.0.0.1:port/0"],
        ["sqlite:///dev/null/locks.db"],
        ["nosuch://host"],
        ["--contenders", "0", "memory://"],
        ["--contenders", "1,501", "memory://"],
        ["--contenders", "2,2", "memory://"],
        ["--contenders", "ten", "memory://"],
        ["--seconds", "nan", "memory://"],
        ["--rounds", "0", "memory://"],
        ["--processes", "65", "memory://"],
        ["--svg", "/nosuch/chart.svg", "memory://"],
        ["--json", "/", "memory://"],
        ["memory://"] * (MOST_STORES + 1),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_code_2(arguments: list[str]) -> None:
    done = run("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert SECRET not in one_complaint(done)


def test_every_store_that_is_out_of_reach_has_its_line(tmp_path: Path) -> None:
    away = ("redis://127.0.0.1:1/0", "sqlite:///dev/null/locks.db")
    done = run("bench", f"sqlite://{tmp_path}/locks.db", *away)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert "127.0.0.1:1" in first
    assert "/dev/null/locks.db" in second


# ---- how it ends ----------------------------------------------------------------------------


class Running:
    """A benchmark of a minute, at work on a server of its own that has a password."""

    def __init__(self, start: Start, server: RedisServer) -> None:
        self.server = server
        words = ("--contenders", "6", "--processes", "3", "--seconds", "60")
        self.process = start(*LOCKFAST, "bench", *words, server.url)
        self.told = [line(self.process), line(self.process)]
        wait_until(self.waiting, "nobody waits")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.children = [int(pid) for pid in children.read_text().split()]
        assert len(self.children) == 3

    def waiting(self) -> list[str]:
        with self.server.client(decode_responses=True) as client:
            return list(client.scan_iter("lf:*:q"))

    def held(self) -> list[str]:
        with self.server.client(decode_responses=True) as client:
            return [key for key in client.scan_iter("lf:{bench-*}") if client.hlen(key) > 1]

    def ended(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=2 * PATIENCE)
        self.told.append(out)
        wait_until(lambda: not any(map(is_alive, self.children)), "a child is left behind")
        return self.process.returncode, err


@pytest.fixture
def running(start: Start, new_redis: Callable[..., RedisServer]) -> Running:
    return Running(start, new_redis(password=SECRET))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(running: Running, signum: int) -> None:
    running.process.send_signal(signum)
    assert running.ended() == (128 + signum, "")
    assert not running.waiting() and not running.held()


def test_a_password_is_shown_nowhere(running: Running) -> None:
    said = [Path(f"/proc/{pid}/cmdline").read_text() for pid in running.children]
    running.process.send_signal(signal.SIGINT)
    code, err = running.ended()
    assert code == 130
    said += [*running.told, err]
    assert not [text for text in said if SECRET in text]


def test_a_killed_benchmark_takes_its_processes_along(running: Running) -> None:
    running.process.kill()
    code, _ = running.ended()
    assert code == -signal.SIGKILL
    wait_until(lambda: not running.waiting() and not running.held(), "something is left")


def test_a_process_that_dies_ends_it(running: Running) -> None:
    os.kill(running.children[1], signal.SIGKILL)
    code, err = running.ended()
    assert code == 69
    assert err == "lockfast: a process of the benchmark ended by itself\n"
    assert not running.held()


def test_what_a_killed_process_held_is_swept_away_and_nothing_else(
    url: str, client: lockfast.Client
) -> None:
    with client.lock("bystander"), lockfast.connect(url, namespace="bench-1") as killed:
        killed.lock("name").acquire()
        _sweep([Store("SQLite", url, url, False)], "bench-1")
        assert not killed.inspect("name").holders
        assert client.inspect("bystander").holders


def test_who_stood_in_the_queue_is_swept_away_too(start: Start, redis_server: RedisServer) -> None:
    """Of a process that cannot be told from a living one, and never comes for what it is given."""
    url = database(redis_server, 9)
    stopped = start(sys.executable, "-c", CROWD, url)
    with lockfast.connect(url, namespace="bench-2") as client:
        wait_until(lambda: len(client.inspect("name").waiters) == 3, "not all wait")
        stopped.send_signal(signal.SIGSTOP)
        _sweep([Store("Redis", url, url, False)], "bench-2")
        assert client.names() == []


def test_a_server_that_goes_away_is_one_line_and_code_69(running: Running) -> None:
    running.server.kill()
    code, err = running.ended()
    assert code == 69
    assert re.fullmatch(r"lockfast: [^\n]*127\.0\.0\.1:\d+[^\n]*\n", err), err
    assert SECRET not in err


# ---- the arithmetic -------------------------------------------------------------------------


def noted(*visits: tuple[int, float, float]) -> Noted:
    fences, acquired, released = zip(*visits, strict=True)
    return Noted([Visits(array("q", fences), array("d", acquired), array("d", released))], 4, 0.5)


def test_a_handover_is_from_one_contender_to_another() -> None:
    first = noted((1, 0.0, 1.0), (2, 2.0, 3.0), (4, 6.0, 7.0))  # it comes again, then waits
    second = noted((3, 4.5, 5.0))
    found = outcome([first, second], 0.0, 10.0, 2.0)
    assert found.handovers == 0.2
    assert (found.p50, found.p99) == (1.5e6, 1.5e6)
    assert found.fairness == pytest.approx(16 / (2 * 10))
    assert (found.requests, found.cpu, found.server_cpu) == (2.0, 0.25e6, 0.5e6)
    assert found.overlaps == 0


def test_what_was_before_or_after_is_not_counted() -> None:
    found = outcome([noted((1, 0.0, 0.5), (2, 1.0, 1.5), (3, 2.0, 2.5))], 1.0, 2.0, None)
    assert found.handovers == 1.0
    assert found.requests == 4.0


def test_of_one_contender_its_own_cycles_are_counted() -> None:
    found = outcome([noted((1, 0.0, 1.0), (2, 3.0, 4.0))], 0.0, 10.0, None)
    assert (found.handovers, found.p50) == (0.1, 2e6)


def test_a_round_in_which_nothing_happened_has_no_figures() -> None:
    found = outcome([Noted([Visits(), Visits(given_up=1)], 0, 0.0)], 0.0, 1.0, None)
    assert found.handovers == 0
    figures = found.for_scripts()
    assert [key for key, value in figures.items() if value is not None] == [
        "handovers", "overlaps", "given_up",
    ]  # fmt: skip


def test_rounds_are_shown_by_their_median_and_faults_by_their_sum() -> None:
    rounds = [
        Outcome(rate, 1, 1, 1, 1, 1, float("nan"), overlaps=1, given_up=0) for rate in (5, 9, 6)
    ]
    assert (middle(rounds).handovers, middle(rounds).overlaps) == (6, 3)


def test_every_picture_says_the_same_figure() -> None:
    """4,250.00000000005 is 4.3k, and 4,250 is 4.2k: so it is rounded once, for all of them."""
    count = 1700 / (0.4 - 5e-15)
    found = middle([Outcome(count, 1, 1, 1, 1, 1, 1, overlaps=0, given_up=0)])
    assert count > 4250 and found.handovers == found.for_scripts()["handovers"] == 4250


def test_two_inside_at_once_are_found_and_fail_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcome([noted((1, 0.0, 2.0)), noted((2, 1.5, 3.0))], 0.0, 10.0, None)
    assert found.overlaps == 1
    store = Store("memory", "memory://", "memory://", True)
    plan = Plan(["memory://"], [2], 1.0, 1, 1, None, None, False)
    report = Report(Screen(), [store], 1.0, 1, 1)
    assert _show(plan, report, {(2, store): found}) == BROKEN
    assert "two contenders were inside at once" in capsys.readouterr().err


@pytest.mark.parametrize(("load", "says_so"), [(0.5, False), (1000.0, True)])
def test_a_machine_that_is_busy_with_other_things_is_told(
    load: float,
    says_so: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    report = Report(Screen(), [Store("memory", "memory://", "memory://", True)], 1.0, 1, 1)
    report.begin(1, 1.0)
    assert ("busy with other things (load 1000.0" in capsys.readouterr().out) == says_so
    assert json.loads(report.for_scripts({}))["load"] == load
    assert ("a busy machine" in report.svg({})) == says_so


# ---- the chart ------------------------------------------------------------------------------


def test_a_chart_of_the_most_that_can_be_asked_for_is_well_formed() -> None:
    stores = ['a <b> & "c"', *(f"store {index}" for index in range(1, MOST_STORES))]
    nan = float("nan")
    bars = [Bar(0, 0.0, nan, nan)]
    bars += [Bar(index, 10.0**index, 3.0**index, 9.0**index) for index in range(1, MOST_STORES)]
    groups = [(f"{size} contenders", bars) for size in range(6)]
    drawing = ElementTree.fromstring(Chart("all", stores, groups, ["said below"]).svg())
    texts = {text.text for text in drawing.iter(f"{SVG}text")}
    assert {*stores, "said below", "3 µs, 9 µs"} <= texts
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for bar in drawing.iter(f"{SVG}rect"):
        x, y = float(bar.attrib["x"]), float(bar.attrib["y"])
        assert x >= 0 and x + float(bar.attrib["width"]) <= width
        assert y >= 0 and y + float(bar.attrib["height"]) <= height


def test_a_chart_without_any_figure_is_well_formed() -> None:
    bars = [Bar(0, 0.0, float("nan"), float("nan"))]
    ElementTree.fromstring(Chart("none", ["one"], [("1", bars)], []).svg())


@pytest.mark.parametrize(
    ("micros", "said"),
    [
        (0.4, "0.4 µs"),
        (45.2, "45 µs"),
        (999.7, "1 ms"),
        (1234.0, "1.2 ms"),
        (2.5e6, "2.5 s"),
        (1e9, "1000 s"),
    ],
)
def test_a_duration_is_said_in_few_digits(micros: float, said: str) -> None:
    assert duration(micros) == said


def test_a_count_is_said_in_few_digits() -> None:
    assert [short(count) for count in (0, 950.2, 1000, 9512, 12345)] == [
        "0", "950", "1k", "9.5k", "12k",
    ]  # fmt: skip


def test_the_help_has_examples() -> None:
    done = run("bench", "--help")
    assert done.returncode == 0
    assert "lockfast bench --compare" in done.stdout
    assert subprocess.list2cmdline(["--svg", "chart.svg"]) in done.stdout
