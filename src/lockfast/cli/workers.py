"""Worker processes of `lockfast bench`, of `lockfast demo`, and of the repository's benchmarks.

A worker runs the functions that it receives through its pipe, one after the other:

    (function, arguments)   call ``function(pipe, *arguments)``. Reply: its result, or a `Failure`
    ready(pipe)             called by such a function: reply True, and receive the time to begin
    end of file             exit: a worker cannot outlive the command

Each worker has a process group of its own, so that Ctrl-C reaches only the command, which then
closes the pipes. (`multiprocessing` starts its processes in our group, beside one of its own.)
Arguments come through the pipe, so a password is not in the process list. Times are on
CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from lockfast.errors import LockfastError

STARTING_LIMIT = 60.0  # loading and opening many connections takes long on a busy machine
BEGIN_IN = 0.1  # from sending the start time until all workers begin together
ENDING_LIMIT = 10.0  # leaving takes milliseconds; longer on a busy machine
# Not `-m`: the classes below would be those of `__main__`, which the command cannot unpickle.
PROGRAM = "from lockfast.cli.workers import main; main()"

now = time.monotonic


class Stopped(LockfastError):
    """The measurement cannot continue."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in a worker, as one line of text and as a traceback."""

    message: str
    details: str


class Worker:
    """One worker process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self.send(sys.path)  # to find the functions where we find them

    def send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed when its reply is missing
            self.pipe.send(message)

    def end(self, limit: float = 0.0) -> None:
        """Let the worker end; kill it if it has not done so by then, even if it is stopped."""
        self.pipe.close()
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Workers that are kept for several rounds. In a round the first few of them take part."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[object, ...]],
        *,
        lasts: float,
        moments: Sequence[float] = (),
        observe: Callable[[], object] = lambda: None,
    ) -> tuple[float, list[Any]]:
        """Call the function in as many workers as there are tuples of arguments.

        All have called `ready` before any of them begins. ``observe`` is called here at these
        ``moments``, in seconds after the begin, and ``lasts`` limits the time until the last
        result. Returns the time of the begin, and the results.
        """
        while len(self._workers) < len(arguments):
            self._workers.append(Worker())
        workers = self._workers[: len(arguments)]
        for worker, share in zip(workers, arguments, strict=True):
            worker.send((function, share))
        _replies(workers, now() + STARTING_LIMIT)
        begin = now() + BEGIN_IN
        for worker in workers:
            worker.send(begin)
        due = [begin + moment for moment in moments]
        return begin, _replies(workers, begin + lasts + ENDING_LIMIT, due, observe)

    def end(self) -> None:
        """End all workers, within a few seconds."""
        until = now() + ENDING_LIMIT
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end(max(until - now(), 0.0))
        self._workers.clear()


def _replies(
    workers: Sequence[Worker],
    until: float,
    due: Sequence[float] = (),
    observe: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Collect one reply of each worker as they come, observing when it is due. The first failure
    raises `Stopped`, at once: the round may have minutes to go."""
    limit, pending = until - now(), list(due)
    missing = {worker.pipe: index for index, worker in enumerate(workers)}
    replies: list[Any] = [None] * len(workers)
    while missing or pending:
        arrived = wait(list(missing), max((pending or [until])[0] - now(), 0.0))
        for pipe in arrived:
            assert isinstance(pipe, Connection)
            replies[missing.pop(pipe)] = _receive(pipe)
        if arrived:
            continue
        if not pending:
            raise Stopped(f"no reply from a worker process of the benchmark in {limit:.0f} s")
        pending.pop(0)
        observe()
    return replies


def _receive(pipe: Connection) -> object:
    try:
        reply = pipe.recv()
    except (EOFError, OSError):
        raise Stopped("a worker process of the benchmark ended unexpectedly") from None
    if isinstance(reply, Failure):
        stopped = Stopped(reply.message)
        stopped.add_note(reply.details)
        raise stopped
    return reply


# ---- in a worker ----------------------------------------------------------------------------


def ready(pipe: Connection) -> float:
    """Wait until all workers of the round are ready; return the time to begin."""
    pipe.send(True)
    begin: float = pipe.recv()
    return begin


def pause(pipe: Connection, seconds: float) -> None:
    """Sleep. No message is due in a round, so data on the pipe can only be the end of file."""
    if pipe.poll(seconds):
        raise EOFError


def error_line(error: BaseException) -> str:
    """Format an error in one line; the messages of our own errors need no type name."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LockfastError) else f"{type(error).__name__}: {text}"


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    with contextlib.suppress(EOFError, OSError):  # the command has ended
        sys.path[:] = pipe.recv()
        while True:
            function, arguments = pipe.recv()
            try:
                reply = function(pipe, *arguments)
            except EOFError:
                return
            except Exception as error:  # the edge of a process: the parent reports it
                reply = Failure(error_line(error), traceback.format_exc())
            pipe.send(reply)
