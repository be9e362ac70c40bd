"""Arguments of ``@client.once_every``: periods, names, callables of every kind."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from functools import partial
from typing import Any

from lab.conformance.cases import case, raises
from lab.conformance.locks import Traffic
from lab.conformance.once_every import apis, long_period, mark
from lab.conformance.worlds import World
from lockfast import ConfigurationError


@case()
async def test_arguments_and_results_pass_through_sync_and_async_functions(
    world: World,
) -> None:
    client = world.client()
    period = await long_period(client)

    @client.once_every(period)
    def plain(one: int, *rest: int, two: int = 2, **more: int) -> tuple[Any, ...]:
        """Return the arguments."""
        return one, rest, two, more

    @client.once_every(period)
    async def coroutine(one: int, *rest: int, two: int = 2, **more: int) -> tuple[Any, ...]:
        """Return the arguments."""
        await asyncio.sleep(0)
        return one, rest, two, more

    assert inspect.iscoroutinefunction(coroutine) and not inspect.iscoroutinefunction(plain)
    for function in (plain, coroutine):
        assert (
            function.__doc__ == "Return the arguments."
            and function.__name__ in function.__qualname__
        )
        assert await world.result(function(1, 3, 4, two=5, six=6)) == (1, (3, 4), 5, {"six": 6})
        assert await world.result(function(1)) is None


@case()
async def test_the_default_name_of_a_job_is_that_of_its_function(world: World) -> None:
    client, other = world.client(), world.client()
    period = await long_period(client)
    plain, coroutine = apis(lambda: "ran")
    for function in (plain, coroutine):
        assert await world.result(client.once_every(period)(function)()) == "ran", (
            "two functions share a name"
        )
        name = f"{function.__module__}.{function.__qualname__}"
        assert (await mark(other, name)).holders
        assert await world.result(other.once_every(period)(function)()) is None
        assert other.once_every(period, name=name)(lambda: "ran")() is None
        assert other.once_every(period, name=f"{name}x")(lambda: "ran")() == "ran"


@case()
async def test_a_job_and_a_lock_of_the_same_name_are_independent(world: World) -> None:
    client, other = world.client(), world.client()
    period = await long_period(client)

    @client.once_every(period, name="job")
    def job() -> str:
        inner = other.once_every(period, name="inner")(lambda: "inner")()
        return f"ran {inner}"

    async with client.lock("job") as hold:
        assert job() == "ran inner" and hold.is_held
        assert job() is None
    assert await client.lock("job").try_acquire() is not None
    assert await client.names() == ["job"], "a job is listed as a lock"


@case()
async def test_a_period_can_be_written_in_several_ways(world: World) -> None:
    client = world.client()
    ways: dict[Any, float] = {
        "90s": 90,
        "5m": 300,
        "1h30m": 5400,
        "1d": 86400,
        "1d2h3m4.5s": 93784.5,
        300: 300,
        299.5: 299.5,
        timedelta(minutes=7): 420,
    }
    for number, (period, seconds) in enumerate(ways.items()):
        rest = 0.0
        while rest < 5:  # a run across the end of a period would prove nothing
            now = (await client.inspect("clock")).now
            rest = seconds - now % seconds
            await world.sleep(0 if rest >= 5 else 0.2)
        assert client.once_every(period, name=f"job{number}")(lambda: "ran")() == "ran"
        seen = await mark(client, f"job{number}")
        (holder,) = seen.holders
        assert abs(holder.remaining - (seconds - seen.now % seconds)) < 3, period


@case()
async def test_invalid_once_every_arguments_are_refused_at_decoration(world: World) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)

    def job() -> None:
        raise AssertionError("the job ran")

    def generator() -> Any:
        yield

    async def async_generator() -> Any:
        yield

    periods: list[Any] = ["", "5", "5x", "m", "-5m", " 5m", "5 m", "5m,", "1e3s", "0s", "5M"]
    periods += [0, -1, 0.001, float("nan"), float("inf"), 1e18, True, None, [5], b"5m"]
    for period in periods:
        with raises(ConfigurationError, "period"):
            client.once_every(period)(job)
    bad: list[dict[str, Any]] = [
        {"at_least": -1},
        {"at_least": "x"},
        {"at_least": float("nan")},
        {"at_most": 0},
        {"at_most": "x"},
        {"at_most": True},
        {"name": ""},
        {"name": "a\0b"},
        {"name": b"a"},
        {"name": 5},
        {"name": "x" * 1001},
        {"label": 5},
    ]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.once_every("5m", **terms)(job)
    things: list[Any] = [generator, async_generator, partial(generator), World, "job", None]
    for thing in things:
        with raises(ConfigurationError):
            client.once_every("5m", name="job")(thing)
    for thing in (Job(), partial(job)):
        with raises(ConfigurationError, "name="):
            client.once_every("5m")(thing)
    assert not traffic.verbs


class Job:
    """A callable without a name."""

    def __call__(self) -> str:
        return "ran"


class AsyncJob:
    async def __call__(self) -> str:
        await asyncio.sleep(0)
        return "ran"


@case()
async def test_any_callable_with_a_name_can_be_a_job(world: World) -> None:
    client = world.client()
    period = await long_period(client)
    plain, coroutine = apis(lambda: "ran")
    things: list[Any] = [Job(), AsyncJob(), partial(plain), partial(coroutine), Job().__call__]
    for number, thing in enumerate(things):
        job = client.once_every(period, name=f"job{number}")(thing)
        assert await world.result(job()) == "ran"
        assert await world.result(job()) is None
