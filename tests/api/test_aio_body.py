"""Body of an ``async with`` block: cancelled once if the hold is lost, whenever that is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockfast.aio
from lockfast.aio.hold import Hold
from lockfast.errors import HoldLost

LONG = 5.0


def in_a_loop(scene: Callable[[lockfast.aio.Client], Awaitable[None]]) -> None:
    async def work() -> None:
        async with lockfast.aio.connect("memory://") as client:
            await asyncio.wait_for(scene(client), LONG)

    asyncio.run(work())


def lose(client: lockfast.aio.Client, hold: Hold) -> None:
    client._core.ledger.lose(hold._held, "a test")


@pytest.mark.parametrize("moment", ["in the block", "before the block"])
@pytest.mark.parametrize("owner", [None, "custom"])
def test_the_body_is_cancelled_and_ends_in_hold_lost(owner: Any, moment: str) -> None:
    async def scene(client: lockfast.aio.Client) -> None:
        hold = await client.lock("a", owner=owner).acquire()
        if moment == "before the block":
            lose(client, hold)
        with pytest.raises(HoldLost):
            async with hold:
                if moment == "in the block":
                    lose(client, hold)
                await asyncio.sleep(LONG)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    in_a_loop(scene)


def test_a_loss_that_is_reported_twice_cancels_once() -> None:
    """The keeper may report a loss while the block begins, which checks the state itself."""

    async def scene(client: lockfast.aio.Client) -> None:
        cancelled = 0
        with pytest.raises(HoldLost):
            async with client.lock("a") as hold:
                lose(client, hold)
                stop = hold._held.stop_body
                assert stop is not None
                stop()
                for _ in range(2):
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        cancelled += 1
        task = asyncio.current_task()
        assert task is not None and (cancelled, task.cancelling()) == (1, 0)

    in_a_loop(scene)


def test_two_tasks_of_one_owner_are_both_cancelled() -> None:
    async def scene(client: lockfast.aio.Client) -> None:
        lock, inside = client.lock("a", owner="both"), asyncio.Barrier(3)

        async def work() -> None:
            async with lock:
                await inside.wait()
                await asyncio.sleep(LONG)

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await inside.wait()
        client._core.ledger.lose(next(iter(client._core.ledger.kept.values())), "a test")
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ended] == [HoldLost, HoldLost]

    in_a_loop(scene)


def test_a_loss_after_the_block_cancels_no_task() -> None:
    async def scene(client: lockfast.aio.Client) -> None:
        lock = client.lock("a")
        outer = await lock.acquire()
        async with lock:
            pass
        async with outer as again:
            await again.detach()
        lose(client, outer)
        await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        assert outer._held.stop_body is None

    in_a_loop(scene)


def test_a_lock_with_default_options_is_reused_and_any_other_is_new() -> None:
    async def scene(client: lockfast.aio.Client) -> None:
        plain = client.lock("a")
        assert client.lock("a") is plain
        options: tuple[dict[str, Any], ...] = (
            {"timeout": 1}, {"lease": 5}, {"renew": True}, {"max_hold": 9}, {"fair": False},
            {"owner": "me"}, {"label": "x"}, {"on_lost": print}, {"warn_after": 3},
        )  # fmt: skip
        for other in options:
            assert client.lock("a", **other) is not plain

        async def work() -> None:
            async with client.lock("a"):
                assert client.lock("a").is_held

        async with client.lock("a"), client.lock("a"):
            waiter = asyncio.create_task(work())
            await asyncio.sleep(0.01)
            assert plain.is_held and not waiter.done()
        await waiter
        assert not plain.is_held and not plain._entered

    in_a_loop(scene)
