"""Load: many names, processes and crashes leave nothing behind, and all processes progress."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast

PATIENCE = 100.0
Start = Callable[..., Any]


def rows(path: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as file:
        return {
            table: file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("holds", "waiters", "store")
        }


def size_on_disk(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.rglob(path.name + "*") if one.is_file())


def test_twenty_thousand_names_leave_nothing_behind(client: lockfast.Client, path: Path) -> None:
    sizes = []
    for number in range(20_000):
        client.lock(f"order:{number}").acquire().release()
        if number % 5_000 == 4_999:
            sizes.append(size_on_disk(path))
    assert rows(path) == {"holds": 0, "waiters": 0, "store": 1}
    assert client.names() == []
    assert sizes[-1] <= 1.5 * sizes[0]  # SQLite reuses the log from the start when it is full
    assert client.statistics().held == 0
    ledger = client._core.ledger
    assert not ledger.by_owner and not ledger.kept and not ledger.waiting


def test_the_space_of_names_held_at_the_same_time_is_reused(
    client: lockfast.Client, path: Path
) -> None:
    sizes = []
    for _ in range(3):
        holds = [client.lock(f"order:{number}").acquire() for number in range(2_000)]
        for hold in holds:
            hold.release()
        sizes.append(path.stat().st_size)
    assert rows(path)["holds"] == 0
    assert sizes[-1] <= 1.5 * max(sizes[0], 1_000_000)


def test_expired_holds_that_were_never_released_leave_nothing_behind(
    client: lockfast.Client, path: Path
) -> None:
    """`lease=5` without a release means "at most once in 5 seconds". A program may do that for a
    million names, and never use most of them again."""
    for number in range(5_000):
        client.lock(f"greeted:{number}", lease=0.01).acquire()
    time.sleep(0.1)
    assert rows(path)["holds"] < 2_500


COUNT = """
counter, times, fair = rest[0], int(rest[1]), rest[2] == "fair"
client = lockfast.connect(url); report("ready"); read_line()
for _ in range(times):
    with client.lock("counter", timeout=90, fair=fair) as hold:
        with open(counter) as file: number = int(file.read())
        with open(counter, "w") as file: file.write(str(number + 1))
        with open(counter + ".fences", "a") as file: print(hold.fence, file=file)
report("done")
"""


@pytest.mark.parametrize("fair", ["fair", "unfair"])
def test_sixteen_processes_exclude_each_other_and_all_finish(
    start: Start, url: str, path: Path, tmp_path: Path, fair: str
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    workers = [start(COUNT, url, str(counter), "60", fair) for _ in range(16)]
    for worker in workers:
        assert worker.line() == "ready"
    for worker in workers:
        worker.send("go")
    assert [worker.line(PATIENCE) for worker in workers] == ["done"] * 16
    assert counter.read_text() == str(16 * 60)
    fences = [int(line) for line in Path(f"{counter}.fences").read_text().split()]
    assert len(fences) == 16 * 60 and fences == sorted(set(fences))
    assert rows(path) == {"holds": 0, "waiters": 0, "store": 1}


def test_processes_with_different_names_never_fail_because_of_each_other(
    start: Start, url: str
) -> None:
    """Every busy error of SQLite is retried."""
    workers = [
        start(
            """
client = lockfast.connect(url); report("ready"); read_line(); fences = []
for number in range(300):
    with client.lock(f"own {os.getpid()} {number}", timeout=60) as hold: fences.append(hold.fence)
report("done", client.names(f"own {os.getpid()}")); report(*fences)
""",
            url,
        )
        for _ in range(8)
    ]
    for worker in workers:
        assert worker.line() == "ready"
    for worker in workers:
        worker.send("go")
    assert [worker.line(PATIENCE) for worker in workers] == ["done []"] * 8
    fences = [fence for worker in workers for fence in worker.line().split()]
    assert len(set(fences)) == len(fences) == 8 * 300  # fences are unique across names


def test_a_hundred_processes_that_open_a_new_file_at_once_all_succeed(
    start: Start, url: str
) -> None:
    process = start(
        """
children = []
read, write = os.pipe()
for _ in range(100):
    child = os.fork()
    if child == 0:
        os.close(write); os.read(read, 1); signal.alarm(60); code = 1
        try:
            with lockfast.connect(url).lock("n", timeout=60): code = 0
        except BaseException as error:
            report(repr(error))
        finally:
            os._exit(code)
    children.append(child)
os.close(write)
report([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children].count(0))
""",
        url,
    )
    assert process.line(PATIENCE) == "100"


def test_a_hundred_writers_killed_at_any_instant_leave_a_sound_file_and_free_locks(
    start: Start, url: str, path: Path
) -> None:
    process = start(
        """
import random, sqlite3
random.seed(7)
unsound, stuck, last, falls = 0, 0, {}, 0
for number in range(100):
    child = os.fork()
    if child == 0:
        try:
            client = lockfast.connect(url)
            while True:
                for name in "abc":
                    with client.lock(name, timeout=60): pass
        finally:
            os._exit(1)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
    with lockfast.connect(url) as client:
        for name in "abc":
            hold = client.lock(name).try_acquire()
            stuck += hold is None
            if hold is not None:
                falls += hold.fence <= last.get(name, 0); last[name] = hold.fence; hold.release()
    with sqlite3.connect(url[9:], timeout=30) as file:
        unsound += file.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
report("unsound", unsound, "stuck", stuck, "falls", falls)
""",
        url,
    )
    assert process.line(PATIENCE) == "unsound 0 stuck 0 falls 0"
    assert rows(path) == {"holds": 0, "waiters": 0, "store": 1}
    left = [one.name for one in path.with_name(path.name + ".d").iterdir()]
    assert [name for name in left if name.endswith((".life", ".wake"))] == []
