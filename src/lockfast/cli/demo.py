"""`lockfast demo`: four scenes on the embedded store, in a temporary folder.

1. Eight processes increment one counter without a lock: updates get lost.
2. They do so with the lock: no update is lost, and all processes get about the same share.
3. Holders are killed: the next waiter takes over.
4. A holder sleeps past the end of its lease and then writes: its fence is refused.

The demo verifies its claims: the exit code is 0 only if all of them held. In its processes
(`workers`) `serve` carries out the verbs of `Actor`. Times are on lockfast's clock, which all
processes of a host share.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sqlite3
import struct
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lockfast import clock
from lockfast.cli import Screen, duration
from lockfast.cli.main import JSON, end, exits, option, verb
from lockfast.cli.workers import Failure, Worker
from lockfast.errors import ConfigurationError, HoldLost
from lockfast.sync import Client, Hold, connect

PROCESSES = 8
KILLS = 3
FRAME = 1 / 12
PATIENCE = 30.0  # limit for any single step on a busy machine; past it, the demo has failed
BOARD, WITNESS, LOCKS = "board", "witness.db", "locks.db"


class Failed(Exception):
    """An expected step did not happen."""


@verb(
    """\
Show eight processes that increment one counter, with and without the lock; holders that are
killed; a stale writer that is refused. Exits with 0 only if every claim held.""",
    exits("every claim held", "  1    a claim did not hold\n"),
    [
        option(
            "--seconds", type=duration, metavar="TIME", default=15.0,
            help="approximate duration (default: 15s)",
        ),
        JSON,
    ],
)  # fmt: skip
def demo(args: argparse.Namespace) -> int:
    if not 1 <= args.seconds <= 3600:
        raise ConfigurationError(f"--seconds {args.seconds:g}: must be between 1 and 3600")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, end)
    quiet = io.StringIO() if args.json else None
    with contextlib.closing(Screen(quiet)) as screen, contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="lockfast-demo-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(scratch))
        with contextlib.closing(sqlite3.connect(folder / WITNESS)) as witness, witness:
            witness.execute("CREATE TABLE account (text TEXT, fence INTEGER)")
            witness.execute("INSERT INTO account VALUES ('', 0)")
        processes = []
        for number in range(PROCESSES):
            processes.append(DemoProcess(folder, number))
            stack.callback(processes[-1].end)
        client = stack.enter_context(connect(f"sqlite://{folder / LOCKS}"))
        demo, failure = Demo(screen, folder, processes, client, args.seconds), None
        try:
            code = demo.play()
        except Failed as failed:
            code, failure = 1, str(failed)
            screen.line(f"\n{screen.paint('red', f'The demo has failed: {failed}')}")
        if args.json:
            claims = [{"claim": claim, "holds": holds} for holds, claim in demo.claims]
            print(json.dumps({"claims": claims, "failure": failure}, indent=2))
        return code


class Demo:
    def __init__(
        self,
        screen: Screen,
        folder: Path,
        processes: list[DemoProcess],
        client: Client,
        seconds: float,
    ) -> None:
        self._screen, self._folder, self._processes = screen, folder, processes
        self._client, self._seconds, self._board = client, seconds, Board(folder)
        self.claims: list[tuple[bool, str]] = []

    def play(self) -> int:
        screen, paint = self._screen, self._screen.paint
        head = f"{paint('bold', 'lockfast')} · eight processes, one counter, no server "
        screen.line(head + paint("dim", "(SQLite)"))
        for process in self._processes:
            process.reply()  # it is ready
        self._scene(1, "eight processes increment a counter, without a lock")
        self._race("bare", 0.2)
        self._scene(2, 'now inside  with lockfast.lock("counter"):')
        self._race("lock", 0.4)
        self._scene(3, "kill -9 the holder while others wait")
        self._kill()
        self._scene(4, "a holder sleeps past the end of its lease, then writes")
        self._sleep()
        return self._end()

    def _end(self) -> int:
        screen, paint = self._screen, self._screen.paint
        screen.line()
        for holds, claim in self.claims:
            screen.line(paint("green", f" ✓ {claim}") if holds else paint("red", f" ✗ {claim}"))
        return 0 if all(holds for holds, _ in self.claims) else 1

    def _scene(self, number: int, title: str) -> None:
        self._screen.line(f"\n{self._screen.paint('cyan', f'{number}')}  {title}")

    def _race(self, kind: str, share: float) -> None:
        seconds = self._seconds * share
        self._board.clear()
        start = clock.now() + 0.1
        for process in self._processes:
            process.order("race", kind, start, start + seconds)
        while (left := start + seconds - clock.now()) > 0:
            passed = max(seconds - left, 0.0)
            scores = self._board.scores()
            rate = f"{sum(scores) / max(passed, 0.05):,.0f} increments/s"
            status = self._screen.paint("dim", f"   {rate:<30} {left:10.1f} s to go")
            self._screen.live([*self._bars(scores, passed / seconds), status])
            time.sleep(min(FRAME, left))
        handovers = sum(process.reply() for process in self._processes)
        scores = self._board.scores()
        value, _ = self._board.counter()
        self._screen.live(self._bars(scores, 1.0), last=True)
        self._verdict(kind, scores, value, sum(scores) - value, handovers / seconds)

    def _verdict(
        self, kind: str, scores: Sequence[int], value: int, lost: int, handovers: float
    ) -> None:
        paint = self._screen.paint
        summary = f"   {sum(scores):,} increments, the counter shows {value:,}: "
        if kind == "bare":
            percent = f"{lost:,} updates lost ({100 * lost / max(sum(scores), 1):.0f} %)"
            self._screen.line(summary + paint("red", percent))
            return
        self._screen.line(summary + paint("green" if lost == 0 else "red", f"{lost:,} lost"))
        fair = 100 * min(scores) / max(*scores, 1)
        shares = f"smallest share = {fair:.0f} % of the largest"
        self._screen.line(f"   {handovers:,.0f} hand-overs/s · {shares}")
        claim = f"with the lock: {lost} of {value:,} updates lost"
        self.claims.append((lost == 0 and value > 0, claim))

    def _bars(self, scores: Sequence[int], passed: float) -> list[str]:
        """Draw one bar per process. They grow with time; the longest is full at the end."""
        paint, most = self._screen.paint, max(*scores, 1)
        width = self._screen.width - 30
        return [
            f"   {paint('dim', f'pid {process.pid:<8}')} "
            f"{paint('yellow', self._screen.bar(passed * score / most, width))} {score:>10,}"
            for process, score in zip(self._processes, scores, strict=True)
        ]

    def _kill(self) -> None:
        paint, lease, longest = self._screen.paint, 10.0, 0.0
        queue = self._processes[: KILLS + 1]
        holder = queue[0]
        holder.ask("hold", "prize", lease)
        for length, process in enumerate(queue[1:], 1):
            process.order("hold", "prize", lease)
            self._wait_for_queue(length)
        for _ in range(KILLS):
            time.sleep(self._seconds / 30)
            queue.remove(holder)
            killed_at = clock.now()
            holder.process.send_signal(signal.SIGKILL)
            action = f"   {paint('red', f'kill -9 {holder.pid}')} (the holder)"
            self._screen.live([f"{action} …"])
            holder, (_, held_at) = next_reply(queue)
            longest = max(longest, took := held_at - killed_at)
            later = f"holds the lock {paint('green', f'{took * 1000:.1f} ms')} later"
            self._screen.live([f"{action} → pid {holder.pid} {later}"], last=True)
        released = holder.ask("release")
        claim = f"{KILLS} holders killed: at most {longest * 1000:.0f} ms until the next one"
        self.claims.append((released and longest < lease, claim))

    def _wait_for_queue(self, length: int) -> None:
        until = clock.now() + PATIENCE
        while len(self._client.inspect("prize").waiters) < length:
            if clock.now() > until:
                raise Failed("no process waits for the lock")
            time.sleep(0.01)

    def _sleep(self) -> None:
        paint, line = self._screen.paint, self._screen.line
        sleeper, heir = self._processes[-2:]
        lease = max(0.5, self._seconds / 10)
        old, _ = sleeper.ask("hold", "account", lease)
        line(f"   pid {sleeper.pid} holds the lock: fence {_short(old)}, lease {lease:g} s")
        heir.order("hold", "account", lease)
        sleeper.process.send_signal(signal.SIGSTOP)
        self._drain(sleeper, lease)
        new, _ = heir.reply()
        accepted = heir.ask("write", "the-heir")
        result = paint("green", "accepted" if accepted else "refused")
        line(f"   pid {heir.pid} holds the lock: fence {_short(new)}, writes: {result}")
        sleeper.process.send_signal(signal.SIGCONT)
        refused = not sleeper.ask("write", "the-sleeper")
        knows = not sleeper.ask("release")
        accepted = heir.ask("release") and accepted
        result = paint("green", "refused") if refused else paint("red", "accepted")
        wakes = f"wakes up and writes with fence {_short(old)}"
        line(f"   pid {sleeper.pid} {wakes}: {result}")
        with contextlib.closing(sqlite3.connect(self._folder / WITNESS)) as witness:
            (text,) = witness.execute("SELECT text FROM account").fetchone()
        kept = accepted and refused and text == "the-heir" and new > old
        self.claims.append((kept, "the stale writer was refused by its fence"))
        self.claims.append((knows, "the stale writer learned that its hold is lost"))

    def _drain(self, sleeper: DemoProcess, lease: float) -> None:
        """Show the sleeper's lease running out."""
        until = clock.now() + lease
        action = f"   kill -STOP {sleeper.pid}: "
        while (left := until - clock.now()) > 0:
            bar = self._screen.paint("yellow", self._screen.bar(left / lease, 30))
            self._screen.live([f"{action}{bar} {left:.1f} s"])
            time.sleep(min(FRAME, left))
        self._screen.live([f"{action}its lease has expired"], last=True)


def _short(fence: int) -> str:
    return f"…{fence % 10**9:09d}"


# ---- the processes --------------------------------------------------------------------------


class DemoProcess(Worker):
    """One process of the demo. It is killed at the end, as it may be stopped."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__()
        self.pid = self.process.pid
        self.send((serve, (folder, number)))

    def order(self, verb: str, *arguments: object) -> None:
        self.send((verb, arguments))

    def reply(self) -> Any:
        return next_reply([self])[1]

    def ask(self, verb: str, *arguments: object) -> Any:
        self.order(verb, *arguments)
        return self.reply()


def next_reply(processes: Sequence[DemoProcess]) -> tuple[DemoProcess, Any]:
    """Wait for the first reply of any of the processes."""
    by_pipe = {process.pipe: process for process in processes}
    for pipe in wait(list(by_pipe), PATIENCE + 1.0):
        assert isinstance(pipe, Connection)
        process = by_pipe[pipe]
        try:
            reply = pipe.recv()
        except (EOFError, OSError):
            raise Failed(f"process {process.pid} ended unexpectedly") from None
        if isinstance(reply, Failure):
            raise Failed(f"process {process.pid}: {reply.message}")
        return process, reply
    pids = [process.pid for process in processes]
    raise Failed(f"no reply from {pids} in {PATIENCE:g} s")


def serve(pipe: Connection, folder: Path, number: int) -> None:
    """Carry out the verbs that arrive, in a process of the demo."""
    actor = Actor(folder, number)
    pipe.send(True)
    while True:
        verb, arguments = pipe.recv()
        pipe.send(getattr(actor, verb)(*arguments))


class Actor:
    """The state of one process, and its verbs."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number, self._board = folder, number, Board(folder)
        self._client = connect(f"sqlite://{folder / LOCKS}")
        self._hold: Hold | None = None

    def race(self, kind: str, start: float, end: float) -> int:
        """Increment the counter; return how often another process had done so before."""
        lock = self._client.lock("counter") if kind == "lock" else contextlib.nullcontext()
        score = handovers = 0
        time.sleep(max(start - clock.now(), 0.0))
        while clock.now() < end:
            with lock:
                value, last = self._board.counter()
                time.sleep(0)  # between read and write: this is where updates get lost
                self._board.count(value + 1, self._number)
            score += 1
            handovers += last != self._number
            self._board.score(self._number, score)
        return handovers

    def hold(self, name: str, lease: float) -> tuple[int, float]:
        """Acquire the lock; return its fence and the time."""
        lock = self._client.lock(name, timeout=PATIENCE, lease=lease, renew=True)
        self._hold = lock.acquire()
        return self._hold.fence, clock.now()

    def write(self, text: str) -> bool:
        """Write without checking that the lock is still held, as a careless program does. Return
        False if the fence was refused."""
        assert self._hold is not None
        with contextlib.closing(sqlite3.connect(self._folder / WITNESS, timeout=10)) as witness:
            with witness:
                done = witness.execute(
                    "UPDATE account SET text = :text, fence = :fence WHERE fence <= :fence",
                    {"text": text, "fence": self._hold.fence},
                )
            return done.rowcount > 0

    def release(self) -> bool:
        """Release the lock; return False if it was lost."""
        assert self._hold is not None
        try:
            self._hold.release()
        except HoldLost:
            return False
        return True


class Board:
    """A file that the processes share: the counter, who incremented it last, and their scores."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / BOARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def clear(self) -> None:
        os.pwrite(self._file, struct.pack(f"{2 + PROCESSES}q", 0, -1, *[0] * PROCESSES), 0)

    def counter(self) -> tuple[int, ...]:
        return struct.unpack("2q", os.pread(self._file, 16, 0))

    def count(self, value: int, number: int) -> None:
        os.pwrite(self._file, struct.pack("2q", value, number), 0)

    def scores(self) -> tuple[int, ...]:
        return struct.unpack(f"{PROCESSES}q", os.pread(self._file, 8 * PROCESSES, 16))

    def score(self, number: int, score: int) -> None:
        os.pwrite(self._file, struct.pack("q", score), 16 + 8 * number)
