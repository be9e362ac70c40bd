"""``@client.locked`` on sync and async functions, from a client of either API."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

from lab.conformance.adapters import AnyLock, maybe_await
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, ConfigurationError, LockfastError, aio, sync
from lockfast.runtime.threads import run


class Callee:
    """A callable that is not a function."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self) -> list[str]:
        return _names_now(self.world)


class AsyncCallee(Callee):
    async def __call__(self) -> list[str]:  # type: ignore[override]
        await asyncio.sleep(0)
        return _names_now(self.world)


class User:
    def __init__(self, id: int) -> None:
        self.id = id


@case()
async def test_a_decorated_function_runs_under_its_lock(world: World) -> None:
    client, other = world.client(), world.client()
    seen: list[list[str]] = []

    @client.locked("user:{user.id}", prefix="app")
    def plain(user: User, *, bonus: int = 1) -> int:
        """Add a bonus."""
        seen.append(_names_now(world))
        return user.id + bonus

    @client.locked(lambda user, bonus=1: f"app:user:{user.id}")
    async def coroutine(user: User, bonus: int = 1) -> int:
        seen.append(_names_now(world))
        await asyncio.sleep(0)
        return user.id + bonus

    assert plain.__doc__ == "Add a bonus." and inspect.iscoroutinefunction(coroutine)
    for function in (plain, coroutine):
        assert await world.result(function(User(7), bonus=2)) == 9
    assert seen == [["app:user:7"], ["app:user:7"]]
    assert not await other.names()


@case()
async def test_a_decorated_function_raises_or_is_skipped_when_its_lock_is_busy(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    ran: list[str] = []

    def plain(name: str) -> str:
        ran.append(name)
        return name

    async def coroutine(name: str) -> str:
        ran.append(name)
        return name

    for function in (plain, coroutine):
        raising = client.locked("{name}", timeout=0.05)(function)
        skipping = client.locked("{name}", on_busy="skip")(function)
        patient = client.locked("{name}", on_busy="skip", timeout=0.2)(function)
        hold = await other.lock("a").acquire(timeout=0)
        with raises(AcquireTimeout, "'a'"):
            await world.result(raising("a"))
        assert await world.result(skipping("a")) is None
        began = time.monotonic()
        assert await world.result(patient("a")) is None
        assert time.monotonic() - began >= 0.2
        assert not ran, "the body ran without the lock"
        await hold.release()
        for variant in (raising, skipping, patient):
            assert await world.result(variant("a")) == "a"
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

    assert await world.result(plain(3)) == await world.result(coroutine(3)) == 3


@case()
async def test_an_exception_of_a_decorated_function_propagates_and_releases_the_lock(
    world: World,
) -> None:
    client = world.client()

    @client.locked("a")
    def plain() -> None:
        raise ZeroDivisionError

    @client.locked("a")
    async def coroutine() -> None:
        raise ZeroDivisionError

    for function in (plain, coroutine):
        with raises(ZeroDivisionError):
            await world.result(function())
        assert not await client.names()


@case()
async def test_an_invalid_key_or_option_is_refused_at_decoration(world: World) -> None:
    client = world.client()

    def handle(user: User) -> None:
        raise AssertionError("the function ran")

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
async def test_any_callable_can_be_decorated_and_runs_under_the_lock(world: World) -> None:
    client = world.client()
    things: list[Any] = [
        Callee(world),
        AsyncCallee(world),
        Callee(world).__call__,
        functools.partial(AsyncCallee(world).__call__),
    ]
    for thing in things:
        assert await world.result(client.locked("a")(thing)()) == ["a"]
    assert not await client.names()


@case()
async def test_a_generator_cannot_be_decorated(world: World) -> None:
    client = world.client()

    def generator() -> Any:
        yield

    async def async_generator() -> Any:
        yield

    things: list[Any] = [generator, async_generator, functools.partial(generator)]
    for thing in things:
        with raises(ConfigurationError, "generator"):
            client.locked("a")(thing)
    things = [User, "handle", None]
    for thing in things:
        with raises(ConfigurationError, "decorates a function"):
            client.locked("a")(thing)


# The half that another client holds, and which halves may still run.
COMPATIBLE: list[tuple[str, dict[str, bool]]] = [
    ("", {"read": True, "write": True}),
    ("read", {"read": True, "write": False}),
    ("write", {"read": False, "write": False}),
]


@case()
async def test_decorated_readers_run_together_and_a_writer_runs_alone(world: World) -> None:
    client, other = world.client(), world.client()
    for held, allowed in COMPATIBLE:
        async with contextlib.AsyncExitStack() as stack:
            if held:
                await stack.enter_async_context(getattr(other.rwlock("a"), held)())
            for kind, may_run in allowed.items():
                for function in _both(lambda: "ran"):
                    terms: dict[str, Any] = {"kind": kind}
                    skipping = client.locked("a", on_busy="skip", **terms)(function)
                    raising = client.locked("a", timeout=0.05, **terms)(function)
                    assert await world.result(skipping()) == ("ran" if may_run else None)
                    if may_run:
                        assert await world.result(raising()) == "ran"
                    else:
                        with raises(AcquireTimeout, "'a'"):
                            await world.result(raising())


@case(needs="semaphore")
async def test_a_decorating_semaphore_lets_its_number_of_calls_run_together(world: World) -> None:
    client, other = world.client(), world.client()
    for taken in range(4):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(taken):
                await stack.enter_async_context(other.semaphore("a", 3))
            for function in _both(lambda: "ran"):
                skipping = client.locked("a", on_busy="skip", semaphore=3)(function)
                raising = client.locked("a", timeout=0.05, semaphore=3)(function)
                if taken < 3:
                    assert await world.result(skipping()) == await world.result(raising()) == "ran"
                else:
                    assert await world.result(skipping()) is None
                    with raises(AcquireTimeout, "'a'"):
                        await world.result(raising())


@case(needs="semaphore")
async def test_decorated_calls_overlap_as_far_as_their_kind_allows(world: World) -> None:
    client = world.client()
    ways: list[tuple[dict[str, Any], int]] = [
        ({"kind": "lock"}, 1),
        ({"kind": "write"}, 1),
        ({"kind": "read"}, 6),
        ({"semaphore": 1}, 1),
        ({"semaphore": 3}, 3),
    ]
    for number, (terms, most) in enumerate(ways):
        overlap = Overlap(world, most)
        decorate = client.locked(f"job {number}", timeout=SOON, **terms)
        called = decorate(overlap.async_body if world.api == "asyncio" else overlap.sync_body)

        async def call(called: Callable[[], Any] = called) -> None:
            await maybe_await(called())

        for task in [world.spawn(call) for _ in range(6)]:
            await task.join()
        assert overlap.seen == most, f"{terms}: {overlap.seen} calls ran together"


class Overlap:
    """Counts the calls that run together. The first waits a little for others, if permitted."""

    def __init__(self, world: World, most: int) -> None:
        self.world = world
        self.most = most
        self.inside: list[int] = []
        self.seen = 0

    async def async_body(self) -> None:
        self.inside.append(1)
        ends = time.monotonic() + (0.05 if self.seen else 2)
        while len(self.inside) < self.most and time.monotonic() < ends:
            await self.world.sleep(0.002)
        self.seen = max(self.seen, len(self.inside))
        await self.world.sleep(0.02)
        self.inside.pop()

    def sync_body(self) -> None:
        run(self.async_body())


@case()
async def test_an_invalid_kind_or_semaphore_is_refused_at_decoration(world: World) -> None:
    client = world.client()

    def handle() -> None:
        raise AssertionError("the function ran")

    bad: list[dict[str, Any]] = [
        {"kind": "reader"},
        {"kind": "READ"},
        {"kind": None},
        {"kind": ["read"]},
        {"semaphore": 0},
        {"semaphore": -1},
        {"semaphore": True},
        {"semaphore": 1.5},
        {"semaphore": "5"},
        {"semaphore": 2**31},
        {"semaphore": 5, "kind": "read"},
        {"semaphore": 5, "kind": "write"},
    ]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.locked("a", **terms)(handle)


@case()
async def test_closing_a_client_also_closes_the_counterpart_of_its_decorator(world: World) -> None:
    """A function of the other API makes the decorator create a second client."""
    client = world.client()

    @client.locked("a")
    def plain() -> str:
        return "ran"

    @client.locked("a")
    async def coroutine() -> str:
        return "ran"

    functions: list[Any] = [plain, coroutine]
    for function in functions:
        assert await world.result(function()) == "ran"
    await client.close()
    for function in functions:
        with raises(LockfastError, "closed"):
            await world.result(function())


@case()
async def test_the_default_client_is_created_from_the_environment_at_first_use(
    world: World,
) -> None:
    module: Any = aio if world.api == "asyncio" else sync
    other = world.client()
    before, module.default_client.client = module.default_client.client, None
    environment = os.environ.get("LOCKFAST_URL")

    plain = module.locked("b")(lambda: _names_now(world))
    try:
        assert module.default_client.client is None, "decorating created a client, at import"
        os.environ["LOCKFAST_URL"] = world.url
        async with AnyLock(module.lock("a", timeout=0)) as hold:
            assert hold.is_held and await other.names() == ["a"]
            assert await world.result(plain()) == ["a", "b"]
        assert module.default_client() is module.default_client()
        await maybe_await(module.default_client().close())
        async with AnyLock(module.lock("a", timeout=0)):
            pass  # a closed default client is replaced by a new one
    finally:
        await maybe_await(module.default_client().close())
        module.default_client.client = before
        os.environ.pop("LOCKFAST_URL")
        if environment is not None:
            os.environ["LOCKFAST_URL"] = environment


def _both(body: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Return the body as a sync and as an async function."""

    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return body()

    return [body, coroutine]


def _names_now(world: World) -> list[str]:
    """The names in use, read by a client of the sync API from any thread or task."""
    with sync.connect(world.url) as client:
        return client.names()
