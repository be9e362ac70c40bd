"""A million names on Redis, each used once: what remains at the server and in the client.

A released name keeps its last fence for 130 seconds, so that fences grow even if a clock is set
back; then it is gone. The full run waits for that. The quick run shows that every remaining key
expires, and none later than that.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time

import lockfast.aio

from ._line import Line, at_most, number
from ._redis import Server

NAMES, FEWER = 1_000_000, 20_000
KEPT = 130.0  # seconds
PATIENCE = 60.0  # seconds that the server may need to sweep
TASKS = 100
LOOKED_AT = 2000
BACK = 2.0  # MiB that may remain: buffers, tables that shrink later


def measure(quick: bool) -> list[Line]:
    names = FEWER if quick else NAMES
    with Server() as server:
        asyncio.run(_use(server.url, 0, 1000))  # what a server needs to know anybody at all
        before, client_before = _mebibytes(server), _resident()
        keys_before = server.admin.dbsize()
        began = time.monotonic()
        peak = asyncio.run(_use(server.url, 1000, names, server))
        took = time.monotonic() - began
        client = _resident() - client_before
        keys = server.admin.dbsize()
        endless, latest = _leftovers(server)
        what = f"{number(names)} names"
        lines = [
            Line(f"{what}: together", names / took, "cycles/s", f"{TASKS} tasks"),
            Line(f"{what}: the server's memory, most", peak - before, "MiB", "beside what it had"),
            Line(f"{what}: keys just after", keys - keys_before, "keys", "last fences"),
            at_most(0, f"{what}: keys without an end", endless, "keys"),
            at_most(
                KEPT, f"{what}: the latest end of a key", latest, "s", f"of {LOOKED_AT:,} looked at"
            ),
            Line(f"{what}: the client's memory grew by", client, "MiB"),
        ]
        if quick:
            return lines
        waited = _until_empty(server)
        left = server.admin.dbsize()
        rest = max(_mebibytes(server) - before, 0.0)
    return [
        *lines,
        at_most(0, f"{what}: keys after {waited:.0f} s", left, "keys"),
        at_most(BACK, f"{what}: the server's memory then", rest, "MiB", "beside what it had"),
    ]


async def _use(url: str, first: int, count: int, server: Server | None = None) -> float:
    """Acquire and release each once; the most that the server's memory was."""
    client = lockfast.aio.connect(url)
    numbers = iter(range(first, first + count))
    peak = 0.0

    async def work() -> None:
        for index in numbers:
            async with client.lock(f"orders:{index}"):
                pass

    async def watch() -> None:
        nonlocal peak
        while server is not None:
            peak = max(peak, _mebibytes(server))
            await asyncio.sleep(1.0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(work() for _ in range(TASKS)))
    watching.cancel()
    await client.close()
    return max(peak, _mebibytes(server)) if server is not None else peak


def _leftovers(server: Server) -> tuple[int, float]:
    """How many keys have no end; and of some keys, when the last of them ends."""
    counted = server.info("keyspace")["db0"]
    pipe = server.admin.pipeline(transaction=False)
    for key in itertools.islice(server.admin.scan_iter(count=1000), LOOKED_AT):
        pipe.pttl(key)
    return counted["keys"] - counted["expires"], max(pipe.execute()) / 1000


def _until_empty(server: Server) -> float:
    began = time.monotonic()
    while server.admin.dbsize() and time.monotonic() < began + KEPT + PATIENCE:
        time.sleep(1.0)
    return time.monotonic() - began


def _mebibytes(server: Server) -> float:
    return float(server.info("memory")["used_memory"]) / 2**20


def _resident() -> float:
    """Of this process, in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
