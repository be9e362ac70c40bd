"""MariaDB: two ways to wake a waiter in another process: polling, or the KILL of a sleep.

`lockfast.stores.sql.listeners` polls. The alternative is a session that sleeps (``DO SLEEP``) and
owns a lock, which the releasing client interrupts by ``KILL QUERY IS_USED_LOCK(that lock)``. Both
are measured: latency, idle cost, and the effect on the server, by a client that connects again and
again while four processes sleep and four interrupt them. MariaDB 10.11 then spends two to four
seconds in a KILL now and then and accepts no connections meanwhile: that decided it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql

import lockfast
from lab.servers.mariadb_server import MariaDBServer
from lockfast.cli.bench_contest import percentile
from lockfast.stores.sql.listeners import SLOWEST

from ._line import Line
from ._processes import Ready, together

SLEEPERS = 4


def measure(quick: bool) -> list[Line]:
    wakes, seconds = (30, 1.0) if quick else (300, 20.0)
    with MariaDBServer() as server:
        looks = _received(_hand_overs(server.url, wakes))
        kills = _received(_wakeups(server, wakes))
        quiet = _connecting(server, seconds, lambda stop: stop.wait(seconds))
        woken = _connecting(server, seconds, lambda stop: _wake_all(server.port, seconds))
    return [
        Line("polling: release→next p50", looks[0], "ms"),
        Line("polling: release→next p99", looks[1], "ms"),
        Line("polling: reads of a process after a long wait", 1 / SLOWEST, "/s"),
        Line("KILL of a sleep: KILL→awake p50", kills[0], "ms"),
        Line("KILL of a sleep: KILL→awake p99", kills[1], "ms"),
        Line("connecting meanwhile, no KILL: longest", quiet, "ms"),
        Line("connecting meanwhile, with KILL: longest", woken, "ms"),
    ]


def _received(times: list[float]) -> tuple[float, float]:
    return percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3


# ---- polling: two clients alternate -------------------------------------------------------------


def _hand_overs(url: str, count: int) -> list[float]:
    """Times from just before a release until the other client, waiting for 20 ms, is inside."""
    with lockfast.connect(url) as one, lockfast.connect(url) as other:
        times = []
        for _ in range(count):
            inside: list[float] = []
            thread = threading.Thread(target=_wait, args=(other, inside))
            with one.lock("wakeup"):
                thread.start()
                time.sleep(0.02)
                left = time.monotonic()
            thread.join()
            times.append(inside[0] - left)
        return times


def _wait(client: lockfast.Client, inside: list[float]) -> None:
    with client.lock("wakeup", timeout=20):
        inside.append(time.monotonic())


# ---- a sleeping session, and the KILL -----------------------------------------------------------


def _wakeups(server: Any, count: int) -> list[float]:
    awake: list[float] = []
    with server.connect(autocommit=True) as listener, server.connect(autocommit=True) as waker:
        listener.query("DO GET_LOCK('sleeper', 0)")
        times = []
        for _ in range(count):
            thread = threading.Thread(target=_sleep, args=(listener, awake))
            thread.start()
            time.sleep(0.02)
            woken = time.monotonic()
            waker.query("KILL QUERY IS_USED_LOCK('sleeper')")
            thread.join()
            times.append(awake.pop() - woken)
    return times


def _sleep(listener: Any, awake: list[float]) -> None:
    listener.query("DO SLEEP(5)")
    awake.append(time.monotonic())


def _wake_all(port: int, seconds: float) -> None:
    """Run sleepers that sleep again at once, and as many processes that interrupt them in
    rotation."""
    together(_take_part, 2 * SLEEPERS, port, seconds, lasts=seconds + 2.0)


def _take_part(index: int, ready: Ready, port: int, seconds: float) -> None:
    ready()
    (_sleep_on if index < SLEEPERS else _wake_next)(port, index % SLEEPERS, seconds)


def _sleep_on(port: int, number: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as listener:
        listener.query(f"DO GET_LOCK('sleeper {number}', 0)")
        while time.monotonic() < until:
            with contextlib.suppress(pymysql.OperationalError):  # a KILL that came too early
                listener.query("DO SLEEP(20)")


def _wake_next(port: int, number: int, seconds: float) -> None:
    until = time.monotonic() + seconds + 2.0  # no sleeper is left asleep
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as waker:
        while time.monotonic() < until:
            number = (number + 1) % SLEEPERS
            # it has not started yet, or has ended
            with contextlib.suppress(pymysql.OperationalError):
                waker.query(f"KILL QUERY IS_USED_LOCK('sleeper {number}')")
            time.sleep(0.0005)


def _connecting(
    server: Any, seconds: float, meanwhile: Callable[[threading.Event], object]
) -> float:
    """The longest time to connect during ``meanwhile``, in ms."""
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
