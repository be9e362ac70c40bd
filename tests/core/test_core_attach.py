"""Attaching a detached hold: lost replies, wrong texts, cancellation, two callers with one text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.errors import BackendError, NotHeld


@pytest.fixture
def pair():
    """Two clients of one store, on the same thread."""
    url = "memory://attach"
    with lockfast.connect(url) as one, lockfast.connect(url) as other:
        yield one, other
        assert one.names() == []


def detached(client: lockfast.Client, name: str = "a", **terms: Any) -> tuple[str, int]:
    hold = client.lock(name, **terms).acquire()
    return hold.detach(), hold.fence


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_attach_without_a_reply_is_repeated(pair, moment):
    one, other = pair
    text, fence = detached(one)
    transfer, asked = other._core.store.transfer, []

    def fails(*arguments: Any) -> Any:
        asked.append(arguments)
        if moment == "after":
            transfer(*arguments)
        if len(asked) == 1:
            raise BackendError("it did not answer")
        return transfer(*arguments)

    other._core.store.transfer = fails
    with other.attach("a", text) as hold:
        assert hold.fence == fence and hold.is_held
    assert len(asked) == 2


def test_of_two_callers_with_one_text_only_one_gets_the_hold(pair):
    one, other = pair
    text, _ = detached(one)
    with other.attach("a", text) as hold:
        for client in pair:
            with pytest.raises(NotHeld, match="cannot be taken over"):
                client.attach("a", text)
        assert hold.is_held


def test_the_holder_is_shown_without_the_mark_of_its_attempt(pair):
    one, other = pair
    for label in ("", "my label"):
        text, _ = detached(one)
        with other.attach("a", text, label=label):
            who = other.inspect("a").holders[0].who
            assert (who.thread, who.label) == ("MainThread", label)


def test_a_text_with_a_wrong_fence_leaves_the_hold_to_its_owner(pair):
    one, other = pair
    text, fence = detached(one)
    with pytest.raises(NotHeld, match="cannot be taken over"):
        other.attach("a", text.replace(f":{fence}:", f":{fence + 1}:"))
    assert other.statistics().held == 0
    with other.attach("a", text) as hold:
        assert hold.fence == fence


def test_a_cancelled_attach_leaves_the_hold_detached():
    async def scene() -> None:
        async with lockfast.aio.connect("memory://") as client:
            text = await (await client.lock("a").acquire()).detach()
            store: Any = client._core.store
            transfer = store.transfer

            async def slowly(claim: Any, attached: bool, budget: float) -> Any:
                answer = transfer(claim, attached, budget)
                if attached:
                    await asyncio.sleep(60)
                return answer

            store.transfer = slowly
            attaching = asyncio.create_task(client.attach("a", text))
            await asyncio.sleep(0.05)
            attaching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attaching
            store.transfer = transfer
            assert client.statistics().held == 0
            async with await client.attach("a", text) as hold:
                assert hold.is_held

    asyncio.run(scene())


@pytest.mark.parametrize("known", [True, False])
def test_a_hold_that_cannot_be_detached_again_is_left_to_its_lease(pair, known):
    one, other = pair
    text, fence = detached(one)
    store = other._core.store
    transfer = store.transfer

    def fails(claim: Any, attached: bool, budget: float) -> Any:
        if attached:
            return transfer(claim, attached, budget)
        raise BackendError("away")

    store.transfer, store.in_session = fails, known  # in a session, the keeper withdraws it
    with pytest.raises(NotHeld):
        other.attach("a", text.replace(f":{fence}:", f":{fence + 1}:"))
    assert bool(other._core.ledger.withdrawals) is known
    other.break_hold("a", fence)
