"""`lockfast bench`: its figures, no password in the output, and nothing left behind.

No value of a figure is asserted: only that there is one.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, error_line, is_alive, line, run, wait_until

import lockfast
from lockfast.cli import Screen
from lockfast.cli.bench import BROKEN, Plan, Store, _show, _sweep
from lockfast.cli.bench_contest import Outcome, Visits, WorkerResult, medians, outcome
from lockfast.cli.bench_report import MOST_STORES, Bar, Chart, Report, duration, short

if TYPE_CHECKING:
    from lab.servers.redis_server import RedisServer

SECRET = "swordfish"
SHORT = ("--seconds", "0.4", "--rounds", "2", "--processes", "2", "--contenders", "1,3")
CONTENDERS = """
import sys, threading, lockfast
lock = lockfast.connect(sys.argv[1], namespace="bench-2").lock("name", lease=60)
for _ in range(1 + 3):
    threading.Thread(target=lock.acquire).start()
"""
SVG = "{http://www.w3.org/2000/svg}"


class Measured:
    """One run of the command, and its output."""

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
    """A run on stores where another client holds a lock meanwhile."""
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


# ---- output ---------------------------------------------------------------------------------


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
    document = json.loads(measured.json.read_text())
    assert (document["seconds"], document["rounds"], document["processes"]) == (0.4, 2, 2)
    assert [store["store"] for store in document["stores"]] == ["SQLite", "Redis"]
    found = {(one["store"], one["contenders"]): one for one in document["results"]}
    assert found.keys() == {(store, size) for store in ("SQLite", "Redis") for size in (1, 3)}
    for (store, _), one in found.items():
        assert one["handovers"] > 0
        assert 0 < one["p50"] <= one["p99"]
        assert 0 < one["fairness"] <= 1
        assert one["requests"] > 1  # an acquire and a release each, except at the edges
        assert one["cpu"] > 0
        assert (one["overlaps"], one["timeouts"]) == (0, 0)
        assert (one["server_cpu"] is None) == (store == "SQLite")


def test_the_chart_is_well_formed_and_names_every_store(measured: Measured) -> None:
    drawing = ElementTree.parse(measured.svg).getroot()
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"SQLite", "Redis", "1, uncontended", "3 contenders"} <= set(texts)
    assert texts.count("3 contenders") == 2  # in both panels
    document = json.loads(measured.json.read_text())
    source = document["date"], document["machine"]
    assert any(all(part in (text or "") for part in source) for text in texts)
    bars = [bar.get("class") for bar in drawing.iter(f"{SVG}rect")]
    for store in ("s0", "s1"):
        assert bars.count(store) == 1 + 2 + 2  # in the legend, and in both panels twice
        assert bars.count(f"{store} pale") == 2
    for one in document["results"]:
        assert {short(one["handovers"]), duration(one["p50"]), duration(one["p99"])} <= set(texts)


def test_nothing_is_left_in_the_stores(measured: Measured, redis_server: RedisServer) -> None:
    with contextlib.closing(sqlite3.connect(measured.locks, timeout=10)) as store:
        assert store.execute("SELECT count(*) FROM waiters").fetchall() == [(0,)]
        names = store.execute("SELECT name FROM holds").fetchall()
    assert names == [("default:bystander",)]
    with redis_server.client(db=9, decode_responses=True) as server:
        left = [key for key in server.scan_iter() if "bystander" not in key]
        assert 1 <= len(left) <= 2, "more than one name was used"
        for key in left:  # the last fence and the last queue number are kept for a while
            assert re.fullmatch(r"lf:\{bench-\w+:bench-\w+\}(:w)?", key)
            assert server.hkeys(key) in ([".f"], [".n"])
            assert 0 < server.pttl(key) <= 130_000


def test_without_a_url_a_new_file_and_memory_are_measured(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    quick = ("--seconds", "0.1", "--rounds", "1", "--contenders", "2")
    done = run("bench", *quick, env={**os.environ, "TMPDIR": str(folder)})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +2  SQLite .*\n +memory +[\d,]+", done.stdout, re.MULTILINE)
    assert not list(folder.iterdir())
    assert not (tmp_path / "locks.db").exists(), "the store of $LOCKFAST_URL was used"


def test_two_stores_of_a_kind_are_numbered(tmp_path: Path) -> None:
    quick = ("--seconds", "0.1", "--rounds", "1", "--contenders", "1")
    done = run("bench", *quick, *(f"sqlite://{tmp_path}/{name}.db" for name in "ab"))
    assert re.search(r"^ +1  SQLite 1 .*\n +SQLite 2 ", done.stdout, re.MULTILINE), done.stdout


# ---- errors ---------------------------------------------------------------------------------


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
def test_an_error_before_measuring_is_one_line_and_code_2(arguments: list[str]) -> None:
    done = run("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert SECRET not in error_line(done)


def test_every_unreachable_store_is_reported_in_its_own_line(tmp_path: Path) -> None:
    unreachable = ("redis://127.0.0.1:1/0", "sqlite:///dev/null/locks.db")
    done = run("bench", f"sqlite://{tmp_path}/locks.db", *unreachable)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert "127.0.0.1:1" in first
    assert "/dev/null/locks.db" in second


# ---- endings --------------------------------------------------------------------------------


class Running:
    """A benchmark of one minute, running on a server of its own that has a password."""

    def __init__(self, start: Start, server: RedisServer) -> None:
        self.server = server
        options = ("--contenders", "6", "--processes", "3", "--seconds", "60")
        self.process = start(*LOCKFAST, "bench", *options, server.url)
        self.output = [line(self.process), line(self.process)]
        wait_until(self.waiting, "no waiter")
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
        self.output.append(out)
        wait_until(lambda: not any(map(is_alive, self.children)), "a child is left behind")
        return self.process.returncode, err


@pytest.fixture
def running(start: Start, new_redis: Callable[..., RedisServer]) -> Running:
    return Running(start, new_redis(password=SECRET))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_benchmark_cleanly(running: Running, signum: int) -> None:
    running.process.send_signal(signum)
    assert running.ended() == (128 + signum, "")
    assert not running.waiting() and not running.held()


def test_a_password_is_shown_nowhere(running: Running) -> None:
    texts = [Path(f"/proc/{pid}/cmdline").read_text() for pid in running.children]
    running.process.send_signal(signal.SIGINT)
    code, err = running.ended()
    assert code == 130
    texts += [*running.output, err]
    assert not [text for text in texts if SECRET in text]


def test_a_killed_benchmark_ends_its_worker_processes(running: Running) -> None:
    running.process.kill()
    code, _ = running.ended()
    assert code == -signal.SIGKILL
    wait_until(lambda: not running.waiting() and not running.held(), "something is left")


def test_a_worker_process_that_dies_ends_the_benchmark(running: Running) -> None:
    os.kill(running.children[1], signal.SIGKILL)
    code, err = running.ended()
    assert code == 69
    assert err == "lockfast: a worker process of the benchmark ended unexpectedly\n"
    assert not running.held()


def test_the_sweep_breaks_the_holds_of_a_killed_worker_and_no_others(
    url: str, client: lockfast.Client
) -> None:
    with client.lock("bystander"), lockfast.connect(url, namespace="bench-1") as killed:
        killed.lock("name").acquire()
        _sweep([Store("SQLite", url, url, False)], "bench-1")
        assert not killed.inspect("name").holders
        assert client.inspect("bystander").holders


def test_the_sweep_breaks_grants_to_stopped_waiters_too(
    start: Start, redis_server: RedisServer
) -> None:
    """A stopped process looks alive to the store, and never picks up what it is granted."""
    url = database(redis_server, 9)
    stopped = start(sys.executable, "-c", CONTENDERS, url)
    with lockfast.connect(url, namespace="bench-2") as client:
        wait_until(lambda: len(client.inspect("name").waiters) == 3, "not all threads wait")
        stopped.send_signal(signal.SIGSTOP)
        _sweep([Store("Redis", url, url, False)], "bench-2")
        assert client.names() == []


def test_a_server_lost_while_measuring_is_one_line_and_code_69(running: Running) -> None:
    running.server.kill()
    code, err = running.ended()
    assert code == 69
    assert re.fullmatch(r"lockfast: [^\n]*127\.0\.0\.1:\d+[^\n]*\n", err), err
    assert SECRET not in err


# ---- arithmetic -----------------------------------------------------------------------------


def worker_result(*visits: tuple[int, float, float]) -> WorkerResult:
    contender = Visits()
    for fence, acquired, released in visits:
        contender.add(fence, acquired, acquired, released)
    return WorkerResult([contender], 4, 0.5)


def test_a_handover_is_from_one_contender_to_another() -> None:
    first = worker_result(
        (1, 0.0, 1.0), (2, 2.0, 3.0), (4, 6.0, 7.0)
    )  # acquires twice in a row, then waits
    second = worker_result((3, 4.5, 5.0))
    found = outcome([first, second], 0.0, 10.0, 2.0)
    assert found.handovers == 0.2
    assert (found.p50, found.p99) == (1.5e6, 1.5e6)
    assert found.fairness == pytest.approx(16 / (2 * 10))
    assert (found.requests, found.cpu, found.server_cpu) == (2.0, 0.25e6, 0.5e6)
    assert found.overlaps == 0


def test_acquires_outside_the_measured_time_are_not_counted() -> None:
    found = outcome([worker_result((1, 0.0, 0.5), (2, 1.0, 1.5), (3, 2.0, 2.5))], 1.0, 2.0, None)
    assert found.handovers == 1.0
    assert found.requests == 4.0


def test_a_single_contender_counts_its_own_cycles() -> None:
    found = outcome([worker_result((1, 0.0, 1.0), (2, 3.0, 4.0))], 0.0, 10.0, None)
    assert (found.handovers, found.p50) == (0.1, 2e6)


def test_a_round_without_acquires_has_no_figures() -> None:
    found = outcome([WorkerResult([Visits(), Visits(timeouts=1)], 0, 0.0)], 0.0, 1.0, None)
    assert found.handovers == 0
    figures = found.as_json()
    assert [key for key, value in figures.items() if value is not None] == [
        "handovers", "overlaps", "timeouts",
    ]  # fmt: skip


def test_rounds_are_summarized_by_medians_and_faults_by_sums() -> None:
    rounds = [
        Outcome(rate, 1, 1, 1, 1, 1, float("nan"), overlaps=1, timeouts=0) for rate in (5, 9, 6)
    ]
    assert (medians(rounds).handovers, medians(rounds).overlaps) == (6, 3)


def test_table_chart_and_json_show_the_same_figure() -> None:
    """4,250.00000000005 would be 4.3k and 4,250 is 4.2k, so figures are rounded once, for all."""
    count = 1700 / (0.4 - 5e-15)
    found = medians([Outcome(count, 1, 1, 1, 1, 1, 1, overlaps=0, timeouts=0)])
    assert count > 4250 and found.handovers == found.as_json()["handovers"] == 4250


def test_overlapping_holds_are_detected_and_fail_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcome([worker_result((1, 0.0, 2.0)), worker_result((2, 1.5, 3.0))], 0.0, 10.0, None)
    assert found.overlaps == 1
    store = Store("memory", "memory://", "memory://", True)
    plan = Plan(["memory://"], [2], 1.0, 1, 1)
    report = Report(Screen(), plan, [store])
    assert _show(plan, report, {(2, store): found}) == BROKEN
    assert "two contenders held the lock at once" in capsys.readouterr().err


@pytest.mark.parametrize(("load", "is_reported"), [(0.5, False), (1000.0, True)])
def test_a_busy_machine_is_reported(
    load: float,
    is_reported: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    store = Store("memory", "memory://", "memory://", True)
    report = Report(Screen(), Plan([store.url], [1], 1.0, 1, 1), [store])
    report.begin(0.2)
    assert ("this machine is busy (load 1000.0" in capsys.readouterr().out) == is_reported
    assert json.loads(report.json({}))["load"] == load
    assert ("a busy machine" in report.svg({})) == is_reported


# ---- the chart ------------------------------------------------------------------------------


def test_the_largest_possible_chart_is_well_formed() -> None:
    stores = ['a <b> & "c"', *(f"store {index}" for index in range(1, MOST_STORES))]
    nan = float("nan")
    bars = [Bar(0, 0.0, nan, nan)]
    bars += [Bar(index, 10.0**index, 3.0**index, 9.0**index) for index in range(1, MOST_STORES)]
    groups = [(f"{size} contenders", bars) for size in range(6)]
    drawing = ElementTree.fromstring(Chart("all", stores, groups, ["a caption"]).svg())
    texts = {text.text for text in drawing.iter(f"{SVG}text")}
    assert {*stores, "a caption", "3 µs, 9 µs"} <= texts
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for bar in drawing.iter(f"{SVG}rect"):
        x, y = float(bar.attrib["x"]), float(bar.attrib["y"])
        assert x >= 0 and x + float(bar.attrib["width"]) <= width
        assert y >= 0 and y + float(bar.attrib["height"]) <= height


def test_a_chart_without_figures_is_well_formed() -> None:
    bars = [Bar(0, 0.0, float("nan"), float("nan"))]
    ElementTree.fromstring(Chart("none", ["one"], [("1", bars)], []).svg())


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0.4, "0.4 µs"),
        (45.2, "45 µs"),
        (999.7, "1 ms"),
        (1234.0, "1.2 ms"),
        (2.5e6, "2.5 s"),
        (1e9, "1000 s"),
    ],
)
def test_a_duration_has_few_digits(micros: float, text: str) -> None:
    assert duration(micros) == text


def test_a_count_has_few_digits() -> None:
    assert [short(count) for count in (0, 950.2, 1000, 9512, 12345)] == [
        "0", "950", "1k", "9.5k", "12k",
    ]  # fmt: skip


def test_the_help_has_examples() -> None:
    done = run("bench", "--help")
    assert done.returncode == 0
    assert "lockfast bench --compare" in done.stdout
    assert subprocess.list2cmdline(["--svg", "chart.svg"]) in done.stdout
