"""Processes that work at the same time, each bounded in time and ended by its pid.

A fork server without threads starts them, so they inherit nothing from this process, and 64 of them
start in a second or two.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

T = TypeVar("T")
Ready = Callable[[], float]

STARTING_LIMIT = 60.0  # seconds; 64 processes on a busy machine
BEGIN_IN = 0.2  # seconds from the signal until all begin together

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "__main__",
        "lockfast",
        "lockfast.aio",
        "filelock",
        "redis.asyncio",
        "redis_lock",
        "kazoo.client",
    ]
)


def together(
    work: Callable[..., T],
    count: int,
    *arguments: object,
    lasts: float,
    meanwhile: Callable[[float], object] = lambda begin: None,
) -> list[T]:
    """Run ``work(index, ready, *arguments)`` in ``count`` processes and return their results.

    ``ready()`` returns when all are ready: the `time.monotonic` at which to begin. ``lasts`` is the
    time they should then need; ``meanwhile`` runs here while they work.
    """
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for index in range(count):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_member, args=(theirs, work, index, arguments))
            process.start()
            theirs.close()
            crew.append((process, ours))
        until = time.monotonic() + STARTING_LIMIT
        for _, pipe in crew:
            _answer(pipe, until)
        begin = time.monotonic() + BEGIN_IN
        for _, pipe in crew:
            pipe.send(begin)
        meanwhile(begin)
        until = begin + lasts + 20.0
        return [_answer(pipe, until) for _, pipe in crew]
    finally:
        _end(crew)


def wait_until(moment: float) -> None:
    """Sleep until that `time.monotonic`."""
    time.sleep(max(moment - time.monotonic(), 0.0))


def _member(
    pipe: Connection, work: Callable[..., Any], index: int, arguments: tuple[Any, ...]
) -> None:
    def ready() -> float:
        pipe.send((True, None))
        begin: float = pipe.recv()
        return begin

    try:
        pipe.send((True, work(index, ready, *arguments)))
    except EOFError:
        pass  # the benchmark has ended
    except Exception:  # raised where the result is read
        with contextlib.suppress(OSError):
            pipe.send((False, traceback.format_exc()))


def _answer(pipe: Connection, until: float) -> Any:
    if not pipe.poll(max(until - time.monotonic(), 0.0)):
        raise TimeoutError("a process of the benchmark did not answer in time")
    fine, answer = pipe.recv()
    if not fine:
        raise RuntimeError(f"a process of the benchmark failed:\n{answer}")
    return answer


def _end(crew: list[tuple[BaseProcess, Connection]]) -> None:
    for _, pipe in crew:
        pipe.close()
    until = time.monotonic() + 5.0
    for process, _ in crew:
        process.join(max(until - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join(5.0)
