"""A blocking client in an event loop: it blocks all tasks of the loop while it waits."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import lockfast
from lockfast import WouldDeadlock
from lockfast.runtime import threads

pytestmark = pytest.mark.filterwarnings("ignore:a blocking call:RuntimeWarning")
LONG = 10.0


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://") as client:
        yield client


Entered = AbstractContextManager[Any]
PAIRS: dict[str, Callable[[lockfast.Client], tuple[Entered, Entered]]] = {
    "lock": lambda client: (client.lock("a"), client.lock("a")),
    "options": lambda client: (client.lock("a"), client.lock("a", timeout=LONG)),
    "write": lambda client: (client.rwlock("a").read(), client.rwlock("a").write()),
    "read": lambda client: (client.rwlock("a").write(), client.rwlock("a").read()),
    "multi-lock": lambda client: (client.multi_lock("a", "b"), client.multi_lock("c", "b")),
    "semaphore": lambda client: (client.semaphore("a", 1), client.semaphore("a", 1)),
    "election": lambda client: (client.election("a").lead(), client.election("a").lead()),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_task_that_would_wait_for_another_task_of_its_loop_is_refused(
    client: lockfast.Client, kind: str
) -> None:
    first, second = PAIRS[kind](client)

    async def hold(inside: asyncio.Event, over: asyncio.Event) -> None:
        with first:
            inside.set()
            await over.wait()

    async def scene() -> None:
        inside, over = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold(inside, over))
        await inside.wait()
        with pytest.raises(WouldDeadlock, match="task"), second:
            pass
        assert not [name for name in client.names() if client.inspect(name).waiters]
        over.set()
        await holder
        with second:
            pass

    asyncio.run(scene())
    assert client.names() == []


def test_a_task_that_would_wait_for_its_own_thread_is_refused(client: lockfast.Client) -> None:
    async def scene() -> None:
        with pytest.raises(WouldDeadlock), client.lock("a"):
            pass

    with client.lock("a"):
        asyncio.run(scene())


def test_a_call_that_does_not_wait_is_not_refused(client: lockfast.Client) -> None:
    async def scene() -> None:
        async def other() -> None:
            assert client.lock("a").try_acquire() is None
            with pytest.raises(lockfast.AcquireTimeout):
                client.lock("a").acquire(timeout=0)
            with client.lock("b"), client.semaphore("c", 2):
                pass

        with client.lock("a"), client.semaphore("c", 2):
            await asyncio.create_task(other())
            with client.lock("a"):
                pass

    asyncio.run(scene())


def test_a_task_may_wait_for_a_holder_that_can_go_on(client: lockfast.Client) -> None:
    """Another thread, a task of another loop, or a semaphore of which others hold a permit."""
    inside, over = threading.Event(), threading.Event()

    async def hold(lock: Entered) -> None:
        with lock:
            inside.set()
            while not over.is_set():  # noqa: ASYNC110 (another loop sets it)
                await asyncio.sleep(0.001)

    async def wait(lock: Entered) -> None:
        threading.Timer(0.05, over.set).start()
        with lock:
            pass

    async def with_a_permit() -> None:
        with client.semaphore("a", 2):
            await asyncio.create_task(wait(client.semaphore("a", 2)))

    works: list[tuple[Entered, Callable[[], Awaitable[None]]]] = [
        (client.lock("a"), lambda: wait(client.lock("a"))),
        (client.semaphore("a", 2), with_a_permit),
    ]
    for held, work in works:
        inside.clear(), over.clear()

        async def scene(work: Callable[[], Awaitable[None]] = work) -> None:
            await asyncio.wait_for(work(), LONG)

        async def other(held: Entered = held) -> None:
            await hold(held)

        thread = threading.Thread(target=lambda other=other: asyncio.run(other()))
        thread.start()
        assert inside.wait(LONG)
        asyncio.run(scene())
        thread.join(LONG)


def test_a_blocking_call_in_a_running_loop_warns_once(
    client: lockfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_warned", False)

    async def scene() -> None:
        for name in ("a", "b"):
            with client.lock(name):
                pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with client.lock("a"):
            pass
        assert not caught
        asyncio.run(scene())
    (warning,) = caught
    assert warning.category is RuntimeWarning and warning.filename == __file__
    assert "lockfast.aio" in str(warning.message)


def test_the_async_client_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_warned", False)

    async def scene() -> None:
        async with lockfast.aio.connect("memory://") as client, client.lock("a"):
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(scene())
