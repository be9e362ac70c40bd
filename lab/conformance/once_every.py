"""``@client.once_every("5m")``: one of all callers runs in each period of the store's clock."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from lab.conformance.adapters import AnyClient
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.latches import Failing
from lab.conformance.worlds import World
from lockfast import BackendError, HoldLost


async def long_period(client: AnyClient) -> int:
    """A period that does not end while a case runs."""
    now = (await client.inspect("clock")).now
    return next(period for period in (3600, 4001, 4999) if period - now % period > 100)


async def period_now(client: AnyClient, period: float) -> int:
    """The number of the period, or 0 close to its ends: marks are exact to some milliseconds."""
    number, rest = divmod((await client.inspect("clock")).now, period)
    return int(number) if min(rest, period - rest) > 0.2 else 0


async def mark(client: AnyClient, name: str) -> Any:
    """The record of a job's last run, which the store keeps apart from the names of locks."""
    return await client.raw._core.inspect(f"default+once:{name}")


def apis(body: Callable[[], Any], seconds: float = 0) -> list[Callable[[], Any]]:
    """Return the body as a sync and as an async function that take this many seconds."""

    def plain() -> Any:
        time.sleep(seconds)
        return body()

    async def coroutine() -> Any:
        await asyncio.sleep(seconds)
        return body()

    return [plain, coroutine]


@case()
async def test_one_of_several_callers_runs_and_the_others_get_none(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    period = await long_period(clients[0])
    ran: list[str] = []

    async def call(client: AnyClient) -> Any:
        if world.api == "asyncio":

            @client.once_every(period, name="job")
            async def job() -> str:
                ran.append("ran")
                await asyncio.sleep(0.1)  # some callers find it running, others that it ran
                return "result"

            return await job()

        @client.once_every(period, name="job")
        def blocking_job() -> str:
            ran.append("ran")
            time.sleep(0.1)
            return "result"

        return blocking_job()

    results = []
    for _ in range(2):
        tasks = [world.spawn(call, client) for client in clients * 3]
        results += [await task.join() for task in tasks]
    assert ran == ["ran"] and sorted(map(str, results)) == ["None"] * 17 + ["result"]


@case(processes=True)
async def test_one_of_several_processes_runs(world: World) -> None:
    client = world.client()
    children = [world.child() for _ in range(3)]
    terms = {"name": "job", "period": await long_period(client), "lease": 30, "work": 0.1}
    for _ in range(2):
        for child in children:
            child.send("once", **terms)
    replies = [await world.blocking(child.receive) for child in children * 2]
    (ran,) = [pid for pid in replies if pid is not None]
    assert ran in [child.pid for child in children]
    assert client.once_every(terms["period"], name="job")(lambda: "again")() is None


@case()
async def test_a_job_runs_once_in_each_period(world: World) -> None:
    client, other = world.client(), world.client()
    period, judged, last = 2, 0, 0
    for number in itertools.count():
        assert number < 10, "too slow a machine: no round stayed within one period"

        async def is_new(last: int = last) -> bool:
            return await period_now(client, period) > last

        await world.until(is_new)
        last = await period_now(client, period)
        results = [
            await world.result(each.once_every(period, name="job")(function)())
            for each in (client, other)
            for function in apis(lambda: "ran")
        ]
        # A round across the end of a period proves nothing.
        if await period_now(client, period) == last:
            assert results == ["ran", None, None, None], results
            judged += 1
        if judged == 3:
            break


@case()
async def test_a_job_does_not_run_again_before_at_least_has_passed(world: World) -> None:
    client, other = world.client(), world.client()
    for number, function in enumerate(apis(time.monotonic)):
        terms: dict[str, Any] = {"name": f"job{number}", "at_least": "2.5s"}
        began = time.monotonic()
        assert await world.result(client.once_every(0.5, **terms)(function)()) is not None
        again = other.once_every(0.5, **terms)(function)

        async def runs(again: Any = again) -> float | None:
            result: float | None = await world.result(again())
            return result

        ran = await world.until(runs)
        assert ran - began >= 2.5 * 0.98, f"the job ran again after {ran - began} s"


@case()
async def test_a_call_while_the_job_runs_returns_at_once(world: World) -> None:
    client, other = world.client(), world.client()
    period = await long_period(client)
    for number in range(2):
        seen: list[Any] = []
        name = f"job{number}"

        def meanwhile(seen: list[Any] = seen, name: str = name) -> str:
            began = time.monotonic()
            for each in (other, client):  # another client, and the one that runs it
                seen.append(each.once_every(period, name=name)(lambda: "twice")())
            assert time.monotonic() - began < 5
            return "ran"

        function = apis(meanwhile)[number]
        assert await world.result(client.once_every(period, name=name)(function)()) == "ran"
        assert seen == [None, None]


@case()
async def test_a_run_longer_than_at_most_loses_its_hold_and_another_may_run(world: World) -> None:
    client, other = world.client(), world.client()
    period = await long_period(client)
    events: list[str] = []

    def plain() -> str:
        time.sleep(1.5)
        events.append(other.once_every(period, name="plain", at_most=20)(lambda: "another")())
        return "too late"

    async def coroutine() -> str:
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return "too late"

    with raises(HoldLost, "'plain'", "max_hold"):
        await world.result(client.once_every(period, name="plain", at_most=0.5)(plain)())
    with raises(HoldLost, "'coroutine'", "max_hold"):
        await world.result(client.once_every(period, name="coroutine", at_most=0.5)(coroutine)())
    assert events == ["another", "cancelled"]
    for function in apis(lambda: "another"):
        again = other.once_every(period, name="plain")(function)
        assert await world.result(again()) is None, "the second run did not count"

    async def another() -> Any:
        return other.once_every(period, name="coroutine")(lambda: "another")()

    assert await world.until(another) == "another"


@case()
async def test_a_run_longer_than_its_lease_and_period_excludes_other_runs(world: World) -> None:
    client, other = world.client(lease=0.9), world.client()
    seen: list[Any] = []

    def meanwhile() -> str:
        seen.append(other.once_every(0.5, name="job")(lambda: "together")())
        return "ran"

    for function in apis(meanwhile, seconds=1.5):
        assert await world.result(client.once_every(0.5, name="job")(function)()) == "ran"
    assert seen == [None, None]


@case(processes=True)
async def test_a_caller_that_dies_during_its_run_is_replaced_in_the_same_period(
    world: World,
) -> None:
    client, child = world.client(), world.child()
    period = await long_period(client)
    child.send("once", name="job", period=period, lease=2, work=60)

    async def works() -> bool:
        return bool((await mark(client, "job")).holders)

    async def another() -> Any:
        return client.once_every(period, name="job")(lambda: "ran")()

    await world.until(works)
    assert await another() is None
    child.kill()
    assert await world.until(another) == "ran" and await another() is None


@case()
async def test_a_run_that_raises_counts_as_a_run(world: World) -> None:
    client, other = world.client(), world.client()
    period = await long_period(client)

    def fail() -> None:
        raise ZeroDivisionError("mine")

    for number, function in enumerate(apis(fail)):
        name = f"job{number}"
        with raises(ZeroDivisionError, "mine"):
            await world.result(client.once_every(period, name=name)(function)())
        for again in apis(lambda: "again"):
            assert await world.result(other.once_every(period, name=name)(again)()) is None


@case()
async def test_an_exception_of_the_job_propagates_even_when_the_hold_is_lost(world: World) -> None:
    client = world.client()
    period = await long_period(client)

    async def stubborn() -> None:
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            raise ZeroDivisionError("mine") from None

    def plain() -> None:
        time.sleep(0.6)
        raise ZeroDivisionError("mine")

    functions: list[Any] = [plain, stubborn]
    for number, function in enumerate(functions):
        job = client.once_every(period, name=f"job{number}", at_most=0.3)(function)
        with raises(ZeroDivisionError, "mine") as caught:
            await world.result(job())
        assert "is lost" in "".join(caught.error.__notes__), "the loss is missing in the notes"


@case()
async def test_lost_replies_do_not_cause_a_second_run(world: World) -> None:
    other = world.client()
    period = await long_period(other)
    for verb in ("claim", "transfer"):
        for number, function in enumerate(apis(lambda: "ran")):
            lost = Failing(verb)
            name = f"{verb} {number}"
            job = world.client(hook=lost).once_every(period, name=name)(function)
            assert await world.result(job()) == "ran"
            assert lost.sent == 2, "no reply was lost: the case tests nothing"
            assert other.once_every(period, name=name)(lambda: "twice")() is None, verb


@case()
async def test_a_run_that_failed_to_begin_leaves_the_period_to_others(world: World) -> None:
    other = world.client()
    period = await long_period(other)
    for number, function in enumerate(apis(lambda: "ran")):
        broken = world.client(hook=Failing("inspect", times=2))  # inspect is retried once
        with raises(BackendError):
            await world.result(broken.once_every(period, name=f"job{number}")(function)())
        assert other.once_every(period, name=f"job{number}")(lambda: "ran")() == "ran"


@case()
async def test_an_interrupted_call_leaves_the_period_to_others_unless_the_job_ran(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    period = await long_period(other)
    for step in itertools.count():
        ran: list[int] = []
        name = f"job{step}"

        async def call(name: str = name, ran: list[int] = ran) -> None:
            if world.api == "asyncio":

                @client.once_every(period, name=name)
                async def job() -> None:
                    ran.append(1)

                await job()
            else:
                client.once_every(period, name=name)(lambda: ran.append(1))()

        interrupted = await world.interrupted(step, call)
        assert client.statistics().held == client.statistics().waiting == 0
        again = other.once_every(period, name=name)(lambda: "again")()
        assert ran or again == "again", f"no call ran after an interruption at step {step}"
        if not interrupted:
            assert ran and again is None
            break
    assert step >= 6  # claim, inspect and transfer, before and after


@case()
async def test_a_renewal_in_flight_does_not_shorten_the_mark_of_a_run(world: World) -> None:
    """Else the mark would end with the lease, long before the period, and another caller would
    run."""
    in_flight = threading.Event()

    async def slow(verb: str, moment: str) -> None:
        if (verb, moment) == ("renew", "before"):
            in_flight.set()
            time.sleep(0.3)

    client, other = world.client(hook=slow, lease=6), world.client()
    period = await long_period(other)
    job = client.once_every(period, name="job")(lambda: in_flight.wait(SOON))
    assert await world.blocking(job) is True
    await world.sleep(0.5)
    (holder,) = (await mark(other, "job")).holders
    assert holder.remaining > 60, "the mark ends too early"
