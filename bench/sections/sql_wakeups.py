"""MariaDB: what could wake a waiter in another process: paced reads, or the KILL of a sleep.

The decision is in `lockfast.stores.sql.listeners`: it looks. A bell would be a session that sleeps
(``DO SLEEP``) and owns a lock, and whoever grants says ``KILL QUERY IS_USED_LOCK(that lock)``. Each
is measured for how long it takes to be heard, what it costs while nothing happens, and what else
the server cannot do meanwhile: somebody else connects again and again while four processes sleep
and four ring them, as under contention. MariaDB 10.11 then spends two seconds, or four, in a KILL
now and then, and lets nobody connect: that decided it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql

import lockfast
from lab.servers.mariadb_server import MariaDBServer
from lockfast.cli.bench_outcome import percentile
from lockfast.stores.sql.listeners import SLOWEST

from ._line import Line

SLEEPERS = 4


def measure(quick: bool) -> list[Line]:
    wakes, seconds = (30, 1.0) if quick else (300, 20.0)
    with MariaDBServer() as server:
        looks = _heard(_hand_overs(server.url, wakes))
        kills = _heard(_rings(server, wakes))
        quiet = _connecting(server, seconds, lambda stop: stop.wait(seconds))
        woken = _connecting(server, seconds, lambda stop: _ring_all(server.port, seconds))
    return [
        Line("paced reads: release→next p50", looks[0], "ms"),
        Line("paced reads: release→next p99", looks[1], "ms"),
        Line("paced reads: looks of a process after a long wait", 1 / SLOWEST, "/s"),
        Line("KILL of a sleep: ring→awake p50", kills[0], "ms"),
        Line("KILL of a sleep: ring→awake p99", kills[1], "ms"),
        Line("another connects, nobody rings: longest", quiet, "ms"),
        Line("another connects, sleepers are rung: longest", woken, "ms"),
    ]


def _heard(times: list[float]) -> tuple[float, float]:
    return percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3


# ---- paced reads: two clients, in turn ----------------------------------------------------------


def _hand_overs(url: str, count: int) -> list[float]:
    """From just before a release until the other client is inside, which has waited for 20 ms."""
    with lockfast.connect(url) as one, lockfast.connect(url) as other:
        times = []
        for _ in range(count):
            inside: list[float] = []
            thread = threading.Thread(target=_wait, args=(other, inside))
            with one.lock("bell"):
                thread.start()
                time.sleep(0.02)
                left = time.monotonic()
            thread.join()
            times.append(inside[0] - left)
        return times


def _wait(client: lockfast.Client, inside: list[float]) -> None:
    with client.lock("bell", timeout=20):
        inside.append(time.monotonic())


# ---- a sleeper, and who ends its sleep ----------------------------------------------------------


def _rings(server: Any, count: int) -> list[float]:
    awake: list[float] = []
    with server.connect(autocommit=True) as ear, server.connect(autocommit=True) as ringer:
        ear.query("DO GET_LOCK('ear', 0)")
        times = []
        for _ in range(count):
            thread = threading.Thread(target=_sleep, args=(ear, awake))
            thread.start()
            time.sleep(0.02)
            woken = time.monotonic()
            ringer.query("KILL QUERY IS_USED_LOCK('ear')")
            thread.join()
            times.append(awake.pop() - woken)
    return times


def _sleep(ear: Any, awake: list[float]) -> None:
    ear.query("DO SLEEP(5)")
    awake.append(time.monotonic())


def _ring_all(port: int, seconds: float) -> None:
    """Sleepers that sleep again at once, and as many processes that ring each of them in turn."""
    context = multiprocessing.get_context("spawn")
    crew = [
        context.Process(target=work, args=(port, number, seconds))
        for number in range(SLEEPERS)
        for work in (_sleep_on, _ring_on)
    ]
    for process in crew:
        process.start()
    for process in crew:
        process.join()


def _sleep_on(port: int, number: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as ear:
        ear.query(f"DO GET_LOCK('ear {number}', 0)")
        while time.monotonic() < until:
            with contextlib.suppress(pymysql.OperationalError):  # a KILL that came too early
                ear.query("DO SLEEP(20)")


def _ring_on(port: int, number: int, seconds: float) -> None:
    until = time.monotonic() + seconds + 2.0  # nobody is left asleep
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as ringer:
        while time.monotonic() < until:
            number = (number + 1) % SLEEPERS
            with contextlib.suppress(pymysql.OperationalError):  # it is not there yet, or gone
                ringer.query(f"KILL QUERY IS_USED_LOCK('ear {number}')")
            time.sleep(0.0005)


def _connecting(
    server: Any, seconds: float, meanwhile: Callable[[threading.Event], object]
) -> float:
    """The longest that it took somebody else to connect, in ms."""
    stop = threading.Event()
    work = threading.Thread(target=meanwhile, args=(stop,))
    work.start()
    longest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        server.connect(ssl_disabled=True).close()
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.01)
    stop.set()
    work.join()
    return longest * 1e3
