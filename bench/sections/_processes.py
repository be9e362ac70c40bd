"""Functions of the sections in the worker processes of `lockfast bench`, started once a section."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from lockfast.cli.workers import WorkerPool, ready

T = TypeVar("T")
Ready = Callable[[], float]

pool = WorkerPool()
atexit.register(pool.end)


def together(
    work: Callable[..., T],
    count: int,
    *arguments: object,
    lasts: float,
    moments: Sequence[float] = (),
    observe: Callable[[], object] = lambda: None,
) -> list[T]:
    """Run ``work(index, ready, *arguments)`` in ``count`` processes and return their results.

    ``ready()`` returns when all are ready: the `time.monotonic` at which to begin. ``lasts`` is the
    time they should then need; ``observe`` is called here at these moments after the begin.
    """
    shares = [(work, index, arguments) for index in range(count)]
    return run(_work, shares, lasts=lasts, moments=moments, observe=observe)


def run(function: Callable[..., Any], shares: Sequence[tuple[Any, ...]], **options: Any) -> Any:
    """`WorkerPool.run`, after whose failure the next section finds new workers."""
    try:
        return pool.run(function, shares, **options)[1]
    except BaseException:
        pool.end()
        raise


def _work(pipe: Connection, work: Callable[..., T], index: int, arguments: tuple[Any, ...]) -> T:
    return work(index, partial(ready, pipe), *arguments)


def wait_until(moment: float) -> None:
    """Sleep until that `time.monotonic`."""
    time.sleep(max(moment - time.monotonic(), 0.0))
