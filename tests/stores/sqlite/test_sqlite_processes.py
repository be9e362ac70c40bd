"""The processes that share the file: who died, who is only silent, and how they wake each other."""

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
# Far below the lease of 30 s, far above what a loaded machine adds to a refresh (1.5 s).
SOON = 12.0
# Without its bell a waiter would learn of its turn only by a refresh, 1.5 s after the last.
PROMPT = 1.0
Start = Callable[..., Any]
Eventually = Callable[[Callable[[], object]], None]

HOLDER = """
client = lockfast.connect(url)
hold = client.lock("n", lease=float(rest[0]) if rest else None, renew=True).acquire(timeout=60)
say(hold.fence); told(); hold.release(); say("released"); told()
"""
WAITER = """
client = lockfast.connect(url)
say("waits"); hold = client.lock("n").acquire(timeout=60); say(time.monotonic()); told()
"""


def wake_addresses(path: Path) -> set[str]:
    folder = path.with_name(path.name + ".d")
    found = folder.iterdir() if folder.exists() else []
    return {one.name for one in found if one.suffix in (".life", ".bell", ".new")}


# ---- life files ------------------------------------------------------------------------------


def test_what_a_killed_process_held_is_free_at_once(
    start: Start, client: lockfast.Client, url: str
) -> None:
    holder = start(HOLDER, url)
    fence = int(holder.said())
    assert client.lock("n").try_acquire() is None
    holder.kill()
    hold = client.lock("n").try_acquire()
    assert hold is not None and hold.fence > fence


def test_what_a_killed_process_held_comes_to_the_waiter_long_before_the_lease_ends(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    holder = start(HOLDER, url)
    assert holder.said()
    waiter = start(WAITER, url)
    assert waiter.said() == "waits"
    eventually(lambda: client.inspect("n").waiters)
    began = time.monotonic()
    holder.kill()
    assert float(waiter.said()) - began < SOON


def test_a_killed_waiter_is_passed_over_and_the_next_is_served(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    dead = start(WAITER, url)
    eventually(lambda: len(client.inspect("n").waiters) == 1)
    alive = start(WAITER, url)
    eventually(lambda: len(client.inspect("n").waiters) == 2)
    dead.kill()
    assert alive.said() == "waits"
    began = time.monotonic()
    hold.release()
    assert float(alive.said()) - began < PROMPT


def test_a_process_that_is_only_stopped_is_not_dead(
    start: Start, client: lockfast.Client, url: str
) -> None:
    holder = start(HOLDER, url)
    assert holder.said()
    holder.signal(signal.SIGSTOP)
    assert client.lock("n").try_acquire() is None
    holder.signal(signal.SIGCONT)
    holder.tell("release")
    assert holder.said() == "released"


def test_a_missing_life_file_proves_nothing_and_the_lease_decides(
    start: Start, client: lockfast.Client, url: str, path: Path
) -> None:
    client.lock("other").acquire().release()
    ours = wake_addresses(path)
    holder = start(HOLDER, url, "3")
    assert holder.said()
    for name in wake_addresses(path) - ours:
        path.with_name(path.name + ".d").joinpath(name).unlink()
    assert client.lock("n").try_acquire() is None  # its holder lives, and nothing says otherwise
    holder.kill()
    assert client.lock("n").try_acquire() is None  # nor does anything say that it died
    assert client.lock("n").acquire(timeout=PATIENCE).is_held


def test_a_detached_hold_outlives_its_process(
    start: Start, client: lockfast.Client, url: str
) -> None:
    giver = start("say(lockfast.connect(url).lock('n').acquire().detach()); told()", url)
    text = giver.said()
    giver.kill()
    assert client.lock("n").try_acquire() is None
    client.attach("n", text).release()


def test_the_files_of_dead_processes_are_taken_away(start: Start, url: str, path: Path) -> None:
    dead = [start(HOLDER.replace('"n"', f'"n{number}"'), url) for number in range(4)]
    for process in dead:
        assert process.said()
    assert len(wake_addresses(path)) >= 4
    for process in dead:
        process.kill()
    with lockfast.connect(url) as client:
        assert client.names() == []
        assert len(wake_addresses(path)) <= 1  # at most our own
    assert wake_addresses(path) == set()


def test_a_process_that_ends_in_good_order_leaves_nothing(
    start: Start, client: lockfast.Client, url: str
) -> None:
    process = start("hold = lockfast.connect(url).lock('n').acquire(); say('holds')", url)
    assert process.said() == "holds"
    assert process.ended() == 0
    assert client.names() == []


def test_closing_a_client_takes_its_home_away(url: str, path: Path) -> None:
    client = lockfast.connect(url)
    client.lock("n").acquire()
    assert wake_addresses(path)
    client.close()
    assert wake_addresses(path) == set()


def test_more_living_processes_than_are_looked_at_do_not_hide_the_dead(
    start: Start, url: str, path: Path
) -> None:
    """The dead are looked for among a bounded number of homes, yet all are found in the end."""
    code = """
clients = [lockfast.connect(url) for _ in range(130)]
for client in clients: client.lock("alive").acquire(timeout=60).release()
say("many"); told()
"""
    crowds = [start(code, url) for _ in range(3)]
    for crowd in crowds:
        assert crowd.said() == "many"
    crowds[1].kill()
    for _ in range(20):
        with lockfast.connect(url) as client:
            client.names()
    assert len([name for name in wake_addresses(path) if name.endswith(".life")]) == 260


# ---- bells -----------------------------------------------------------------------------------


def test_a_release_wakes_the_waiter_of_another_process(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    waiter = start(WAITER, url)
    eventually(lambda: client.inspect("n").waiters)
    time.sleep(0.1)
    began = time.monotonic()
    hold.release()
    assert waiter.said() == "waits"
    assert float(waiter.said()) - began < PROMPT


def test_the_first_waiter_of_a_process_is_woken_although_its_keeper_sleeps_already(
    start: Start, client: lockfast.Client, url: str, eventually: Eventually
) -> None:
    """Its bell is hung up when it first waits; a keeper that sleeps until it has to renew
    something else must hear it nevertheless."""
    hold = client.lock("n").acquire()
    waiter = start(
        "client = lockfast.connect(url); mine = client.lock('mine', lease=4.2, renew=True)\n"
        "mine.acquire(); time.sleep(0.2)\n"  # the keeper sleeps until 1.4 s
        "hold = client.lock('n').acquire(timeout=60); say(time.monotonic())",
        url,
    )
    eventually(lambda: client.inspect("n").waiters)
    began = time.monotonic()
    hold.release()
    assert float(waiter.said()) - began < PROMPT / 2


def test_a_bell_that_is_lost_costs_a_refresh_and_not_the_turn(
    start: Start, client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    hold = client.lock("n").acquire()
    waiter = start(WAITER, url)
    eventually(lambda: client.inspect("n").waiters)
    for bell in path.with_name(path.name + ".d").glob("*.bell"):
        bell.unlink()
    began = time.monotonic()
    hold.release()
    assert waiter.said() == "waits"
    assert float(waiter.said()) - began < SOON


def test_a_long_lived_process_hears_again_after_its_folder_was_cleaned_away(
    start: Start, client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    """As a cleaner of old temporary files does with a process that lives for weeks."""
    waiter = start(
        "from lockfast.stores.sqlite import peers; peers.LOOK_EVERY = 0.05\n"
        "client = lockfast.connect(url)\n"
        "while told() == 'wait':\n"
        "    hold = client.lock('n').acquire(timeout=60); say(time.monotonic()); hold.release()",
        url,
    )

    def hand_over() -> float:
        hold = client.lock("n").acquire(timeout=PATIENCE)
        waiter.tell("wait")
        eventually(lambda: client.inspect("n").waiters)
        time.sleep(0.1)
        began = time.monotonic()
        hold.release()
        return float(waiter.said()) - began

    assert hand_over() < PROMPT
    for name in wake_addresses(path):
        path.with_name(path.name + ".d").joinpath(name).unlink()
    hand_over()  # may still be slow: this is when it can be noticed
    assert hand_over() < PROMPT


def test_nonsense_on_the_bell_wakes_nobody_and_ends_no_keeper(
    client: lockfast.Client, url: str, path: Path, eventually: Eventually
) -> None:
    got: list[int] = []
    with lockfast.connect(url) as other:
        hold = other.lock("n").acquire()
        thread = threading.Thread(target=lambda: got.append(client.lock("n").acquire().fence))
        thread.start()
        eventually(lambda: list(path.with_name(path.name + ".d").glob("*.bell")))
        eventually(lambda: other.inspect("n").waiters)
        (bell,) = path.with_name(path.name + ".d").glob("*.bell")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for message in (b"", b"\xff\xfe", b"x 1 y", b"x y", b"a b c d", b"x nan 1", b"-" * 511):
                sender.sendto(message, str(bell))
        time.sleep(0.2)
        assert got == []
        hold.release()
        thread.join(PATIENCE)
    assert len(got) == 1


# ---- waiting costs nothing, and is given up without a trace ----------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_twenty_idle_waiters_cost_next_to_no_time_of_the_processor(
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
    assert spent < 0.3  # of 3 s, for all twenty; one that polls every millisecond takes more alone
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
        say("interrupted", len(client.inspect("n").waiters), client.statistics().waiting); told()
""",
        url,
    )
    for _ in range(10):
        eventually(lambda: client.inspect("n").waiters)
        waiter.signal(signal.SIGINT)
        assert waiter.said() == "interrupted 0 0"
        assert client.inspect("n").waiters == ()
        waiter.tell("again")
