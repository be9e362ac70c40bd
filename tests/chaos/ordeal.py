"""One name, some contenders, and a witness that kills or stops whoever holds it.

Run as a program by `ordeals`, one process per name. It forks its contenders, and it is the
witness: a resource that remembers the highest fence and refuses every lower one. Contenders
write to it through one pipe (a line is one atomic write, so lines come in the order of cause and
effect) and are told to go on through a pipe each. It knows nothing of the store: what it reports
is what its contenders said and when it heard it.

What a contender says: ``ready 0``, ``hold F``, ``write F``, ``left F``, or, if it was refused,
``lost F`` with what its hold then said of itself; ``blocked 0`` if the store did not answer in
time, and it tries again; ``raised 0`` and what, if it ends by any other error.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lockfast
from lockfast.runtime.threads import run

PATIENCE = 60.0  # for anything that must come; then the ordeal fails


# ---- a contender: its own process ------------------------------------------------------------


async def done(answer: Any) -> Any:
    """What a verb of either face gives."""
    return await answer if inspect.isawaitable(answer) else answer


async def contend(
    api: str, url: str, name: str, lease: float, to_witness: int, orders: int
) -> None:
    """One source for both APIs. It waits for orders without its event loop: one that is blocked
    must not lose locks."""

    def say(*words: object) -> None:
        os.write(to_witness, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())

    client: Any = {"threads": lockfast, "tasks": lockfast.aio}[api].connect(url)
    lock = client.lock(name, lease=lease, renew=True)
    await done(lock.locked())  # opens the store
    say("ready", 0)
    os.read(orders, 1)
    while True:
        try:
            hold = await done(lock.acquire())
        except lockfast.BackendError as error:  # said to be unknown, and then given back
            if not error.transient:
                raise
            say("blocked", 0)
            continue
        say("hold", hold.fence)
        if not os.read(orders, 1):
            os._exit(0)  # the witness is gone
        # Whoever was stopped goes on here, unaware: it writes under its old fence.
        say("write", hold.fence)
        if os.read(orders, 1) == b"+":
            say("left", hold.fence)
            try:
                await done(hold.release())
            except lockfast.BackendError:
                say("blocked", 0)  # it frees itself, as the error says
            continue
        held, outcome = hold.is_held, "released"
        try:
            await done(hold.release())
        except lockfast.HoldLost:
            outcome = "HoldLost"
        say("lost", hold.fence, held, outcome)


# ---- the witness -----------------------------------------------------------------------------


@dataclass
class Report:
    # From the kill or the stop to the next accepted write, on the clock that all processes share.
    recoveries: list[tuple[float, float]] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)  # in the order in which holds were told
    accepted: list[int] = field(default_factory=list)
    refused: int = 0
    starved: int = 0  # refused although it was not stopped
    stale_accepted: int = 0
    overlaps: int = 0
    not_told_lost: int = 0
    # From when until when somebody was stopped inside a transaction, and so blocked all the others.
    blocks: list[tuple[float, float]] = field(default_factory=list)
    blocked: int = 0  # how often a contender was told that the store stayed locked
    error: str = ""


class Witness:
    def __init__(self, url: str, name: str, lease: float, apis: Sequence[str]) -> None:
        self.url, self.name, self.lease, self.apis = url, name, lease, apis
        self.report = Report()
        self.reader, self.writer = os.pipe()
        self.lived = 0
        self.orders: dict[int, int] = {}  # pid → the pipe on which it is told to go on
        self.holding: dict[int, int] = {}  # pid → fence, of those who run
        self.paused: dict[int, int] = {}  # pid → fence, of those who were stopped or killed
        self.highest = 0
        self.buffer = b""

    def fork(self) -> None:
        orders, teller = os.pipe()
        api = self.apis[self.lived % len(self.apis)]
        self.lived += 1
        pid = os.fork()
        if pid == 0:
            try:
                for mine in (self.reader, teller, *self.orders.values()):
                    os.close(mine)
                life = contend(api, self.url, self.name, self.lease, self.writer, orders)
                asyncio.run(life) if api == "tasks" else run(life)
            except BaseException as error:
                os.write(self.writer, f"{os.getpid()} raised 0 {error!r}"[:4000].encode() + b"\n")
            finally:
                os._exit(1)
        os.close(orders)
        self.orders[pid] = teller

    def call_up(self) -> None:
        """All contenders at their marks, before the first of them starts."""
        for _ in self.apis:
            self.fork()
        for _ in self.apis:
            self.until("ready")

    def start(self) -> None:
        for orders in self.orders.values():
            os.write(orders, b".")

    def next_line(self) -> tuple[int, list[str], float]:
        """Who said what, and when we heard it."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"nothing heard for {PATIENCE} s about {self.name}")
            self.buffer += os.read(self.reader, 65536)
        line, _, self.buffer = self.buffer.partition(b"\n")
        pid, *words = line.decode().split()
        return int(pid), words, time.monotonic()

    def heard(self) -> tuple[str, int, float]:
        """Take in one line; judge it; answer it. What it was, who said it, and when."""
        pid, (what, number, *more), now = self.next_line()
        fence = int(number)
        match what:
            case "hold":
                self.report.overlaps += bool(self.holding)
                self.report.fences.append(fence)
                self.holding[pid] = fence
            case "write":
                fresh = fence > self.highest
                if fresh:
                    self.highest = fence
                    self.report.accepted.append(fence)
                if pid in self.paused:
                    self.report.stale_accepted += fresh
                    self.report.refused += not fresh
                else:
                    self.report.starved += not fresh
                os.write(self.orders[pid], b"+" if fresh else b"-")
                what = "accepted" if fresh else "refused"
            case "left":
                self.holding.pop(pid, None)
                self.paused.pop(pid, None)
            case "blocked":
                self.report.blocked += 1
            case "raised":
                raise RuntimeError(f"a contender for {self.name} raised {' '.join(more)}")
            case "lost":
                self.report.not_told_lost += more != ["False", "HoldLost"]
                self.holding.pop(pid, None)
                self.paused.pop(pid, None)
        return what, pid, now

    def until(self, wanted: str) -> tuple[int, float]:
        """Go on until somebody says it; meanwhile whoever holds is told to write and leave."""
        while True:
            what, pid, now = self.heard()
            if what == wanted:
                return pid, now
            if what == "hold":
                os.write(self.orders[pid], b".")

    def a_holder(self) -> int:
        """Somebody who holds it and was not told to go on, at some moment of its lease."""
        pid, _ = self.until("hold")
        time.sleep(random.uniform(0, 0.4) * self.lease)
        return pid

    def kill_the_holder(self) -> None:
        pid = self.a_holder()
        self.paused[pid] = self.holding.pop(pid)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _, now = self.until("accepted")
        self.report.recoveries.append((began, now))
        os.waitpid(pid, 0)
        os.close(self.orders.pop(pid))
        self.fork()
        newcomer, _ = self.until("ready")
        os.write(self.orders[newcomer], b".")

    def stop_the_holder(self) -> None:
        while True:
            pid = self.a_holder()
            began = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            if not (self.url.startswith("sqlite:") and self.inside_a_transaction()):
                break
            # SQLite has no remedy against that, and this is not about it: another round.
            os.kill(pid, signal.SIGCONT)
            self.report.blocks.append((began, time.monotonic()))
            os.write(self.orders[pid], b".")
        self.paused[pid] = self.holding.pop(pid)
        _, now = self.until("accepted")
        self.report.recoveries.append((began, now))
        os.kill(pid, signal.SIGCONT)
        os.write(self.orders[pid], b".")
        while pid in self.paused:  # until it has written in vain and has learnt that it lost
            what, other, _ = self.heard()
            if what == "hold":
                os.write(self.orders[other], b".")

    def inside_a_transaction(self) -> bool:
        """Does nobody get in for a while, although a transaction takes some 20 µs?"""
        file = sqlite3.connect(self.url.removeprefix("sqlite://"), timeout=0.03)
        try:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            file.close()
        return False

    def end(self) -> None:
        for pid, orders in self.orders.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(orders)


# ---- many of them, from a test ---------------------------------------------------------------


def ordeals(
    url: str,
    folder: Path,
    kinds: Sequence[str],
    *,
    rounds: int,
    lease: float,
    apis: Sequence[str] = ("threads", "threads", "threads"),
) -> list[dict[str, Any]]:
    """One name for each of the kinds (``kill`` or ``stop``), all at the same time; the reports."""
    source = str(Path(lockfast.__file__).parent.parent)
    # So many processes that also measure their coverage would be measured instead of the lock.
    environment = {name: value for name, value in os.environ.items() if name[:4] != "COVE"}
    reports = [folder / f"report-{number}" for number in range(len(kinds))]
    words = [f"{rounds}", f"{lease}", ",".join(apis)]
    running = [
        subprocess.Popen(
            [sys.executable, __file__, url, report.name, kind, *words, report],
            env=environment | {"PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind, report in zip(kinds, reports, strict=True)
    ]
    try:
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            assert process.wait(100) == 0
    finally:
        for process in running:  # their contenders end when their witness is gone
            if process.poll() is None:
                process.kill()
            process.communicate()
    return [json.loads(report.read_text()) for report in reports]


def assert_fenced(report: dict[str, Any], kind: str, rounds: int) -> None:
    """What must be true of every name, whatever the store."""
    assert report["error"] == ""
    assert len(report["recoveries"]) == rounds
    # No fence repeats, and each is greater than all before it.
    assert report["fences"] == sorted(set(report["fences"]))
    assert report["accepted"] == sorted(set(report["accepted"]))
    # No two accepted writers: nobody stale was let in, and who was refused knew that it lost.
    assert report["stale_accepted"] == 0
    assert report["refused"] == (rounds if kind == "stop" else 0)
    assert report["not_told_lost"] == 0


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the greatest."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def main() -> None:
    url, name, kind, rounds, lease, apis, out = sys.argv[1:]
    witness = Witness(url, name, float(lease), apis.split(","))
    random.seed(name)
    if (scheme := url.partition(":")[0]) in ("redis", "zookeeper"):
        importlib.import_module(f"lockfast.stores.{scheme}.store")  # once, not in each contender
    try:
        witness.call_up()
        print("ready", flush=True)
        sys.stdin.readline()  # all begin together, when the crowd at the door is gone
        witness.start()
        for _ in range(int(rounds)):
            witness.kill_the_holder() if kind == "kill" else witness.stop_the_holder()
    except Exception as error:  # told to the test, which fails with it
        witness.report.error = repr(error)
    finally:
        witness.end()
    with open(out, "w") as file:
        json.dump(vars(witness.report), file)


if __name__ == "__main__":
    main()
