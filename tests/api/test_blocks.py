"""Blocks that end elsewhere than where they began, in both APIs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import lockfast
import lockfast.aio
from lockfast.errors import NotHeld


def test_a_generator_that_another_thread_closes_gives_its_lock_back() -> None:
    def items(client: lockfast.Client) -> Iterator[int]:
        with client.lock("a"):
            yield from range(9)

    with lockfast.connect("memory://") as client:
        iterator = items(client)
        next(iterator)
        thread = threading.Thread(target=iterator.close)  # type: ignore[attr-defined]
        thread.start()
        thread.join()
        assert client.names() == [] and client.statistics().held == 0


def test_an_async_generator_left_by_break_gives_its_lock_back() -> None:
    async def items(client: lockfast.aio.Client) -> AsyncIterator[int]:
        async with client.lock("a"):
            for number in range(9):
                yield number

    async def scene() -> None:
        async with lockfast.aio.connect("memory://") as client:
            async for _ in items(client):
                break
            gc.collect()
            for _ in range(100):
                await asyncio.sleep(0.01)  # the loop closes the generator in a task of its own
                if not client.statistics().held:
                    break
            assert await client.names() == [] and client.statistics().held == 0

    asyncio.run(scene())


def test_blocks_of_one_lock_may_end_in_any_order() -> None:
    def block(lock: lockfast.Lock) -> Iterator[int]:
        with lock as hold:
            yield hold.fence

    with lockfast.connect("memory://") as client:
        first, second, third = (block(client.lock("a")) for _ in range(3))
        assert next(first) == next(second) == next(third)
        second.close()  # type: ignore[attr-defined]
        first.close()  # type: ignore[attr-defined]
        assert client.names() == ["a"]
        third.close()  # type: ignore[attr-defined]
        assert client.names() == []


def test_tasks_that_enter_one_lock_object_end_their_own_blocks() -> None:
    async def scene() -> None:
        async with lockfast.aio.connect("memory://") as client:
            lock, inside = client.lock("a"), []

            async def work(number: int) -> None:
                async with lock as hold:
                    inside.append(number)
                    assert len(inside) == 1 and hold.is_held
                    await asyncio.sleep(0)
                    inside.remove(number)

            await asyncio.gather(*(work(number) for number in range(50)))
            assert await client.names() == []

    asyncio.run(scene())


def test_a_block_entered_by_hand_ends_as_before() -> None:
    with lockfast.connect("memory://") as client:
        lock = client.lock("a")
        assert hasattr(lock, "__exit__")  # looked up, and not by a statement
        hold = lock.__enter__()
        assert hold.is_held
        lock.__exit__(None, None, None)
        with pytest.raises(NotHeld, match="did not enter"):
            lock.__exit__(None, None, None)
        with contextlib.ExitStack() as stack:
            inner = stack.enter_context(lock)
            assert inner.is_held and stack.enter_context(lock).fence == inner.fence
        assert client.names() == []
