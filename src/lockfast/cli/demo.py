"""`lockfast demo`: four acts on the embedded store, in a folder of their own.

1. Eight processes count one counter up without a lock: updates get lost.
2. The same with the lock: none. Everybody has the same share.
3. Holders are killed: the next in the queue goes on.
4. A holder sleeps longer than its lease, and then writes: its fence is refused.

The show checks what it claims: the exit code is 0 only if all of it came true.
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
from lockfast.cli.demo_processes import PATIENCE, Actor, Failed, actors, shared_folder
from lockfast.cli.screen import Screen
from lockfast.errors import ConfigurationError
from lockfast.sync import Client, connect

PROCESSES = 8
KILLS = 3
FRAME = 1 / 12


def show(*, seconds: float = 15.0) -> int:
    """The exit code."""
    if not 1 <= seconds <= 3600:
        raise ConfigurationError(f"--seconds {seconds:g}: between 1 and 3600")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _end)
    screen = Screen()
    try:
        with (
            shared_folder(PROCESSES) as folder,
            actors(folder, PROCESSES) as cast,
            connect(f"sqlite://{folder / worker.LOCKS}") as client,
        ):
            return Show(screen, folder, cast, client, seconds).play()
    except Failed as failed:
        screen.line(f"\n{screen.paint('red', f'The show has failed: {failed}')}")
        return 1
    finally:
        screen.close()


class Show:
    def __init__(
        self, screen: Screen, folder: Path, cast: list[Actor], client: Client, seconds: float
    ) -> None:
        self._screen = screen
        self._folder = folder
        self._cast = cast
        self._client = client
        self._seconds = seconds
        self._claims: list[tuple[bool, str]] = []

    def play(self) -> int:
        screen, paint = self._screen, self._screen.paint
        screen.line(
            f"{paint('bold', 'lockfast')} · eight processes, one counter, no server "
            + paint("dim", "(SQLite)")
        )
        for actor in self._cast:
            if actor.answer() != ["ready"]:
                raise Failed(f"process {actor.pid} did not start")
        self._act(1, "eight processes count up, without a lock")
        self._race("bare", 0.2)
        self._act(2, 'the same, inside  with lockfast.lock("counter"):')
        self._race("lock", 0.4)
        self._act(3, "kill -9 the holder while the others wait")
        self._kill()
        self._act(4, "a holder sleeps longer than its lease, then writes")
        self._sleep()
        return self._end()

    def _end(self) -> int:
        screen, paint = self._screen, self._screen.paint
        screen.line()
        for came_true, claim in self._claims:
            screen.line(paint("green", f" ✓ {claim}") if came_true else paint("red", f" ✗ {claim}"))
        return 0 if all(came_true for came_true, _ in self._claims) else 1

    def _act(self, number: int, title: str) -> None:
        self._screen.line(f"\n{self._screen.paint('cyan', f'{number}')}  {title}")

    # ---- 1 and 2: the race -----------------------------------------------------------------

    def _race(self, kind: str, share: float) -> None:
        seconds = self._seconds * share
        with open(self._folder / worker.SCORES, "r+b") as scores_file:  # it is mapped: never cut it
            scores_file.write(bytes(worker.SLOT * PROCESSES))
        counter = os.open(self._folder / worker.COUNTER, os.O_RDWR)
        worker.write_counter(counter, 0, -1)
        start = clock.now() + 0.1
        for actor in self._cast:
            actor.tell("race", kind, start, start + seconds)
        while (left := start + seconds - clock.now()) > 0:
            passed = max(seconds - left, 0.0)
            scores = self._scores()
            rate = f"{sum(scores) / max(passed, 0.05):,.0f} a second"
            told = self._screen.paint("dim", f"   {rate:<30} {left:10.1f} s to go")
            self._screen.live([*self._bars(scores, passed / seconds), told])
            time.sleep(min(FRAME, left))
        handovers = sum(int(actor.answer()[1]) for actor in self._cast)
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
        told = f"   {sum(scores):,} counted, the counter says {value:,}: "
        if kind == "bare":
            percent = f"{lost:,} updates lost ({100 * lost / max(sum(scores), 1):.0f} %)"
            self._screen.line(told + paint("red", percent))
            return
        self._screen.line(told + paint("green" if lost == 0 else "red", f"{lost:,} lost"))
        fair = 100 * min(scores) / max(*scores, 1)
        self._screen.line(
            f"   {handovers:,.0f} hand-overs a second · the last had {fair:.0f} % of the first"
        )
        self._claims.append((lost == 0 and value > 0, f"with the lock {lost} of {value:,} lost"))

    def _scores(self) -> list[int]:
        told = (self._folder / worker.SCORES).read_bytes()
        return [
            int.from_bytes(told[at : at + worker.SLOT]) for at in range(0, len(told), worker.SLOT)
        ]

    def _bars(self, scores: list[int], passed: float) -> list[str]:
        """They grow as the time passes; the longest is full when it is over."""
        paint, most = self._screen.paint, max(*scores, 1)
        width = self._screen.width - 30
        return [
            f"   {paint('dim', f'pid {actor.pid:<8}')} "
            f"{paint('yellow', self._screen.bar(passed * score / most, width))} {score:>10,}"
            for actor, score in zip(self._cast, scores, strict=True)
        ]

    # ---- 3: kill -9 ------------------------------------------------------------------------

    def _kill(self) -> None:
        paint, lease = self._screen.paint, 10.0
        queue = self._cast[: KILLS + 1]
        holder = queue[0]
        for position, actor in enumerate(queue):
            actor.tell("hold", "prize", lease, PATIENCE)
            if position == 0:
                self._expect(actor, "held")
            else:
                self._wait_for_queue(position)
        longest = 0.0
        for _ in range(KILLS):
            time.sleep(self._seconds / 30)
            queue.remove(holder)
            killed_at = clock.now()
            holder.signal(signal.SIGKILL)
            told = f"   {paint('red', f'kill -9 {holder.pid}')}, which held it"
            self._screen.live([f"{told} …"])
            heir, words = Actor.next_answer(queue)
            if words[0] != "held":
                raise Failed(f"process {heir.pid} said {words[0]} when the holder was killed")
            took = float(words[2]) - killed_at
            longest = max(longest, took)
            later = paint("green", f"{took * 1000:.1f} ms")
            self._screen.live([f"{told} → pid {heir.pid} holds it {later} later"], last=True)
            holder = heir
        holder.tell("release")
        self._expect(holder, "released")
        self._claims.append(
            (longest < lease, f"{KILLS} killed holders, {longest * 1000:.0f} ms to recover at most")
        )

    def _wait_for_queue(self, length: int) -> None:
        until = clock.now() + PATIENCE
        while len(self._client.inspect("prize").waiters) < length:
            if clock.now() > until:
                raise Failed("nobody waits for the lock")
            time.sleep(0.01)

    # ---- 4: the fence ----------------------------------------------------------------------

    def _sleep(self) -> None:
        paint = self._screen.paint
        sleeper, heir = self._cast[-2:]
        lease = max(0.5, self._seconds / 10)
        sleeper.tell("hold", "account", lease, PATIENCE)
        old = int(self._expect(sleeper, "held")[1])
        self._screen.line(f"   pid {sleeper.pid} holds it, fence {_short(old)}, lease {lease:g} s")
        heir.tell("hold", "account", lease, PATIENCE)
        sleeper.signal(signal.SIGSTOP)
        self._drain(sleeper, lease)
        new = int(self._expect(heir, "held")[1])
        heir.tell("write", "the-heir")
        accepted = heir.answer() == ["accepted"]
        self._screen.line(
            f"   pid {heir.pid} holds it, fence {_short(new)}, and writes: "
            + paint("green", "accepted" if accepted else "refused")
        )
        sleeper.signal(signal.SIGCONT)
        sleeper.tell("write", "the-sleeper")
        refused = sleeper.answer() == ["refused"]
        sleeper.tell("release")
        knows = sleeper.answer() == ["lost"]
        heir.tell("release")
        self._expect(heir, "released")
        self._screen.line(
            f"   pid {sleeper.pid} wakes up and writes under fence {_short(old)}: "
            + paint("green" if refused else "red", "refused" if refused else "accepted")
        )
        with contextlib.closing(sqlite3.connect(self._folder / worker.WITNESS)) as witness:
            (text,) = witness.execute("SELECT text FROM account").fetchone()
        kept = accepted and refused and text == "the-heir" and new > old
        self._claims.append((kept, "the stale writer was refused by its fence"))
        self._claims.append((knows, "and was told that its hold is lost"))

    def _drain(self, sleeper: Actor, lease: float) -> None:
        """The lease of the one who sleeps, running out."""
        until = clock.now() + lease
        told = f"   kill -STOP {sleeper.pid}: "
        while (left := until - clock.now()) > 0:
            bar = self._screen.paint("yellow", self._screen.bar(left / lease, 30))
            self._screen.live([f"{told}{bar} {left:.1f} s"])
            time.sleep(min(FRAME, left))
        self._screen.live([f"{told}its lease is over"], last=True)

    def _expect(self, actor: Actor, word: str) -> list[str]:
        words = actor.answer()
        if words[0] != word:
            raise Failed(f"process {actor.pid} said {words[0]} instead of {word}")
        return words


def _short(fence: int) -> str:
    return f"…{fence % 10**9:09d}"


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
