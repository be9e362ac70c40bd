"""Verbs of several requests, written once for both APIs.

Such a verb is a generator: it yields requests, receives their replies, and returns the answer. A
request that fails throws its error into the generator, which may handle it. The channel of a store
sends the requests: `perform` for threads, `perform_soon` for tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]


def perform(steps: Steps[T], send: Callable[[Any], Any]) -> T:
    """Run the steps, with a ``send`` that blocks and returns the reply."""
    try:
        request = next(steps)
        while True:
            try:
                reply = send(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def perform_soon(steps: Steps[T], send: Callable[[Any], Awaitable[Any]]) -> T:
    """Run the steps, with a ``send`` that returns an awaitable of the reply."""
    try:
        request = next(steps)
        while True:
            try:
                reply = await send(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()
