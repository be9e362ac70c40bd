"""Worker processes of `lockfast bench`: started once, given one task per round.

Each worker has a process group of its own, so that Ctrl-C reaches only the command, which then
closes the pipes. A worker that has not left the queue and ended a few seconds later is killed.
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

from lockfast.cli import bench_worker
from lockfast.cli.bench_messages import Task, WorkerFailure, WorkerResult
from lockfast.errors import LockfastError

STARTING_LIMIT = 60.0  # loading and opening many connections takes long on a busy machine
BEGIN_IN = 0.05  # from sending the start time until all workers begin together
ENDING_LIMIT = 10.0  # leaving takes milliseconds; longer on a busy machine


class Stopped(LockfastError):
    """The measurement cannot continue."""


class WorkerProcess:
    """One worker (`bench_worker`) and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", bench_worker.__name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed when its reply is missing
            self.pipe.send(message)


class WorkerPool:
    """All workers. In a round the first few of them take part."""

    def __init__(self) -> None:
        self._workers: list[WorkerProcess] = []
        self._early: dict[Connection, object] = {}

    def start(self, processes: int) -> None:
        for _ in range(processes):
            self._workers.append(WorkerProcess())

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Send the tasks and wait until every contender has its connection."""
        for worker, task in zip(self._workers, tasks, strict=False):
            worker.send(task)
        self._replies(len(tasks), STARTING_LIMIT)

    def begin(self, workers: int, seconds: float) -> tuple[float, float]:
        """Start a round of this length; return its begin and end."""
        begin = time.monotonic() + BEGIN_IN
        for worker in self._workers[:workers]:
            worker.send((begin, begin + seconds))
        return begin, begin + seconds

    def watch(self, workers: int, until: float) -> None:
        """Wait while the workers measure. A message before the end is a failure or an end of file,
        and raises `Stopped`; if this process itself was late, it is a result, and is kept."""
        pipes = [worker.pipe for worker in self._workers[:workers]]
        for pipe in wait(pipes, max(until - time.monotonic(), 0.0)):
            assert isinstance(pipe, Connection)
            self._early[pipe] = self._receive(pipe)

    def results(self, workers: int, end: float) -> list[WorkerResult]:
        limit = end - time.monotonic() + 2 * bench_worker.PATIENCE + ENDING_LIMIT
        return self._replies(workers, limit)

    def _replies(self, workers: int, limit: float) -> list[Any]:
        """Collect one reply of each worker as they come; the first failure raises `Stopped`."""
        until = time.monotonic() + limit
        missing = {worker.pipe: index for index, worker in enumerate(self._workers[:workers])}
        replies: list[Any] = [None] * workers
        for early in list(self._early):
            replies[missing.pop(early)] = self._early.pop(early)
        while missing:
            ready = wait(list(missing), max(until - time.monotonic(), 0.0))
            if not ready:
                raise Stopped(f"no reply from a worker process of the benchmark in {limit:.0f} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                replies[missing.pop(pipe)] = self._receive(pipe)
        return replies

    @staticmethod
    def _receive(pipe: Connection) -> object:
        try:
            reply = pipe.recv()
        except (EOFError, OSError):
            raise Stopped("a worker process of the benchmark ended unexpectedly") from None
        if isinstance(reply, WorkerFailure):
            raise Stopped(reply.message)
        return reply

    def end(self) -> None:
        """End all workers, within a few seconds."""
        for worker in self._workers:
            worker.pipe.close()
        until = time.monotonic() + ENDING_LIMIT
        for worker in self._workers:
            try:
                worker.process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
