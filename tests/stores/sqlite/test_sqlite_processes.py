"""The processes that share the file: dead or only stopped, and how they wake each other."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast

PATIENCE = 60.0
# Well below the lease of 30 s, well above a refresh (1.5 s) on a loaded machine.
SOON = 12.0
# Without a wake-up the waiter would be served only at a refresh, 1.5 s after the last.
PROMPT = 1.0
Start = Callable[..., Any]
Eventually = Callable[[Callable[[], object]], None]

HOLDER = """
client = lockfast.connect(url)
hold = client.lock("n", lease=float(rest[0]) if rest else None, renew=True).acquire(timeout=60)
report(hold.fence); read_line(); hold.release(); report("released"); read_line()
"""
WAITER = """
client = lockfast.connect(url)
report("waits"); hold = client.lock("n").acquire(timeout=60); report(time.monotonic()); read_line()
"""


def wake_addresses(path: Path) -> set[str]:
    folder = path.with_name(path.name + ".d")
    found = folder.iterdir() if folder.exists() else []
    return {one.name for one in found if one.suffix in (".life", ".wake", ".new")}


# ---- life files ------------------------------------------------------------------------------


def test_the_lock_of_a_killed_process_is_free_at_once(
    start: Start, client: lockfast.Client, url: str
) -> None:
    holder = start(HOLDER, url)
    fence = int(holder.line())
    assert client.lock("n").try_acquire() is None
    holder.kill()
    hold = client.lock("n").try_acquire()
    assert hold is not None and hold.fence > fence


def test_a_waiter_gets_the_lock_of_a_killed_process_long_before_the_lease_ends(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    holder = start(HOLDER, url)
    assert holder.line()
    waiter = start(WAITER, url)
    assert waiter.line() == "waits"
    eventually(lambda: client.inspect("n").waiters)
    began = time.monotonic()
    holder.kill()
    assert float(waiter.line()) - began < SOON


def test_a_killed_waiter_is_skipped_and_the_next_is_served(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    dead = start(WAITER, url)
    eventually(lambda: len(client.inspect("n").waiters) == 1)
    alive = start(WAITER, url)
    eventually(lambda: len(client.inspect("n").waiters) == 2)
    dead.kill()
    assert alive.line() == "waits"
    began = time.monotonic()
    hold.release()
    assert float(alive.line()) - began < PROMPT


def test_a_process_that_is_only_stopped_is_not_dead(
    start: Start, client: lockfast.Client, url: str
) -> None:
    holder = start(HOLDER, url)
    assert holder.line()
    holder.signal(signal.SIGSTOP)
    assert client.lock("n").try_acquire() is None
    holder.signal(signal.SIGCONT)
    holder.send("release")
    assert holder.line() == "released"


def test_a_missing_life_file_proves_nothing_and_the_lease_decides(
    start: Start, client: lockfast.Client, url: str, path: Path
) -> None:
    client.lock("other").acquire().release()
    ours = wake_addresses(path)
    holder = start(HOLDER, url, "3")
    assert holder.line()
    for name in wake_addresses(path) - ours:
        path.with_name(path.name + ".d").joinpath(name).unlink()
    assert client.lock("n").try_acquire() is None  # its holder is alive
    holder.kill()
    assert client.lock("n").try_acquire() is None  # its death cannot be detected
    assert client.lock("n").acquire(timeout=PATIENCE).is_held


def test_a_detached_hold_outlives_its_process(
    start: Start, client: lockfast.Client, url: str
) -> None:
    giver = start("report(lockfast.connect(url).lock('n').acquire().detach()); read_line()", url)
    text = giver.line()
    giver.kill()
    assert client.lock("n").try_acquire() is None
    client.attach("n", text).release()


def test_the_files_of_dead_processes_are_removed(start: Start, url: str, path: Path) -> None:
    dead = [start(HOLDER.replace('"n"', f'"n{number}"'), url) for number in range(4)]
    for process in dead:
        assert process.line()
    assert len(wake_addresses(path)) >= 4
    for process in dead:
        process.kill()
    with lockfast.connect(url) as client:
        assert client.names() == []
        assert len(wake_addresses(path)) <= 1  # at most our own
    assert wake_addresses(path) == set()


def test_a_process_that_exits_normally_leaves_nothing(
    start: Start, client: lockfast.Client, url: str
) -> None:
    process = start("hold = lockfast.connect(url).lock('n').acquire(); report('holds')", url)
    assert process.line() == "holds"
    assert process.ended() == 0
    assert client.names() == []


def test_closing_a_client_removes_its_files(url: str, path: Path) -> None:
    client = lockfast.connect(url)
    client.lock("n").acquire()
    assert wake_addresses(path)
    client.close()
    assert wake_addresses(path) == set()


def test_more_live_processes_than_are_checked_at_once_do_not_hide_the_dead(
    start: Start, url: str, path: Path
) -> None:
    """Each search for dead processes checks a bounded number of files, yet all are found in the
    end."""
    code = """
clients = [lockfast.connect(url) for _ in range(130)]
for client in clients: client.lock("alive").acquire(timeout=60).release()
report("many"); read_line()
"""
    processes = [start(code, url) for _ in range(3)]
    for process in processes:
        assert process.line() == "many"
    processes[1].kill()
    for _ in range(20):
        with lockfast.connect(url) as client:
            client.names()
    assert len([name for name in wake_addresses(path) if name.endswith(".life")]) == 260


# ---- wake-ups --------------------------------------------------------------------------------


def test_a_release_wakes_the_waiter_of_another_process(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    waiter = start(WAITER, url)
    eventually(lambda: client.inspect("n").waiters)
    time.sleep(0.1)
    began = time.monotonic()
    hold.release()
    assert waiter.line() == "waits"
    assert float(waiter.line()) - began < PROMPT


def test_the_first_waiter_of_a_process_is_woken_although_its_keeper_sleeps_already(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    """The process opens its socket when it first waits; a keeper that already sleeps until its next
    renewal must listen to that socket nevertheless."""
    hold = client.lock("n").acquire()
    waiter = start(
        "client = lockfast.connect(url); mine = client.lock('mine', lease=4.2, renew=True)\n"
        "mine.acquire(); time.sleep(0.2)\n"  # the keeper sleeps until 1.4 s
        "hold = client.lock('n').acquire(timeout=60); report(time.monotonic())",
        url,
    )
    eventually(lambda: client.inspect("n").waiters)
    began = time.monotonic()
    hold.release()
    assert float(waiter.line()) - began < PROMPT / 2


def test_a_lost_wakeup_costs_a_refresh_and_not_the_lock(
    start: Start, client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    waiter = start(WAITER, url)
    eventually(lambda: client.inspect("n").waiters)
    for wake_socket in path.with_name(path.name + ".d").glob("*.wake"):
        wake_socket.unlink()
    began = time.monotonic()
    hold.release()
    assert waiter.line() == "waits"
    assert float(waiter.line()) - began < SOON


def test_a_long_lived_process_is_woken_again_after_its_files_were_deleted(
    start: Start, client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    """A cleaner of old temporary files does that to a process that runs for weeks."""
    waiter = start(
        "from lockfast.stores.sqlite import peers; peers.CHECK_INTERVAL = 0.05\n"
        "client = lockfast.connect(url)\n"
        "while read_line() == 'wait':\n"
        "    hold = client.lock('n').acquire(timeout=60); report(time.monotonic()); hold.release()",
        url,
    )

    def hand_over() -> float:
        hold = client.lock("n").acquire(timeout=PATIENCE)
        waiter.send("wait")
        eventually(lambda: client.inspect("n").waiters)
        time.sleep(0.1)
        began = time.monotonic()
        hold.release()
        return float(waiter.line()) - began

    assert hand_over() < PROMPT
    for name in wake_addresses(path):
        path.with_name(path.name + ".d").joinpath(name).unlink()
    hand_over()  # may still be slow: the process notices the deletion here
    assert hand_over() < PROMPT


def test_malformed_wakeups_wake_no_waiter_and_end_no_keeper(
    client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    got: list[int] = []
    with lockfast.connect(url) as other:
        hold = other.lock("n").acquire()
        thread = threading.Thread(target=lambda: got.append(client.lock("n").acquire().fence))
        thread.start()
        eventually(lambda: list(path.with_name(path.name + ".d").glob("*.wake")))
        eventually(lambda: other.inspect("n").waiters)
        (wake_socket,) = path.with_name(path.name + ".d").glob("*.wake")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for message in (b"", b"\xff\xfe", b"x 1 y", b"x y", b"a b c d", b"x nan 1", b"-" * 511):
                sender.sendto(message, str(wake_socket))
        time.sleep(0.2)
        assert got == []
        hold.release()
        thread.join(PATIENCE)
    assert len(got) == 1


# ---- waiting costs nothing, and leaves no trace ----------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_twenty_idle_waiters_use_almost_no_cpu_time(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually, kind: str
) -> None:
    hold = client.lock("n").acquire()
    if kind == "processes":
        waiters = [start(WAITER, url) for _ in range(20)]
    else:
        waiters = [
            start(
                """
client = lockfast.connect(url)
def wait(): client.lock("n").acquire(timeout=60).release()
for _ in range(20): threading.Thread(target=wait).start()
""",
                url,
            )
        ]
    eventually(lambda: len(client.inspect("n").waiters) == 20)
    time.sleep(0.5)
    before = sum(cpu_seconds(waiter.pid) for waiter in waiters)
    time.sleep(3.0)
    spent = sum(cpu_seconds(waiter.pid) for waiter in waiters) - before
    assert len(client.inspect("n").waiters) == 20
    assert (
        spent < 0.3
    )  # of 3 s, for all twenty; a single one that polls every millisecond uses more
    hold.release()


def test_an_interrupted_waiter_leaves_no_row(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    client.lock("n").acquire()
    waiter = start(
        """
client = lockfast.connect(url)
while True:
    try:
        client.lock("n").acquire()
    except KeyboardInterrupt:
        report("interrupted", len(client.inspect("n").waiters), client.statistics().waiting)
        read_line()
""",
        url,
    )
    for _ in range(10):
        eventually(lambda: client.inspect("n").waiters)
        waiter.signal(signal.SIGINT)
        assert waiter.line() == "interrupted 0 0"
        assert client.inspect("n").waiters == ()
        waiter.send("again")
