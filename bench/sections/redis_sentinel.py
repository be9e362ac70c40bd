"""Uncontended cycles behind Sentinel: against one node, and the cost of ``replicas=``.

Sentinel is asked when a connection is made, not for each lock. The target compares the same master
found by Sentinel and by its address. A node without replicas, which has less to do, is shown too.
``replicas=1`` waits until one of two replicas acknowledges each claim. One thread, and 100 tasks,
which share the wait.
"""

from __future__ import annotations

import asyncio

import lockfast
import lockfast.aio
from lab.servers.redis_sentinel import RedisSentinels
from lab.servers.redis_server import RedisServer

from ._line import Line, number, times
from ._rounds import Rounds, cycles, gathered, interleaved

WITHIN = 1.15  # target: so many times as long as one node takes, at most
TASKS = 100
MASTER, ONE = "its master", "a node without replicas"
SENTINEL, REPLICAS = "Sentinel", "Sentinel, replicas=1"


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.1) if quick else (15, 0.3)
    with RedisServer() as node, RedisSentinels() as servers:
        urls = {
            ONE: node.url,
            MASTER: servers.servers[servers.master].url,
            SENTINEL: servers.url,
            REPLICAS: f"{servers.url}?replicas=1",
        }
        return [
            *_lines("1 thread", _threads(urls, rounds, seconds), 1),
            *_lines(f"{TASKS} tasks, a name each", _tasks(urls, rounds, seconds), TASKS),
        ]


def _lines(who: str, found: Rounds, concurrent: int) -> list[Line]:
    """``many`` is how many cycles were counted as one, because they ran at the same time."""
    rate = {name: concurrent * found.per_second(name) for name in found.seconds}
    shown = {name: f"{name} {number(value)}/s" for name, value in rate.items()}
    ours, counted = rate[SENTINEL], rate[REPLICAS]
    speed = found.faster(SENTINEL, MASTER)
    return [
        times(f"{who}: Sentinel", ours, "cycles/s", shown[MASTER], speed, round(1 / WITHIN, 2)),
        Line(f"{who}: Sentinel", ours, "cycles/s", shown[ONE], _times(found, SENTINEL, ONE)),
        Line(
            f"{who}: replicas=1",
            counted,
            "cycles/s",
            shown[SENTINEL],
            _times(found, REPLICAS, SENTINEL),
        ),
    ]


def _times(found: Rounds, subject: str, other: str) -> str:
    return f"{found.faster(subject, other):.2f}×"


def _threads(urls: dict[str, str], rounds: int, seconds: float) -> Rounds:
    clients = {name: lockfast.connect(url) for name, url in urls.items()}
    subjects = {
        name: cycles(lambda client=client: client.lock("orders:42"))
        for name, client in clients.items()
    }
    found = interleaved(subjects, rounds=rounds, seconds=seconds)
    for client in clients.values():
        client.close()
    return found


def _tasks(urls: dict[str, str], rounds: int, seconds: float) -> Rounds:
    with asyncio.Runner() as runner:
        clients = {name: lockfast.aio.connect(url) for name, url in urls.items()}
        subjects = {
            name: gathered(
                runner, TASKS, lambda index, client=client: client.lock(f"orders:{index}")
            )
            for name, client in clients.items()
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
        for client in clients.values():
            runner.run(client.close())
    return found
