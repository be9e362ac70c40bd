"""Small programs that end in every way a program can end, or fork; each prints a report as JSON.

The cases in `processes` run them as separate processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import WORLDS, World
from lockfast import LockfastError

_referenced: list[World] = []


def main(ending: list[float], program: str, api: str, url: str) -> None:
    """Run one program. It appends to ``ending`` the time at which it began to end."""
    world = WORLDS[api](url)
    if program != "unreferenced":
        _referenced.append(world)
    if program == "fork":
        _fork(world)
    elif program.startswith("sigterm"):
        world.start(lambda: _sigterm(world, ending, program))
    else:
        world.start(lambda: _end(world, ending, program))
        ending.append(time.monotonic())


async def _end(world: World, ending: list[float], program: str) -> None:
    client, other = world.client(), world.client()
    await client.lock("a").acquire()
    await client.lock("b").acquire()
    await other.lock("c").acquire()
    if program == "waiters":
        for waiting in (client, other):
            world.spawn(waiting.lock("c", owner="x").acquire)
            world.spawn(waiting.lock("a", owner="y").acquire)
        await world.until_waiting(client, "a", 2)
        await world.until_waiting(client, "c", 2)
    ending.append(time.monotonic())
    if program == "sys.exit":
        sys.exit(3)
    if program == "raises":
        raise ZeroDivisionError("mine")


async def _sigterm(world: World, ending: list[float], program: str) -> None:
    def terminate(number: int, frame: object) -> None:
        ending.append(time.monotonic())
        sys.exit(0)

    signal.signal(signal.SIGTERM, terminate)
    client, other = world.client(), world.client()

    async with client.lock("a"):
        # From a thread, so that in asyncio the loop is asleep when the signal arrives, as usual.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        if program == "sigterm-waiting":
            async with other.lock("a", timeout=30):
                raise AssertionError("acquired a lock that was held")
        await world.sleep(30)


def _fork(world: World) -> None:
    """Fork while holding a lock. In asyncio the loop ends first: a loop cannot be forked."""
    created: list[Any] = []

    async def acquire() -> None:
        client = world.client(lease=0.9)
        created.extend((client, await client.lock("a", owner="me").acquire()))

    world.start(acquire)
    client, hold = created
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "may lead to deadlocks": not here
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        world.start(lambda: _in_child(world, client, hold, writer))
        sys.exit(0)  # with the clean-up at exit
    os.close(writer)
    world.start(lambda: _in_parent(client, hold, pid, reader))


async def _in_child(world: World, client: AnyClient, hold: AnyHold, writer: int) -> None:
    report: dict[str, Any] = {
        "is_held": hold.is_held,
        "lock.is_held": client.lock("a", owner="me").is_held,
        "statistics": [client.statistics().acquired, client.statistics().held],
        "check": await _outcome(lambda: hold.check()),
        "release": await _outcome(hold.release),
    }
    own = await client.lock("a", owner="me").try_acquire()
    report["same name"] = "busy" if own is None else "acquired"
    if own is not None:
        await own.release()
    fresh = await client.lock("b").acquire(timeout=0)
    await world.sleep(1.2)  # beyond the lease: a keeper of the child renews it
    report["new hold"] = fresh.is_held
    if own is None:
        os.write(writer, b"!")
        report["waited"] = (await client.lock("a").acquire(timeout=SOON)).fence
    else:
        os.write(writer, b"!")
    print(json.dumps({"child": report}), flush=True)


async def _in_parent(client: AnyClient, hold: AnyHold, pid: int, reader: int) -> None:
    os.read(reader, 1)  # blocks, for longer than the lease
    (holder,) = (await client.inspect("a")).holders
    report: dict[str, Any] = {
        "is_held": hold.is_held,
        "fence": hold.fence,
        "holder": "parent" if holder.who.pid == os.getpid() else "child",
    }
    if client.capabilities.across == "process":
        _, status = os.waitpid(pid, 0)
        report["kept"] = hold.is_held
        report["release"] = await _outcome(hold.release)
    else:
        report["release"] = await _outcome(hold.release)
        other = await client.lock("c").acquire()
        _, status = os.waitpid(pid, 0)
        report["kept"] = other.is_held
        await other.release()
    report["child's exit code"] = os.waitstatus_to_exitcode(status)
    print(json.dumps({"parent": report, "across": client.capabilities.across}), flush=True)


async def _outcome(verb: Callable[[], Any]) -> str:
    try:
        returned = verb()
        if returned is not None:
            await returned
    except LockfastError as error:
        return type(error).__name__
    return "released"
