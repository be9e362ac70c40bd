"""A Redis Cluster of three masters against one node of the same servers, in the same rounds.

Uncontended, a cycle is one round trip to acquire and one to release on both. A cluster adds the
lookup of the node that serves a name, and a connection to each node. The hand-over is between two
threads of two clients, on one name; the renewals are those of 3,000 leases.

With many names, three servers compete for the cores of one machine, which costs more than one busy
server. So three independent servers are measured too, each with a third of the names and a client
of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lockfast
import lockfast.aio
from lab.servers.own_server import PATIENCE, _free_port

from ._line import Line, number
from ._redis import Server
from ._rounds import Rounds, Subject, cycles, gathered, interleaved, threads

MOST = 1.15  # times as long as on one node
SLOTS = 16384
NODES = 3
APART = "three servers by turns"
NAMES = [f"orders:{index}" for index in range(300)]
TASKS = 100
LEASES = 3000


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.06) if quick else (15, 0.2)
    with Server() as single, Server() as second, Server() as third, cluster() as url:
        urls = {"cluster": url, "one node": single.url}
        return [
            *_threads(urls, rounds, seconds),
            _alternating([single, second, third], url, rounds, seconds),
            *_tasks(urls, 1, rounds, seconds),
            *_tasks(urls, TASKS, rounds, 2 * seconds),
            _hand_over(urls, rounds, seconds),
            _renewals(urls, 1.5 if quick else 6.0),
        ]


@contextmanager
def cluster() -> Iterator[str]:
    """Its URL. Masters alone: replicas would only take the machine's time."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            extra = ("--cluster-enabled", "yes", "--cluster-port", str(bus := _free_port()))
            nodes.append((stack.enter_context(Server(*extra)), bus))
        for number_, (node, _) in enumerate(nodes):
            first, last = SLOTS * number_ // NODES, SLOTS * (number_ + 1) // NODES - 1
            node.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number_ + 1)
            if number_:
                known, bus = nodes[0]
                node.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", known.port, bus)
        until = time.monotonic() + PATIENCE
        while not all(_is_whole(node) for node, _ in nodes):
            if time.monotonic() > until:
                raise RuntimeError("the nodes do not become a cluster")
            time.sleep(0.05)
        yield f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node, _ in nodes)}"


def _is_whole(node: Server) -> bool:
    info = node.admin.execute_command("CLUSTER", "INFO").decode()
    return "cluster_state:ok" in info and f"cluster_slots_ok:{SLOTS}" in info


def _line(found: Rounds, what: str, concurrent: int = 1) -> Line:
    """Many tasks have no target: on one node all their commands travel together, here those of
    each node."""
    rates = {name: concurrent * found.per_second(name) for name in ("cluster", "one node")}
    ratio = found.faster("one node", "cluster")
    against = f"one node {number(rates['one node'])}/s"
    shown = f"{ratio:.2f}× as long"
    if concurrent > 1:
        return Line(what, rates["cluster"], "cycles/s", against, shown)
    return Line(what, rates["cluster"], "cycles/s", against, shown, f"≤ {MOST}×", ratio <= MOST)


def _threads(urls: dict[str, str], rounds: int, seconds: float) -> list[Line]:
    lines = []
    for what, names in (("one name", NAMES[:1]), ("300 names over all nodes", NAMES)):
        with ExitStack() as stack:
            subjects = {
                where: _cycle_all([stack.enter_context(lockfast.connect(url))], names)
                for where, url in urls.items()
            }
            found = interleaved(subjects, rounds=rounds, seconds=seconds)
        lines.append(_line(found, f"1 thread, {what}"))
    return lines


def _alternating(servers: list[Server], url: str, rounds: int, seconds: float) -> Line:
    with ExitStack() as stack:
        clients = [stack.enter_context(lockfast.connect(server.url)) for server in servers]
        subjects = {
            "cluster": _cycle_all([stack.enter_context(lockfast.connect(url))], NAMES),
            APART: _cycle_all(clients, NAMES),
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
    against = f"{APART} {number(found.per_second(APART))}/s"
    shown = f"{found.faster(APART, 'cluster'):.2f}× as long"
    what = "1 thread, 300 names over all nodes"
    return Line(what, found.per_second("cluster"), "cycles/s", against, shown)


def _cycle_all(clients: list[Any], names: list[str]) -> Subject:
    def cycle(count: int) -> None:
        for index in range(count):
            with clients[index % len(clients)].lock(names[index % len(names)]):
                pass

    return cycle


def _tasks(urls: dict[str, str], tasks: int, rounds: int, seconds: float) -> list[Line]:
    with asyncio.Runner() as runner:
        clients = {where: lockfast.aio.connect(url) for where, url in urls.items()}
        subjects = {
            where: gathered(
                runner, tasks, lambda index, client=client: client.lock(f"orders:{index}")
            )
            for where, client in clients.items()
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
        for client in clients.values():
            runner.run(client.close())
    if tasks == 1:
        return [_line(found, "1 task, one name")]
    return [_line(found, f"{tasks} tasks, a name each: together", tasks)]


def _hand_over(urls: dict[str, str], rounds: int, seconds: float) -> Line:
    """Two take turns: each waits for the other to release."""
    with ExitStack() as stack:
        subjects = {where: stack.enter_context(_pass_token(url)) for where, url in urls.items()}
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
    rates = {name: 2 * found.per_second(name) for name in urls}
    ratio = found.faster("one node", "cluster")
    against = f"one node {number(rates['one node'])}/s"
    what = "2 threads take turns: hand-overs"
    return Line(what, rates["cluster"], "/s", against, f"{ratio:.2f}× as long")


@contextmanager
def _pass_token(url: str) -> Iterator[Subject]:
    with (
        lockfast.connect(url) as one,
        lockfast.connect(url) as other,
        threads(2, lambda index: cycles(lambda: (one, other)[index].lock("turns"))) as subject,
    ):
        yield subject


def _renewals(urls: dict[str, str], seconds: float) -> Line:
    """One call for each name, in one write for each node; on one node a call for 125 names."""
    spent = {where: _cpu_of_renewals(url, seconds) for where, url in urls.items()}
    against = f"one node {number(spent['one node'])} s"
    ratio = spent["cluster"] / max(spent["one node"], 1e-9)
    return Line("CPU for 10,000 renewals", spent["cluster"], "s", against, f"{ratio:.2f}×")


def _cpu_of_renewals(url: str, seconds: float) -> float:
    with lockfast.connect(url) as client:
        for index in range(LEASES):
            client.lock(f"held:{index}", lease=3.0, renew=True).acquire()
        before, renewals = time.process_time(), client.statistics().renewals
        time.sleep(seconds)
        used = time.process_time() - before
        return used / max(client.statistics().renewals - renewals, 1) * 10_000
