"""The core: a cycle and a re-entry on memory://, where the store costs next to nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import lockfast
import lockfast.aio

from ._line import Line, at_most
from ._rounds import Subject, interleaved

CYCLE = 60.0  # µs
REENTRY = 5.0


def measure(quick: bool) -> list[Line]:
    with asyncio.Runner() as runner:
        client, tasks = lockfast.connect("memory://"), lockfast.aio.connect("memory://")
        events = lockfast.connect("memory://")
        events.on_event(lambda event: None)
        subjects = _blocking(client, events) | _asyncio(tasks, runner)
        found = interleaved(subjects, rounds=8 if quick else 20, seconds=0.03 if quick else 0.05)
        runner.run(tasks.close())
        events.close()
        client.close()
    lines = []
    for name in subjects:
        if name.startswith("bare"):
            continue
        limit = REENTRY if "re-entry" in name else CYCLE
        bare = "bare asyncio.Lock" if name.startswith("asyncio") else "bare threading.RLock"
        against = f"{bare[5:]} {found.micros(bare):.2f} µs"
        ratio = f"{found.faster(bare, name):.0f}× its time"
        lines.append(at_most(limit, name, found.micros(name), "µs", against, ratio))
    return lines


def _blocking(client: lockfast.Client, events: lockfast.Client) -> dict[str, Subject]:
    lock = client.lock("orders:42")
    arguments = events.lock("orders:42")
    outer = client.lock("orders:43")
    bare = threading.RLock()

    def cycle(count: int) -> None:
        for _ in range(count):
            with lock:
                pass

    def created(count: int) -> None:
        for _ in range(count):
            with client.lock("orders:42"):
                pass

    def listened(count: int) -> None:
        for _ in range(count):
            with arguments:
                pass

    def reentry(count: int) -> None:
        with outer:
            for _ in range(count):
                with outer:
                    pass

    def bare_cycle(count: int) -> None:
        for _ in range(count):
            with bare:
                pass

    return {
        "blocking: cycle": cycle,
        "blocking: cycle with a listener": listened,
        "blocking: cycle with client.lock(name)": created,
        "blocking: re-entry": reentry,
        "bare threading.RLock": bare_cycle,
    }


def _asyncio(client: lockfast.aio.Client, runner: asyncio.Runner) -> dict[str, Subject]:
    lock = client.lock("orders:42")
    outer = client.lock("orders:43")
    bare = asyncio.Lock()

    async def cycle(count: int) -> None:
        for _ in range(count):
            async with lock:
                pass

    async def created(count: int) -> None:
        for _ in range(count):
            async with client.lock("orders:42"):
                pass

    async def reentry(count: int) -> None:
        async with outer:
            for _ in range(count):
                async with outer:
                    pass

    async def bare_cycle(count: int) -> None:
        for _ in range(count):
            async with bare:
                pass

    return {
        "asyncio: cycle": _run(runner, cycle),
        "asyncio: cycle with client.lock(name)": _run(runner, created),
        "asyncio: re-entry": _run(runner, reentry),
        "bare asyncio.Lock": _run(runner, bare_cycle),
    }


def _run(runner: asyncio.Runner, work: Callable[[int], Awaitable[None]]) -> Subject:
    return lambda count: runner.run(work(count))  # type: ignore[arg-type]
