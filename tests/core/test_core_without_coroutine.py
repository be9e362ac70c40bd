"""The fast path of the async API (``claim_soon``, ``release_soon``), without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockfast.aio
from lockfast.core.ledger import RELEASED
from lockfast.errors import BackendError
from lockfast.events import Acquired, Released


def in_a_loop(scene: Callable[[lockfast.aio.Client, Any], Awaitable[None]]) -> None:
    """Run with a memory client whose backend has the fast path, built on the ordinary verbs."""

    async def work() -> None:
        async with lockfast.aio.connect("memory://") as client:
            backend: Any = client._backend
            backend.claim_soon, backend.release_soon = backend.claim, backend.release
            backend.claim_result = lambda claim, reply: reply
            backend.release_result = lambda reply: reply
            client.core._claim_soon = backend.claim_soon
            await scene(client, backend)

    asyncio.run(work())


def test_listeners_receive_the_events_of_both_ends() -> None:
    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        events: list[Any] = []
        client.on_event(events.append)
        async with client.lock("a"):
            assert [type(event) for event in events] == [Acquired]
        assert [type(event) for event in events] == [Acquired, Released]

    in_a_loop(scene)


@pytest.mark.parametrize("outcome", [None, "an error"])
def test_an_unknown_outcome_of_the_fast_path_falls_back_to_the_coroutine(
    outcome: str | None,
) -> None:
    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        async def fails(*args: Any) -> Any:
            raise BackendError("it did not answer")

        fast = (lambda *args: None) if outcome is None else fails
        client.core._claim_soon = backend.release_soon = fast
        async with client.lock("a") as hold:
            assert (await client.inspect("a")).holders[0].fence == hold.fence
        assert not (await client.inspect("a")).holders

    in_a_loop(scene)


def test_a_release_that_is_closed_midway_sends_no_request() -> None:
    """A loop that closes discards suspended coroutines: they must send no request then."""

    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        hold = await client.lock("a").acquire()
        backend.release_soon = lambda *args: asyncio.get_running_loop().create_future()
        backend.release = backend.leave = None  # a request would fail loudly
        rest = client.core.release_soon(hold._held)
        assert rest is not None
        rest.send(None)
        rest.close()
        assert hold._held.state is RELEASED
        del backend.release, backend.leave

    in_a_loop(scene)


def test_an_acquire_that_is_closed_midway_sends_no_request() -> None:
    """A discarded acquire sends no request either, and closing the client does not wait for it."""

    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        client.core._claim_soon = lambda *args: asyncio.get_running_loop().create_future()
        backend.claim = backend.leave = None  # a request would fail loudly
        entering = client.lock("a").__aenter__()
        entering.send(None)
        assert client.core.ledger.asking
        entering.close()
        assert not client.core.ledger.asking and not client.core.ledger.kept
        del backend.claim, backend.leave

    in_a_loop(scene)
