"""Small programs that end in all the ways a program ends, or fork; each says what it saw as JSON.

They run as processes of their own, started by the cases in `processes`.
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

_referred: list[World] = []


def main(ending: list[float], what: str, api: str, url: str) -> None:
    """``ending`` is told when the program began to end."""
    world = WORLDS[api](url)
    if what != "dropped":
        _referred.append(world)
    if what == "fork":
        _fork(world)
    elif what.startswith("sigterm"):
        world.start(lambda: _sigterm(world, ending, what))
    else:
        world.start(lambda: _end(world, ending, what))
        ending.append(time.monotonic())


async def _end(world: World, ending: list[float], what: str) -> None:
    client, other = world.client(), world.client()
    await client.lock("a").acquire()
    await client.lock("b").acquire()
    await other.lock("c").acquire()
    if what == "waiters":
        for waiting in (client, other):
            world.spawn(waiting.lock("c", owner="x").acquire)
            world.spawn(waiting.lock("a", owner="y").acquire)
        await world.until_waiting(client, "a", 2)
        await world.until_waiting(client, "c", 2)
    ending.append(time.monotonic())
    if what == "sys.exit":
        sys.exit(3)
    if what == "raises":
        raise ZeroDivisionError("mine")


async def _sigterm(world: World, ending: list[float], what: str) -> None:
    def terminate(number: int, frame: object) -> None:
        ending.append(time.monotonic())
        sys.exit(0)

    signal.signal(signal.SIGTERM, terminate)
    client, other = world.client(), world.client()

    async with client.lock("a"):
        # From a thread, so that in asyncio the loop is asleep when it comes, as it mostly is.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        if what == "sigterm-waiting":
            async with other.lock("a", timeout=30):
                raise AssertionError("it was held")
        await world.sleep(30)


def _fork(world: World) -> None:
    """The loop, where there is one, ends before the fork: a loop cannot be forked."""
    made: list[Any] = []

    async def acquire() -> None:
        client = world.client(lease=0.9)
        made.extend((client, await client.lock("a", owner="me").acquire()))

    world.start(acquire)
    client, hold = made
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "may lead to deadlocks": we prove not
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        world.start(lambda: _in_child(world, client, hold, writer))
        sys.exit(0)  # with all that an exit brings
    os.close(writer)
    world.start(lambda: _in_parent(client, hold, pid, reader))


async def _in_child(world: World, client: AnyClient, hold: AnyHold, writer: int) -> None:
    seen: dict[str, Any] = {
        "is_held": hold.is_held,
        "lock.is_held": client.lock("a", owner="me").is_held,
        "statistics": [client.statistics().acquired, client.statistics().held],
        "check": await _outcome(lambda: hold.check()),
        "release": await _outcome(hold.release),
    }
    mine = await client.lock("a", owner="me").try_acquire()
    seen["same name"] = "busy" if mine is None else "acquired"
    if mine is not None:
        await mine.release()
    fresh = await client.lock("b").acquire(timeout=0)
    await world.sleep(1.2)  # beyond the lease: it is renewed by a keeper of the child's own
    seen["afresh"] = fresh.is_held
    if mine is None:
        os.write(writer, b"!")
        seen["waited"] = (await client.lock("a").acquire(timeout=SOON)).fence
    else:
        os.write(writer, b"!")
    print(json.dumps({"child": seen}), flush=True)


async def _in_parent(client: AnyClient, hold: AnyHold, pid: int, reader: int) -> None:
    os.read(reader, 1)  # blocks, for longer than the lease
    (holder,) = (await client.inspect("a")).holders
    seen: dict[str, Any] = {
        "is_held": hold.is_held,
        "fence": hold.fence,
        "holder": "parent" if holder.who.pid == os.getpid() else "child",
    }
    if client.capabilities.across == "process":
        _, status = os.waitpid(pid, 0)
        seen["kept"] = hold.is_held
        seen["release"] = await _outcome(hold.release)
    else:
        seen["release"] = await _outcome(hold.release)
        other = await client.lock("c").acquire()
        _, status = os.waitpid(pid, 0)
        seen["kept"] = other.is_held
        await other.release()
    seen["child's exit code"] = os.waitstatus_to_exitcode(status)
    print(json.dumps({"parent": seen, "across": client.capabilities.across}), flush=True)


async def _outcome(verb: Callable[[], Any]) -> str:
    try:
        answer = verb()
        if answer is not None:
            await answer
    except LockfastError as error:
        return type(error).__name__
    return "released"
