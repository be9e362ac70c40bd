"""The short way of a backend for tasks (``claim_soon``, ``release_soon``), without a server."""

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
    """With a client of memory whose backend has a short way, which leads through the long one."""

    async def work() -> None:
        async with lockfast.aio.connect("memory://") as client:
            backend: Any = client._backend
            backend.claim_soon, backend.release_soon = backend.claim, backend.release
            backend.claim_said = lambda claim, reply: reply
            backend.release_said = lambda reply: reply
            client.core._claim_soon = backend.claim_soon
            await scene(client, backend)

    asyncio.run(work())


def test_those_who_listen_are_told_of_both_ends() -> None:
    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        told: list[Any] = []
        client.on_event(told.append)
        async with client.lock("a"):
            assert [type(event) for event in told] == [Acquired]
        assert [type(event) for event in told] == [Acquired, Released]

    in_a_loop(scene)


@pytest.mark.parametrize("short", [None, "an error"])
def test_what_the_short_way_does_not_know_the_long_one_is_asked(short: str | None) -> None:
    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        async def fails(*said: Any) -> Any:
            raise BackendError("it did not answer")

        way = (lambda *said: None) if short is None else fails
        client.core._claim_soon = backend.release_soon = way
        async with client.lock("a") as hold:
            assert (await client.inspect("a")).holders[0].fence == hold.fence
        assert not (await client.inspect("a")).holders

    in_a_loop(scene)


def test_a_release_that_nobody_awaits_to_its_end_ends_quietly() -> None:
    """A loop that is closed throws away what it was in the middle of: nothing may be asked then."""

    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        hold = await client.lock("a").acquire()
        backend.release_soon = lambda *said: asyncio.get_running_loop().create_future()
        backend.release = backend.leave = None  # whoever asked would not be quiet
        rest = client.core.release_soon(hold._held)
        assert rest is not None
        rest.send(None)
        rest.close()
        assert hold._held.state is RELEASED
        del backend.release, backend.leave

    in_a_loop(scene)


def test_an_acquire_that_nobody_awaits_to_its_end_ends_quietly() -> None:
    """The same: and who closes the client does not wait for it."""

    async def scene(client: lockfast.aio.Client, backend: Any) -> None:
        client.core._claim_soon = lambda *said: asyncio.get_running_loop().create_future()
        backend.claim = backend.leave = None  # whoever asked would not be quiet
        entering = client.lock("a").__aenter__()
        entering.send(None)
        assert client.core.ledger.asking
        entering.close()
        assert not client.core.ledger.asking and not client.core.ledger.kept
        del backend.claim, backend.leave

    in_a_loop(scene)
