"""``@client.locked``: on def and async def, of a client of either colour."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from typing import Any

from holdfast import AcquireTimeout, ConfigurationError, HoldfastError, aio, sync
from holdfast.testing.conformance.adapters import AnyLock, settled
from holdfast.testing.conformance.cases import case, raises
from holdfast.testing.conformance.worlds import World


class User:
    def __init__(self, id: int) -> None:
        self.id = id


@case()
async def test_a_decorated_function_runs_under_its_lock(world: World) -> None:
    client, other = world.client(), world.client()
    seen: list[list[str]] = []

    @client.locked("user:{user.id}", prefix="app")
    def plain(user: User, *, bonus: int = 1) -> int:
        """What it is for."""
        seen.append(_names_now(world))
        return user.id + bonus

    @client.locked(lambda user, bonus=1: f"app:user:{user.id}")
    async def coroutine(user: User, bonus: int = 1) -> int:
        seen.append(_names_now(world))
        await asyncio.sleep(0)
        return user.id + bonus

    assert plain.__doc__ == "What it is for." and inspect.iscoroutinefunction(coroutine)
    for function in (plain, coroutine):
        assert await world.call(function(User(7), bonus=2)) == 9
    assert seen == [["app:user:7"], ["app:user:7"]]
    assert not await other.names()


@case()
async def test_a_busy_decorated_function_raises_or_is_skipped(world: World) -> None:
    client, other = world.client(), world.client()
    ran: list[str] = []

    def plain(word: str) -> str:
        ran.append(word)
        return word

    async def coroutine(word: str) -> str:
        ran.append(word)
        return word

    for function in (plain, coroutine):
        raising = client.locked("{word}", timeout=0.05)(function)
        skipping = client.locked("{word}", on_busy="skip")(function)
        patient = client.locked("{word}", on_busy="skip", timeout=0.2)(function)
        hold = await other.lock("a").acquire(timeout=0)
        with raises(AcquireTimeout, "'a'"):
            await world.call(raising("a"))
        assert await world.call(skipping("a")) is None
        began = time.monotonic()
        assert await world.call(patient("a")) is None
        assert time.monotonic() - began >= 0.2
        assert not ran, "the body ran without the lock"
        await hold.release()
        for variant in (raising, skipping, patient):
            assert await world.call(variant("a")) == "a"
        assert len(ran) == 3
        ran.clear()
    assert not await other.names()


@case()
async def test_a_decorated_function_may_call_itself(world: World) -> None:
    client = world.client()

    @client.locked("a", timeout=1)
    def plain(depth: int) -> int:
        return 0 if depth == 0 else 1 + plain(depth - 1)

    @client.locked("a", timeout=1)
    async def coroutine(depth: int) -> int:
        return 0 if depth == 0 else 1 + await coroutine(depth - 1)

    assert await world.call(plain(3)) == await world.call(coroutine(3)) == 3


@case()
async def test_an_exception_of_a_decorated_function_passes_and_releases(world: World) -> None:
    client = world.client()

    @client.locked("a")
    def plain() -> None:
        raise ZeroDivisionError

    @client.locked("a")
    async def coroutine() -> None:
        raise ZeroDivisionError

    for function in (plain, coroutine):
        with raises(ZeroDivisionError):
            await world.call(function())
        assert not await client.names()


@case()
async def test_what_is_wrong_with_a_decoration_fails_at_decoration(world: World) -> None:
    client = world.client()

    def handle(user: User) -> None:
        raise AssertionError("it ran")

    for key in (
        "{usr.id}",
        "{user.__class__}",
        "{user.id()}",
        "{user!r}",
        "{user:>5}",
        "{}",
        "",
        "{",
    ):
        with raises(ConfigurationError):
            client.locked(key)(handle)
    bad: list[dict[str, Any]] = [{"on_busy": "wait"}, {"expire": 5}, {"lease": 0}, {"timeout": "5"}]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.locked("user:{user.id}", **terms)(handle)


@case()
async def test_closing_a_client_also_ends_what_its_decorator_made(world: World) -> None:
    """A function of the other colour makes a second client, behind the scenes."""
    client = world.client()

    @client.locked("a")
    def plain() -> str:
        return "ran"

    @client.locked("a")
    async def coroutine() -> str:
        return "ran"

    functions: list[Any] = [plain, coroutine]
    for function in functions:
        assert await world.call(function()) == "ran"
    await client.close()
    for function in functions:
        with raises(HoldfastError, "closed"):
            await world.call(function())


@case()
async def test_the_default_client_is_made_from_the_environment_at_first_use(world: World) -> None:
    module: Any = aio if world.face == "asyncio" else sync
    other = world.client()
    before, module.default_client.client = module.default_client.client, None
    environment = os.environ.get("HOLDFAST_URL")

    plain = module.locked("b")(lambda: _names_now(world))
    try:
        assert module.default_client.client is None, "decorating made a client, at import"
        os.environ["HOLDFAST_URL"] = world.url
        async with AnyLock(module.lock("a", timeout=0)) as hold:
            assert hold.is_held and await other.names() == ["a"]
            assert await world.call(plain()) == ["a", "b"]
        assert module.default_client() is module.default_client()
        await settled(module.default_client().close())
        async with AnyLock(module.lock("a", timeout=0)):
            pass  # a closed default client is made anew
    finally:
        await settled(module.default_client().close())
        module.default_client.client = before
        os.environ.pop("HOLDFAST_URL")
        if environment is not None:
            os.environ["HOLDFAST_URL"] = environment


def _names_now(world: World) -> list[str]:
    """What is in use, seen by a client of the blocking face, from wherever we are."""
    with sync.connect(world.url) as client:
        return client.names()
