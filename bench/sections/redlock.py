"""Uncontended cycles on Redlock: against one node, and against other Redlock libraries.

All nodes share this machine's cores with the client, so an additional node costs more than it would
elsewhere. With remote nodes the number of waits for the slowest of them counts: so cycles are
measured with a latency of some milliseconds as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pottery
import redlock

import lockfast
from lab.fault_proxy import FaultProxy

from ._line import Line, number, times
from ._redis import LEASE, Server
from ._rounds import Subject, cycles, interleaved

OF_POTTERY = 4.0  # targets, with three nodes
OF_REDLOCK_PY = 2.5
OF_ONE_NODE = 1.6  # a cycle takes so many times as long, at most
DISTANCE = 0.004  # seconds, each way


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (3, 0.06) if quick else (11, 0.25)
    logging.getLogger("pottery").setLevel(logging.CRITICAL)
    lines = []
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(5)]
        for size in (3, 5):
            lines += _local(servers[:size], rounds, seconds)
        for size in (3, 5):
            lines.append(_remote(servers[:size], rounds, seconds))
    return lines


def _local(servers: Sequence[Server], rounds: int, seconds: float) -> list[Line]:
    size = len(servers)
    ours, one = (
        lockfast.connect(_url(server.port for server in servers)),
        lockfast.connect(servers[0].url),
    )
    masters = {server.client() for server in servers}
    theirs = redlock.Redlock([server.url for server in servers])
    found = interleaved(
        {
            "lockfast": cycles(lambda: ours.lock("orders:42")),
            "one node": cycles(lambda: one.lock("one:1")),
            "pottery": cycles(
                lambda: pottery.Redlock(key="theirs:1", masters=masters, auto_release_time=LEASE)
            ),
            "redlock-py": _redlock_py(theirs),
        },
        rounds=rounds,
        seconds=seconds,
    )
    ours.close()
    one.close()
    rate, what = found.per_second("lockfast"), f"{size} nodes: with client.lock(name)"
    lines = []
    for other, least in (("pottery", OF_POTTERY), ("redlock-py", OF_REDLOCK_PY)):
        against = f"{other} {number(found.per_second(other))}/s"
        ratio = found.faster("lockfast", other)
        if size == 3:
            lines.append(times(what, rate, "cycles/s", against, ratio, least))
        else:
            lines.append(Line(what, rate, "cycles/s", against, f"{ratio:.2f}×"))
    against = f"one node {number(found.per_second('one node'))}/s"
    ratio = found.faster("lockfast", "one node")
    lines.append(Line(what, rate, "cycles/s", against, f"{ratio:.2f}×"))
    return lines


def _remote(servers: Sequence[Server], rounds: int, seconds: float) -> Line:
    """Everybody at the same distance: a cycle is as long as the slowest of its nodes makes it."""
    with ExitStack() as stack:
        nets = [stack.enter_context(FaultProxy(("127.0.0.1", s.port))) for s in servers]
        for net in nets:
            net.latency = DISTANCE
        ours = lockfast.connect(_url(net.port for net in nets))
        one = lockfast.connect(f"redis://127.0.0.1:{nets[0].port}/0")
        subjects = {
            "lockfast": cycles(lambda: ours.lock("orders:42")),
            "one node": cycles(lambda: one.lock("one:1")),
        }
        found = interleaved(subjects, rounds=max(rounds // 2, 2), seconds=2 * seconds)
        ours.close()
        one.close()
    longer = found.faster("one node", "lockfast")
    return Line(
        f"{len(servers)} nodes, {DISTANCE * 1e3:g} ms away: one cycle",
        1e3 / found.per_second("lockfast"),
        "ms",
        f"one node {number(1e3 / found.per_second('one node'))} ms",
        f"{longer:.2f}×",
        f"≤ {OF_ONE_NODE:g}×",
        longer <= OF_ONE_NODE,
    )


def _url(ports: Any) -> str:
    return f"redlock://{','.join(f'127.0.0.1:{port}' for port in ports)}"


def _redlock_py(manager: Any) -> Subject:
    def cycle(count: int) -> None:
        for _ in range(count):
            lock = manager.lock("theirs:2", LEASE * 1000)
            manager.unlock(lock)

    return cycle
