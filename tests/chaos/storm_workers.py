"""The workers of a storm, and the nursery process that forks them. Started by `storm`.

A worker is a process with one contender per name, in threads or in tasks, all on one client. Each
contender acquires, writes to the witness and releases, again and again, until the witness orders
the end. In even cycles a contender is careful and calls `hold.check` before it writes. In the
others it writes unchecked, as programs do that trust their lock. The orders ``unchecked`` and
``linger`` make it write unchecked in any cycle; ``linger`` also makes it keep the hold until it is
no longer valid.

Records of a contender (see `storm_witness`). A timestamp is read *before* a state is observed that
still holds, and *after* an event that has happened:

    hold      name fence pid cycle asked acquired
    write     name fence pid cycle checked held      ``held`` was read after ``checked``
    expired   name fence pid cycle seen remaining ended     lingered until no longer valid
    release   name fence pid cycle began remaining outcome ended losses
    timeout, unknown                          the acquire failed in an expected way
    raised                                    an error that must not occur

The nursery obeys lines on its stdin: spawn, kill, stop, cont, wait. Only the nursery sends signals,
and only to its own children, so no reused pid is ever hit. A worker that does not end is asked for
its stack (SIGUSR1) and prints it to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from holder_recovery import done

import lockfast
from lockfast import clock
from lockfast.errors import AcquireTimeout, BackendError, HoldLost, NotReplicated
from lockfast.runtime.threads import run

LINGER = 3.0  # leases after which a lingering contender gives up: its hold should have run out
POLL = 0.0005
PAUSE = 0.01


class Ended(Exception):
    """The storm is over, or the witness is gone."""


class WitnessConnection:
    """A thread's connection to the witness."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._rest = b""

    async def send(self, *record: object) -> None:
        self._socket.sendall(json.dumps(record).encode() + b"\n")

    async def ask(self, *record: object) -> str:
        await self.send(*record)
        while b"\n" not in self._rest:
            data = await self._receive()
            if not data:
                raise Ended
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return str(json.loads(line))

    async def _receive(self) -> bytes:
        return self._socket.recv(4096)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class TaskWitnessConnection(WitnessConnection):
    """A task's connection to the witness: waiting for an answer does not block the other tasks."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._socket.setblocking(False)

    async def _receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Contender:
    def __init__(self, client: Any, witness: WitnessConnection, name: str, lease: float) -> None:
        self.witness, self.name, self.lease = witness, name, lease
        self.lost_fences: list[int] = []
        self.lock = client.lock(
            name, lease=lease, renew=True, on_lost=lambda hold: self.lost_fences.append(hold.fence)
        )
        self.random = random.Random()

    async def run(self) -> None:
        number = 0
        with contextlib.suppress(Ended, ConnectionError):
            while True:
                number += 1
                await self.cycle(number)

    async def cycle(self, number: int) -> None:
        asked = clock.now()
        try:
            # One acquire in ten has a timeout: it leaves the queue, perhaps while it is granted.
            timeout = None if self.random.random() < 0.9 else self.random.uniform(0, self.lease)
            hold = await done(self.lock.acquire(timeout=timeout))
        except AcquireTimeout:
            return await self.witness.send("timeout", self.name, os.getpid(), asked, clock.now())
        except HoldLost:
            raise  # nothing is left from the cycle before
        except (BackendError, NotReplicated) as error:
            if isinstance(error, BackendError) and not error.transient:
                raise
            await self.witness.send("unknown", self.name, os.getpid(), asked, clock.now())
            return await self.witness.sleep(PAUSE)
        acquired = clock.now()
        self.key = (self.name, hold.fence, os.getpid(), f"{id(self)}-{number}")
        order = await self.witness.ask("hold", *self.key, asked, acquired)
        if order == "linger":
            await self.linger(hold)
        careful = number % 2 == 0 and order not in ("linger", "unchecked")
        await self.work(hold, careful)
        await self.leave(hold)
        if order == "end":
            raise Ended

    async def work(self, hold: Any, careful: bool) -> None:
        long = self.random.random() < 0.002
        await self.witness.sleep(self.random.uniform(0.3, 0.9) * self.lease if long else 0.0005)
        checked = clock.now()
        held = hold.is_held
        try:
            if careful:
                hold.check()
                held = True
        except HoldLost:
            return  # a careful contender writes nothing
        await self.witness.ask("write", *self.key, checked, held)

    async def linger(self, hold: Any) -> None:
        """Poll `hold.remaining` until the hold is no longer valid."""
        until = clock.now() + LINGER * self.lease
        seen = now = clock.now()
        remaining = left = hold.remaining()
        while now < until and left > 0:
            seen, remaining = now, left
            await self.witness.sleep(POLL)
            now = clock.now()
            left = hold.remaining()
        await self.witness.send("expired", *self.key, seen, remaining, clock.now())

    async def leave(self, hold: Any) -> None:
        began = clock.now()
        remaining = hold.remaining()
        outcome = await self.release(hold)
        if outcome == "unknown":
            await self.witness.sleep(PAUSE)
            outcome = await self.release(hold)  # the error allows a retry
        losses = self.lost_fences.count(hold.fence)
        await self.witness.send(
            "release", *self.key, began, remaining, outcome, clock.now(), losses
        )

    async def release(self, hold: Any) -> str:
        try:
            await done(hold.release())
        except HoldLost:
            return "lost"
        except BackendError as error:
            if not error.transient:
                raise
            return "unknown"
        return "released"


# ---- a worker --------------------------------------------------------------------------------


def guarded(path: str, contender: Any, run_it: Any) -> None:
    """Run it; report an unexpected error to the witness and end the process."""
    try:
        run_it(contender)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            run(WitnessConnection(path).send("raised", os.getpid(), text[-3000:]))
        os._exit(1)


def threads(url: str, path: str, leases: dict[str, float]) -> None:
    with lockfast.connect(url) as client:
        contenders = [Contender(client, WitnessConnection(path), *pair) for pair in leases.items()]
        running = [
            threading.Thread(target=guarded, args=(path, one.run(), run)) for one in contenders
        ]
        for one in running:
            one.start()
        for one in running:
            one.join()


def print_task_stacks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def tasks(url: str, path: str, leases: dict[str, float]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_task_stacks)
    async with lockfast.aio.connect(url) as client, asyncio.TaskGroup() as group:
        for pair in leases.items():
            group.create_task(Contender(client, TaskWitnessConnection(path), *pair).run())


def work(api: str, url: str, path: str, leases: dict[str, float]) -> None:
    if api == "tasks":
        guarded(path, tasks(url, path, leases), asyncio.run)
    else:
        guarded(path, None, lambda _: threads(url, path, leases))


# ---- the nursery -----------------------------------------------------------------------------


class Nursery:
    def __init__(self) -> None:
        self.children: set[int] = set()

    def obey(self, order: list[Any]) -> Any:
        match order:
            case ["spawn", *arguments]:
                pid = os.fork()
                if pid == 0:
                    faulthandler.register(signal.SIGUSR1, all_threads=True)
                    work(*arguments)
                    sys.stderr.flush()
                    os._exit(0)
                self.children.add(pid)
                return pid
            case ["kill", pid]:
                self.children.remove(pid)
                os.kill(pid, signal.SIGKILL)
                return os.waitpid(pid, 0)[1]
            case ["stop", pid]:
                assert pid in self.children
                os.kill(pid, signal.SIGSTOP)
                return os.waitpid(pid, os.WUNTRACED)[1]
            case ["cont", pid]:
                assert pid in self.children
                return os.kill(pid, signal.SIGCONT)
            case ["wait", seconds]:
                until = time.monotonic() + seconds
                codes: dict[int, int] = {}
                while self.children - codes.keys() and time.monotonic() < until:
                    for pid in self.children - codes.keys():
                        ended, status = os.waitpid(pid, os.WNOHANG)
                        if ended:
                            codes[pid] = status
                    time.sleep(0.01)
                self.children -= codes.keys()
                for pid in self.children:
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(0.5)
                return [list(codes.values()), len(self.children)]
        raise AssertionError(order)


def main() -> None:
    importlib.import_module(sys.argv[1])  # once here, not in every worker
    nursery = Nursery()
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(nursery.obey(json.loads(line))), flush=True)
    finally:
        for pid in list(nursery.children):
            nursery.obey(["kill", pid])


if __name__ == "__main__":
    main()
