"""The workers of a storm, and the nursery that forks them. Run by `storm`.

A worker is a process with one contender per name, threads or tasks, all on one client. Each asks,
holds, writes to the witness, and leaves, again and again, until the witness says that it is the
end. On even turns it is careful: it asks `hold.check` before it writes. On the others it writes
without asking, as programs do that trust their lock; so it does when it was told to ``rush``, and
when it was told to ``stay`` until it believes in its hold no more.

What a contender tells (see `storm_witness`), with `now` read *before* whatever a line says is still
true, and *after* whatever it says has happened:

    hold   name fence pid n asked got
    write  name fence pid n checked held      it believed so, asked after ``checked``
    fell   name fence pid n believed rest ended     it stayed until it believed in it no more
    left   name fence pid n began rest outcome ended told
    tired, unknown                            what it was told instead of a hold
    raised                                    what it must never be told

The nursery obeys lines on its stdin: spawn, kill, stop, cont, wait. Only it signals, and only its
own children, so no pid that was given to somebody else is ever hit. Who does not end is asked what
it is doing (SIGUSR1), and says so on stderr.
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

from ordeal import done

import lockfast
from lockfast import clock
from lockfast.errors import AcquireTimeout, BackendError, HoldLost, NotReplicated
from lockfast.runtime.threads import run

STAY = 3.0  # leases: how long one that is told to stay believes at most; then something is wrong
LOOK = 0.0005
PAUSE = 0.01


class Ended(Exception):
    """The storm is over, or the witness is gone."""


class Line:
    """A contender's line to the witness, for threads."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._rest = b""

    async def say(self, *record: object) -> None:
        self._socket.sendall(json.dumps(record).encode() + b"\n")

    async def ask(self, *record: object) -> str:
        await self.say(*record)
        while b"\n" not in self._rest:
            data = await self._receive()
            if not data:
                raise Ended
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return str(json.loads(line))

    async def _receive(self) -> bytes:
        return self._socket.recv(4096)

    async def nap(self, seconds: float) -> None:
        time.sleep(seconds)


class TaskLine(Line):
    """The same for tasks: it waits for answers without blocking the others."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._socket.setblocking(False)

    async def _receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    async def nap(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Contender:
    def __init__(self, client: Any, line: Line, name: str, lease: float) -> None:
        self.line, self.name, self.lease = line, name, lease
        self.told: list[int] = []
        self.lock = client.lock(
            name, lease=lease, renew=True, on_lost=lambda hold: self.told.append(hold.fence)
        )
        self.random = random.Random()

    async def live(self) -> None:
        turn = 0
        with contextlib.suppress(Ended, ConnectionError):
            while True:
                turn += 1
                await self.turn(turn)

    async def turn(self, turn: int) -> None:
        asked = clock.now()
        try:
            # Now and then an impatient one: it leaves the queue, or crosses with its grant.
            patience = None if self.random.random() < 0.9 else self.random.uniform(0, self.lease)
            hold = await done(self.lock.acquire(timeout=patience))
        except AcquireTimeout:
            return await self.line.say("tired", self.name, os.getpid(), asked, clock.now())
        except HoldLost:
            raise  # nothing of ours is left from the turn before
        except (BackendError, NotReplicated) as error:
            if isinstance(error, BackendError) and not error.transient:
                raise
            await self.line.say("unknown", self.name, os.getpid(), asked, clock.now())
            return await self.line.nap(PAUSE)
        got = clock.now()
        self.key = (self.name, hold.fence, os.getpid(), f"{id(self)}-{turn}")
        word = await self.line.ask("hold", *self.key, asked, got)
        if word == "stay":
            await self.stay(hold)
        careful = turn % 2 == 0 and word not in ("stay", "rush")
        await self.work(hold, careful)
        await self.leave(hold)
        if word == "end":
            raise Ended

    async def work(self, hold: Any, careful: bool) -> None:
        long = self.random.random() < 0.002
        await self.line.nap(self.random.uniform(0.3, 0.9) * self.lease if long else 0.0005)
        checked = clock.now()
        held = hold.is_held
        try:
            if careful:
                hold.check()
                held = True
        except HoldLost:
            return  # as it should: it writes nothing
        await self.line.ask("write", *self.key, checked, held)

    async def stay(self, hold: Any) -> None:
        """Look all the time whether we still believe in it, until we do not."""
        until = clock.now() + STAY * self.lease
        believed = now = clock.now()
        rest = left = hold.remaining()
        while now < until and left > 0:
            believed, rest = now, left
            await self.line.nap(LOOK)
            now = clock.now()
            left = hold.remaining()
        await self.line.say("fell", *self.key, believed, rest, clock.now())

    async def leave(self, hold: Any) -> None:
        began = clock.now()
        rest = hold.remaining()
        outcome = await self.give_back(hold)
        if outcome == "unknown":
            await self.line.nap(PAUSE)
            outcome = await self.give_back(hold)  # as the error says that one may
        told = self.told.count(hold.fence)
        await self.line.say("left", *self.key, began, rest, outcome, clock.now(), told)

    async def give_back(self, hold: Any) -> str:
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


def guarded(path: str, life: Any, run_it: Any) -> None:
    """Run it; what nobody expects is told to the witness, and ends the process."""
    try:
        run_it(life)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            run(Line(path).say("raised", os.getpid(), text[-3000:]))
        os._exit(1)


def threads(url: str, path: str, leases: dict[str, float]) -> None:
    with lockfast.connect(url) as client:
        contenders = [Contender(client, Line(path), *pair) for pair in leases.items()]
        crowd = [
            threading.Thread(target=guarded, args=(path, one.live(), run)) for one in contenders
        ]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()


def say_where_tasks_are() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def tasks(url: str, path: str, leases: dict[str, float]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, say_where_tasks_are)
    async with lockfast.aio.connect(url) as client, asyncio.TaskGroup() as crowd:
        for pair in leases.items():
            crowd.create_task(Contender(client, TaskLine(path), *pair).live())


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
            case ["spawn", *what]:
                pid = os.fork()
                if pid == 0:
                    faulthandler.register(signal.SIGUSR1, all_threads=True)
                    work(*what)
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
    importlib.import_module(sys.argv[1])  # here once, not in every worker
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
