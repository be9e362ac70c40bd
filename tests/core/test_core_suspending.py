"""The core on a store that suspends: every verb returns an awaitable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockfast.aio
from lockfast.core.ledger import RELEASED
from lockfast.core.ports import answer_of
from lockfast.errors import BackendError
from lockfast.events import Acquired, Released
from lockfast.stores.memory import MemoryStore

VERBS = ("claim", "renew", "release", "leave", "transfer", "inspect")


def suspending(verb: Callable[..., Any]) -> Callable[..., Any]:
    async def suspends(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return await answer_of(verb(*arguments))

    return suspends


def in_a_loop(scene: Callable[[lockfast.aio.Client, Any], Awaitable[None]]) -> None:
    """Run with a client of the memory store whose verbs suspend."""

    async def work() -> None:
        async with lockfast.aio.connect("memory://") as client:
            store: Any = client._core.store
            assert isinstance(store, MemoryStore)
            for verb in VERBS:
                setattr(store, verb, suspending(getattr(store, verb)))
            await scene(client, store)

    asyncio.run(work())


def test_listeners_receive_the_events_of_both_ends() -> None:
    async def scene(client: lockfast.aio.Client, store: Any) -> None:
        events: list[Any] = []
        client.on_event(events.append)
        async with client.lock("a"):
            assert [type(event) for event in events] == [Acquired]
        assert [type(event) for event in events] == [Acquired, Released]

    in_a_loop(scene)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", ["claim", "release"])
def test_a_first_request_without_a_reply_is_repeated(verb: str, moment: str) -> None:
    async def scene(client: lockfast.aio.Client, store: Any) -> None:
        real, asked = getattr(store, verb), []

        async def fails(*arguments: Any) -> Any:
            asked.append(arguments)
            if moment == "after":
                await real(*arguments)
            if len(asked) == 1:
                raise BackendError("it did not answer")
            return await real(*arguments)

        setattr(store, verb, fails)
        async with client.lock("a") as hold:
            assert (await client.inspect("a")).holders[0].fence == hold.fence
        assert len(asked) == 2 and not (await client.inspect("a")).holders

    in_a_loop(scene)


def never(*arguments: Any) -> Awaitable[Any]:
    return asyncio.get_running_loop().create_future()


def test_a_release_that_is_closed_midway_sends_no_request() -> None:
    """A loop that closes discards suspended coroutines: they must send no request then."""

    async def scene(client: lockfast.aio.Client, store: Any) -> None:
        hold = await client.lock("a").acquire()
        leave, store.release = store.leave, never
        rest = client._core.release(hold._held)
        assert rest is not None
        rest.send(None)
        store.release = store.leave = None  # a request would fail loudly
        rest.close()
        assert hold._held.state is RELEASED
        store.leave = leave

    in_a_loop(scene)


def test_an_acquire_that_is_closed_midway_sends_no_request() -> None:
    """A discarded acquire sends no request either, and closing the client does not wait for it."""

    async def scene(client: lockfast.aio.Client, store: Any) -> None:
        leave, store.claim = store.leave, never
        entering = client.lock("a").__aenter__()
        entering.send(None)
        assert client._core.ledger.asking
        store.claim = store.leave = None  # a request would fail loudly
        entering.close()
        assert not client._core.ledger.asking and not client._core.ledger.kept
        store.leave = leave

    in_a_loop(scene)


def test_a_cancelled_first_request_is_withdrawn() -> None:
    async def scene(client: lockfast.aio.Client, store: Any) -> None:
        claim, left = store.claim, store.leave
        withdrawn = []

        async def slow(*arguments: Any) -> Any:
            await claim(*arguments)  # granted, and nobody will know
            await asyncio.sleep(60)

        async def leave(claim: Any, budget: float) -> Any:
            withdrawn.append(claim)
            return await left(claim, budget)

        store.claim, store.leave = slow, leave
        acquiring = asyncio.create_task(client.lock("a").acquire())
        await asyncio.sleep(0.05)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert len(withdrawn) == 1 and not (await client.inspect("a")).holders

    in_a_loop(scene)
