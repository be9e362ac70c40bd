"""Recovery from failed holders: one witness process per name kills or stops its current holder.

`measure_recoveries` runs this file as a program, one process per name. The process forks its
contenders and acts as the witness: a fenced resource that remembers the highest fence and refuses
every lower one. Contenders write to the witness through one shared pipe (a line is one atomic
write, so lines arrive in causal order), and the witness lets each of them proceed through a pipe of
its own. The witness does not talk to the store: its report rests on the contenders' messages and on
the times at which they arrived.

Messages of a contender: ``ready 0``, ``hold F``, ``write F`` and ``releasing F``. A contender whose
write was refused sends ``lost F`` with `is_held` and the outcome of its release instead. ``blocked
0`` means that the store did not answer in time and the contender tries again; ``raised 0`` carries
any other error, which ends the contender.
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

PATIENCE = 60.0  # seconds for any expected message; after that the run fails


# ---- a contender: its own process ------------------------------------------------------------


async def done(result: Any) -> Any:
    """Return the result of a call of either API, awaiting it if it is awaitable."""
    return await result if inspect.isawaitable(result) else result


async def contend(
    api: str, url: str, name: str, lease: float, to_witness: int, orders: int
) -> None:
    """Acquire, write and release for ever; one source for both APIs.

    Reading an order blocks the event loop on purpose: a blocked loop must not lose locks.
    """

    def send(*fields: object) -> None:
        os.write(to_witness, (" ".join(map(str, (os.getpid(), *fields))) + "\n").encode())

    client: Any = {"threads": lockfast, "tasks": lockfast.aio}[api].connect(url)
    lock = client.lock(name, lease=lease, renew=True)
    await done(lock.locked())  # opens the store
    send("ready", 0)
    os.read(orders, 1)
    while True:
        try:
            hold = await done(lock.acquire())
        except lockfast.BackendError as error:  # the outcome is unknown; the claim is withdrawn
            if not error.transient:
                raise
            send("blocked", 0)
            continue
        send("hold", hold.fence)
        if not os.read(orders, 1):
            os._exit(0)  # the witness is gone
        # A contender that was stopped resumes here, unaware, and writes under its old fence.
        send("write", hold.fence)
        if os.read(orders, 1) == b"+":
            send("releasing", hold.fence)
            try:
                await done(hold.release())
            except lockfast.BackendError:
                send("blocked", 0)  # the lease runs out by itself, as the error says
            continue
        held, outcome = hold.is_held, "released"
        try:
            await done(hold.release())
        except lockfast.HoldLost:
            outcome = "HoldLost"
        send("lost", hold.fence, held, outcome)


# ---- the witness -----------------------------------------------------------------------------


@dataclass
class Report:
    # From the kill or the stop to the next accepted write, on the clock that all processes share.
    recoveries: list[tuple[float, float]] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)  # in the order in which holds were reported
    accepted: list[int] = field(default_factory=list)
    refused: int = 0
    starved: int = 0  # writes refused although their contender was not stopped
    stale_accepted: int = 0
    overlaps: int = 0
    loss_not_reported: int = 0
    # Periods in which a contender, stopped inside a transaction, blocked all the others.
    blocks: list[tuple[float, float]] = field(default_factory=list)
    blocked: int = 0  # calls that failed because the store stayed locked
    error: str = ""


class Witness:
    def __init__(self, url: str, name: str, lease: float, apis: Sequence[str]) -> None:
        self.url, self.name, self.lease, self.apis = url, name, lease, apis
        self.report = Report()
        self.reader, self.writer = os.pipe()
        self.forked = 0
        self.orders: dict[int, int] = {}  # pid → the pipe on which that contender is let proceed
        self.holding: dict[int, int] = {}  # pid → fence, of running contenders
        self.paused: dict[int, int] = {}  # pid → fence, of stopped or killed contenders
        self.highest = 0
        self.buffer = b""

    def fork(self) -> None:
        orders, order_writer = os.pipe()
        api = self.apis[self.forked % len(self.apis)]
        self.forked += 1
        pid = os.fork()
        if pid == 0:
            try:
                for inherited in (self.reader, order_writer, *self.orders.values()):
                    os.close(inherited)
                contender = contend(api, self.url, self.name, self.lease, self.writer, orders)
                asyncio.run(contender) if api == "tasks" else run(contender)
            except BaseException as error:
                os.write(self.writer, f"{os.getpid()} raised 0 {error!r}"[:4000].encode() + b"\n")
            finally:
                os._exit(1)
        os.close(orders)
        self.orders[pid] = order_writer

    def fork_all(self) -> None:
        """Fork all contenders and wait until each is ready, before the first of them starts."""
        for _ in self.apis:
            self.fork()
        for _ in self.apis:
            self.run_until("ready")

    def start(self) -> None:
        for orders in self.orders.values():
            os.write(orders, b".")

    def next_line(self) -> tuple[int, list[str], float]:
        """Return the next message: the sender's pid, its fields, and the time of its arrival."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"no message about {self.name} for {PATIENCE} s")
            self.buffer += os.read(self.reader, 65536)
        line, _, self.buffer = self.buffer.partition(b"\n")
        pid, *fields = line.decode().split()
        return int(pid), fields, time.monotonic()

    def handle_message(self) -> tuple[str, int, float]:
        """Read one message, record it and answer it; return its kind, the sender and the time."""
        pid, (kind, number, *more), now = self.next_line()
        fence = int(number)
        match kind:
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
                kind = "accepted" if fresh else "refused"
            case "releasing":
                self.holding.pop(pid, None)
                self.paused.pop(pid, None)
            case "blocked":
                self.report.blocked += 1
            case "raised":
                raise RuntimeError(f"a contender for {self.name} raised {' '.join(more)}")
            case "lost":
                self.report.loss_not_reported += more != ["False", "HoldLost"]
                self.holding.pop(pid, None)
                self.paused.pop(pid, None)
        return kind, pid, now

    def run_until(self, wanted: str) -> tuple[int, float]:
        """Handle messages until one of this kind; each holder meanwhile may write and release."""
        while True:
            kind, pid, now = self.handle_message()
            if kind == wanted:
                return pid, now
            if kind == "hold":
                os.write(self.orders[pid], b".")

    def catch_holder(self) -> int:
        """Return the next holder, which waits for its order, at a random moment of its lease."""
        pid, _ = self.run_until("hold")
        time.sleep(random.uniform(0, 0.4) * self.lease)
        return pid

    def kill_the_holder(self) -> None:
        pid = self.catch_holder()
        self.paused[pid] = self.holding.pop(pid)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _, now = self.run_until("accepted")
        self.report.recoveries.append((began, now))
        os.waitpid(pid, 0)
        os.close(self.orders.pop(pid))
        self.fork()
        newcomer, _ = self.run_until("ready")
        os.write(self.orders[newcomer], b".")

    def stop_the_holder(self) -> None:
        while True:
            pid = self.catch_holder()
            began = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            if not (self.url.startswith("sqlite:") and self.inside_a_transaction()):
                break
            # SQLite cannot recover from a writer stopped inside a transaction; try another round.
            os.kill(pid, signal.SIGCONT)
            self.report.blocks.append((began, time.monotonic()))
            os.write(self.orders[pid], b".")
        self.paused[pid] = self.holding.pop(pid)
        _, now = self.run_until("accepted")
        self.report.recoveries.append((began, now))
        os.kill(pid, signal.SIGCONT)
        os.write(self.orders[pid], b".")
        while pid in self.paused:  # until its write was refused and it has noticed the loss
            kind, other, _ = self.handle_message()
            if kind == "hold":
                os.write(self.orders[other], b".")

    def inside_a_transaction(self) -> bool:
        """Return whether the file stays locked for 30 ms, although a transaction takes 20 µs."""
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


# ---- the tests' side -------------------------------------------------------------------------


def measure_recoveries(
    url: str,
    folder: Path,
    kinds: Sequence[str],
    *,
    rounds: int,
    lease: float,
    apis: Sequence[str] = ("threads", "threads", "threads"),
) -> list[dict[str, Any]]:
    """Run a witness per entry of ``kinds`` (``kill`` or ``stop``) concurrently; return reports."""
    source = str(Path(lockfast.__file__).parent.parent)
    # Measuring coverage in so many processes would distort the recovery times.
    environment = {name: value for name, value in os.environ.items() if name[:4] != "COVE"}
    reports = [folder / f"report-{number}" for number in range(len(kinds))]
    options = [f"{rounds}", f"{lease}", ",".join(apis)]
    running = [
        subprocess.Popen(
            [sys.executable, __file__, url, report.name, kind, *options, report],
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
        for process in running:  # contenders end when their witness is gone
            if process.poll() is None:
                process.kill()
            process.communicate()
    return [json.loads(report.read_text()) for report in reports]


def assert_fenced(report: dict[str, Any], kind: str, rounds: int) -> None:
    """Assert the promises that hold for every name on every store."""
    assert report["error"] == ""
    assert len(report["recoveries"]) == rounds
    # No fence repeats, and each is greater than all before it.
    assert report["fences"] == sorted(set(report["fences"]))
    assert report["accepted"] == sorted(set(report["accepted"]))
    # No stale write was accepted, and every contender that was refused knew of its loss.
    assert report["stale_accepted"] == 0
    assert report["refused"] == (rounds if kind == "stop" else 0)
    assert report["loss_not_reported"] == 0


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def summary(values: Sequence[float]) -> str:
    return "p50 {:.3f}, p99 {:.3f}, max {:.3f}".format(*percentiles(values))


def main() -> None:
    url, name, kind, rounds, lease, apis, out = sys.argv[1:]
    witness = Witness(url, name, float(lease), apis.split(","))
    random.seed(name)
    if (scheme := url.partition(":")[0]) in ("redis", "zookeeper"):
        importlib.import_module(f"lockfast.stores.{scheme}.endpoint")  # once, not in each contender
    try:
        witness.fork_all()
        print("ready", flush=True)
        sys.stdin.readline()  # all witnesses start together, when every contender is connected
        witness.start()
        for _ in range(int(rounds)):
            witness.kill_the_holder() if kind == "kill" else witness.stop_the_holder()
    except Exception as error:  # reported to the test, which fails with it
        witness.report.error = repr(error)
    finally:
        witness.end()
    with open(out, "w") as file:
        json.dump(vars(witness.report), file)


if __name__ == "__main__":
    main()
