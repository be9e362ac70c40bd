"""The processes of `lockfast bench`: started once, told round by round, and gone with the command.

Each is in a group of its own: Ctrl-C is for the command, which then closes the pipes. Whoever has
not left the queue and ended a few seconds later is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from lockfast.cli import bench_worker as worker
from lockfast.cli.bench_messages import Noted, Task, Trouble
from lockfast.errors import LockfastError

# On a machine that is busy with other things: many connections, and a program to be loaded.
STARTING_LIMIT = 60.0
# From the word until all begin together.
BEGIN_IN = 0.05
# Leaving takes milliseconds; on a machine that is busy with other things, longer.
ENDING_LIMIT = 10.0


class Stopped(LockfastError):
    """The measurement cannot go on."""


class Member:
    """One process of ours (`bench_worker`)."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def tell(self, words: object) -> None:
        with contextlib.suppress(OSError):  # it is gone: noticed when its answer is missing
            self.pipe.send(words)


class Crew:
    """So many processes; in a round some of them take part."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._early: dict[Connection, object] = {}

    def start(self, processes: int) -> None:
        for _ in range(processes):
            self._members.append(Member())

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Every contender has its connection afterwards."""
        for member, task in zip(self._members, tasks, strict=False):
            member.tell(task)
        self._answers(len(tasks), STARTING_LIMIT)

    def begin(self, members: int, seconds: float) -> tuple[float, float]:
        """They contend for so long; when they begin, and when they end."""
        begin = time.monotonic() + BEGIN_IN
        for member in self._members[:members]:
            member.tell((begin, begin + seconds))
        return begin, begin + seconds

    def watch(self, members: int, until: float) -> None:
        """Let them work. Who has something to say before its time is in trouble, or gone; if we
        were late ourselves, it is an answer, and kept."""
        pipes = [member.pipe for member in self._members[:members]]
        for pipe in wait(pipes, max(until - time.monotonic(), 0.0)):
            assert isinstance(pipe, Connection)
            self._early[pipe] = self._heard(pipe)

    def results(self, members: int, end: float) -> list[Noted]:
        limit = end - time.monotonic() + 2 * worker.PATIENCE + ENDING_LIMIT
        return self._answers(members, limit)

    def _answers(self, members: int, limit: float) -> list[Any]:
        """One of each, in any order of arrival: the first that is in trouble stops it all."""
        until = time.monotonic() + limit
        missing: dict[Connection, int] = {
            member.pipe: index for index, member in enumerate(self._members[:members])
        }
        answers: list[Any] = [None] * members
        for early in list(self._early):
            answers[missing.pop(early)] = self._early.pop(early)
        while missing:
            ready = wait(list(missing), max(until - time.monotonic(), 0.0))
            if not ready:
                raise Stopped(f"no answer from a process of the benchmark in {limit:.0f} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                answers[missing.pop(pipe)] = self._heard(pipe)
        return answers

    @staticmethod
    def _heard(pipe: Connection) -> object:
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            raise Stopped("a process of the benchmark ended by itself") from None
        if isinstance(answer, Trouble):
            raise Stopped(answer.message)
        return answer

    def end(self) -> None:
        """All of them, in a few seconds at most."""
        for member in self._members:
            member.pipe.close()
        until = time.monotonic() + ENDING_LIMIT
        for member in self._members:
            try:
                member.process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        self._members.clear()
