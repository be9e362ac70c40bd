"""Uncontended cycles on ZooKeeper: against a bare socket, and against kazoo's Lock.

The limit is a blocking socket that sends two pre-encoded requests per cycle, create and delete of
one ephemeral node, and reads the replies without parsing them. "kazoo create + delete" is the same
on kazoo's connection: the best for a lock built on it. A kazoo Lock is made for each cycle, as
lockfast's is; a reused object, which saves a request, is shown too. Every write is forced to disk,
as on a freshly installed server.
"""

from __future__ import annotations

import asyncio

from kazoo.client import KazooClient

import lockfast
import lockfast.aio

from ._line import Line, number, times
from ._rounds import Rounds, Subject, cycles, gathered, interleaved
from ._zookeeper import SESSION, Bare, Server, create, delete

OF_THE_SOCKET = 0.5
OF_KAZOO = 1.4


def measure(quick: bool) -> list[Line]:
    # Many short rounds: what else the machine does then falls on all of them alike.
    rounds, seconds = (8, 0.08) if quick else (45, 0.1)
    with Server() as server:
        kazoo = KazooClient(f"127.0.0.1:{server.port}", timeout=SESSION)
        kazoo.start()
        try:
            return _measured(server, kazoo, rounds, seconds)
        finally:
            kazoo.stop()
            kazoo.close()


def _measured(server: Server, kazoo: KazooClient, rounds: int, seconds: float) -> list[Line]:
    bare = Bare(server.port)
    again = kazoo.Lock("/theirs/1")
    with lockfast.connect(server.url) as client, asyncio.Runner() as runner:
        tasks = lockfast.aio.connect(server.url)
        subjects = {
            "lockfast": cycles(lambda: client.lock("orders:42")),
            "lockfast, a task": gathered(runner, 1, lambda index: tasks.lock("orders:43")),
            "socket, create + delete": _two_requests(bare, "/bare"),
            "kazoo create + delete": _two_calls(kazoo, "/plain"),
            "kazoo Lock": cycles(lambda: kazoo.Lock("/theirs/2")),
            "kazoo Lock, used again": cycles(lambda: again),
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
        ours = _requests(server, subjects["lockfast"])
        theirs = _requests(server, subjects["kazoo Lock"])
        runner.run(tasks.close())
    bare.close()
    what = "1 thread: with client.lock(name)"
    task = "1 task: async with aclient.lock(name)"
    return [
        _line(found, what, "socket, create + delete", OF_THE_SOCKET),
        _line(found, what, "kazoo create + delete"),
        _line(found, what, "kazoo Lock", OF_KAZOO),
        _line(found, what, "kazoo Lock, used again"),
        _line(found, task, "socket, create + delete", subject="lockfast, a task"),
        Line("requests per cycle", ours, "", f"kazoo Lock {number(theirs)}"),
    ]


def _line(
    found: Rounds, what: str, other: str, least: float | None = None, subject: str = "lockfast"
) -> Line:
    against = f"{other} {number(found.per_second(other))}/s"
    ratio, rate = found.faster(subject, other), found.per_second(subject)
    if least is None:
        return Line(what, rate, "cycles/s", against, f"{ratio:.2f}×")
    return times(what, rate, "cycles/s", against, ratio, least)


def _requests(server: Server, subject: Subject, count: int = 100) -> float:
    """The packets that the server receives per cycle; pings hardly matter."""
    before = server.received()
    subject(count)
    # The counter's own connection adds a packet or two.
    return round((server.received() - before) / count, 1)


def _two_requests(bare: Bare, path: str) -> Subject:
    claim, release = create(path), delete(path)
    if bare.ask(claim) or bare.ask(release):
        raise RuntimeError("the limit must be the limit of a lock that works")
    send, receive = bare.socket.sendall, bare.socket.recv

    def cycle(count: int) -> None:
        for _ in range(count):
            send(claim)
            receive(4096)
            send(release)
            receive(4096)

    return cycle


def _two_calls(kazoo: KazooClient, path: str) -> Subject:
    def cycle(count: int) -> None:
        for _ in range(count):
            kazoo.create(path, b"", ephemeral=True)
            kazoo.delete(path)

    return cycle
