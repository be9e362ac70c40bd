"""`lockfast demo`: four scenes on the embedded store, in a temporary folder.

1. Eight processes increment one counter without a lock: updates get lost.
2. They do so with the lock: no update is lost, and all processes get about the same share.
3. Holders are killed: the next waiter takes over.
4. A holder sleeps past the end of its lease and then writes: its fence is refused.

The demo verifies its claims: the exit code is 0 only if all of them held.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from types import FrameType

from lockfast import clock
from lockfast.cli import demo_worker as worker
from lockfast.cli.demo_processes import PATIENCE, DemoProcess, Failed, demo_processes, shared_folder
from lockfast.cli.screen import Screen
from lockfast.errors import ConfigurationError
from lockfast.sync import Client, connect

PROCESSES = 8
KILLS = 3
FRAME = 1 / 12


def show(*, seconds: float = 15.0) -> int:
    """Run the demo and return the exit code."""
    if not 1 <= seconds <= 3600:
        raise ConfigurationError(f"--seconds {seconds:g}: must be between 1 and 3600")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _end)
    screen = Screen()
    try:
        with (
            shared_folder(PROCESSES) as folder,
            demo_processes(folder, PROCESSES) as processes,
            connect(f"sqlite://{folder / worker.LOCKS}") as client,
        ):
            return Demo(screen, folder, processes, client, seconds).play()
    except Failed as failed:
        screen.line(f"\n{screen.paint('red', f'The demo has failed: {failed}')}")
        return 1
    finally:
        screen.close()


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
        self._client, self._seconds = client, seconds
        self._claims: list[tuple[bool, str]] = []

    def play(self) -> int:
        screen, paint = self._screen, self._screen.paint
        head = f"{paint('bold', 'lockfast')} · eight processes, one counter, no server "
        screen.line(head + paint("dim", "(SQLite)"))
        for process in self._processes:
            if process.reply() != ["ready"]:
                raise Failed(f"process {process.pid} did not start")
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
        for holds, claim in self._claims:
            screen.line(paint("green", f" ✓ {claim}") if holds else paint("red", f" ✗ {claim}"))
        return 0 if all(holds for holds, _ in self._claims) else 1

    def _scene(self, number: int, title: str) -> None:
        self._screen.line(f"\n{self._screen.paint('cyan', f'{number}')}  {title}")

    def _race(self, kind: str, share: float) -> None:
        seconds = self._seconds * share
        # The file is mapped, so it must not be truncated.
        with open(self._folder / worker.SCORES, "r+b") as scores_file:
            scores_file.write(bytes(worker.SLOT * PROCESSES))
        counter = os.open(self._folder / worker.COUNTER, os.O_RDWR)
        worker.write_counter(counter, 0, -1)
        start = clock.now() + 0.1
        for process in self._processes:
            process.send("race", kind, start, start + seconds)
        while (left := start + seconds - clock.now()) > 0:
            passed = max(seconds - left, 0.0)
            scores = self._scores()
            rate = f"{sum(scores) / max(passed, 0.05):,.0f} increments/s"
            status = self._screen.paint("dim", f"   {rate:<30} {left:10.1f} s to go")
            self._screen.live([*self._bars(scores, passed / seconds), status])
            time.sleep(min(FRAME, left))
        handovers = sum(int(process.reply()[1]) for process in self._processes)
        scores = self._scores()
        value, _ = worker.read_counter(counter)
        os.close(counter)
        lost = sum(scores) - value
        self._screen.live(self._bars(scores, 1.0), last=True)
        self._verdict(kind, scores, value, lost, handovers / seconds)

    def _verdict(
        self, kind: str, scores: list[int], value: int, lost: int, handovers: float
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
        self._claims.append((lost == 0 and value > 0, claim))

    def _scores(self) -> list[int]:
        data = (self._folder / worker.SCORES).read_bytes()
        slot = worker.SLOT
        return [int.from_bytes(data[at : at + slot]) for at in range(0, len(data), slot)]

    def _bars(self, scores: list[int], passed: float) -> list[str]:
        """Draw one bar per process. They grow with time; the longest is full at the end."""
        paint, most = self._screen.paint, max(*scores, 1)
        width = self._screen.width - 30
        return [
            f"   {paint('dim', f'pid {process.pid:<8}')} "
            f"{paint('yellow', self._screen.bar(passed * score / most, width))} {score:>10,}"
            for process, score in zip(self._processes, scores, strict=True)
        ]

    def _kill(self) -> None:
        paint, lease = self._screen.paint, 10.0
        queue = self._processes[: KILLS + 1]
        holder = queue[0]
        for position, process in enumerate(queue):
            process.send("hold", "prize", lease, PATIENCE)
            if position == 0:
                self._expect(process, "held")
            else:
                self._wait_for_queue(position)
        longest = 0.0
        for _ in range(KILLS):
            time.sleep(self._seconds / 30)
            queue.remove(holder)
            killed_at = clock.now()
            holder.signal(signal.SIGKILL)
            action = f"   {paint('red', f'kill -9 {holder.pid}')} (the holder)"
            self._screen.live([f"{action} …"])
            heir, reply = DemoProcess.next_reply(queue)
            if reply[0] != "held":
                raise Failed(f"process {heir.pid} replied {reply[0]} after the holder was killed")
            took = float(reply[2]) - killed_at
            longest = max(longest, took)
            later = f"holds the lock {paint('green', f'{took * 1000:.1f} ms')} later"
            self._screen.live([f"{action} → pid {heir.pid} {later}"], last=True)
            holder = heir
        holder.send("release")
        self._expect(holder, "released")
        claim = f"{KILLS} holders killed: at most {longest * 1000:.0f} ms until the next one"
        self._claims.append((longest < lease, claim))

    def _wait_for_queue(self, length: int) -> None:
        until = clock.now() + PATIENCE
        while len(self._client.inspect("prize").waiters) < length:
            if clock.now() > until:
                raise Failed("no process waits for the lock")
            time.sleep(0.01)

    def _sleep(self) -> None:
        paint = self._screen.paint
        sleeper, heir = self._processes[-2:]
        lease = max(0.5, self._seconds / 10)
        sleeper.send("hold", "account", lease, PATIENCE)
        old = int(self._expect(sleeper, "held")[1])
        terms = f"fence {_short(old)}, lease {lease:g} s"
        self._screen.line(f"   pid {sleeper.pid} holds the lock: {terms}")
        heir.send("hold", "account", lease, PATIENCE)
        sleeper.signal(signal.SIGSTOP)
        self._drain(sleeper, lease)
        new = int(self._expect(heir, "held")[1])
        heir.send("write", "the-heir")
        accepted = heir.reply() == ["accepted"]
        result = paint("green", "accepted" if accepted else "refused")
        terms = f"fence {_short(new)}, writes: {result}"
        self._screen.line(f"   pid {heir.pid} holds the lock: {terms}")
        sleeper.signal(signal.SIGCONT)
        sleeper.send("write", "the-sleeper")
        refused = sleeper.reply() == ["refused"]
        sleeper.send("release")
        knows = sleeper.reply() == ["lost"]
        heir.send("release")
        self._expect(heir, "released")
        result = paint("green", "refused") if refused else paint("red", "accepted")
        wakes = f"wakes up and writes with fence {_short(old)}"
        self._screen.line(f"   pid {sleeper.pid} {wakes}: {result}")
        with contextlib.closing(sqlite3.connect(self._folder / worker.WITNESS)) as witness:
            (text,) = witness.execute("SELECT text FROM account").fetchone()
        kept = accepted and refused and text == "the-heir" and new > old
        self._claims.append((kept, "the stale writer was refused by its fence"))
        self._claims.append((knows, "the stale writer learned that its hold is lost"))

    def _drain(self, sleeper: DemoProcess, lease: float) -> None:
        """Show the sleeper's lease running out."""
        until = clock.now() + lease
        action = f"   kill -STOP {sleeper.pid}: "
        while (left := until - clock.now()) > 0:
            bar = self._screen.paint("yellow", self._screen.bar(left / lease, 30))
            self._screen.live([f"{action}{bar} {left:.1f} s"])
            time.sleep(min(FRAME, left))
        self._screen.live([f"{action}its lease has expired"], last=True)

    def _expect(self, process: DemoProcess, expected: str) -> list[str]:
        reply = process.reply()
        if reply[0] != expected:
            raise Failed(f"process {process.pid} replied {reply[0]} instead of {expected}")
        return reply


def _short(fence: int) -> str:
    return f"…{fence % 10**9:09d}"


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
