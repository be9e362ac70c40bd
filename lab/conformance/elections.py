"""Elections: one leader at a time, visible to every client, under terms that only grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.latches import Failing
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, BackendError, ConfigurationError, HoldLost
from lockfast.runtime.threads import run

SHORT = 0.9  # the keeper renews every third of it


def work(world: World, body: Callable[[AnyHold], Coroutine[Any, Any, Any]]) -> Any:
    """Wrap ``body`` as ``election.run`` expects it: a function, or a coroutine function."""

    def blocking(hold: Any) -> Any:
        return run(body(AnyHold(hold)))

    async def coroutine(hold: Any) -> Any:
        return await body(AnyHold(hold))

    return blocking if world.api == "blocking" else coroutine


def flag(world: World) -> object:
    """The ``on_lost`` that does not cancel the body; only asyncio cancels it by default."""
    return "flag" if world.api == "asyncio" else None


@case()
async def test_there_is_one_leader_at_a_time_and_terms_only_grow(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    leading: list[int] = []
    terms: list[int] = []

    async def campaign(client: AnyClient) -> None:
        for _ in range(4):
            async with client.election("a").lead(timeout=60) as hold:
                leading.append(hold.fence)
                terms.append(hold.fence)
                await world.sleep(0.001)
                assert leading == [hold.fence], f"several leaders at once: {leading}"
                leading.clear()

    for task in [world.spawn(campaign, client) for client in clients * 2]:
        await task.join(60)
    assert len(terms) == 24 and terms == sorted(set(terms)), "a term was repeated, or decreased"


@case()
async def test_every_client_sees_the_leader_and_its_metadata(world: World) -> None:
    client, other = world.client(), world.client()
    metadata = "http://10.0.0.7:8080/ ünïcode {json: [1]}"
    election, theirs = client.election("a", metadata=metadata), other.election("a", metadata="b")
    assert election.name == "a" and election.metadata == metadata
    assert await election.leader() is None
    async with election.lead() as hold:
        waiter = world.spawn(theirs.lead(timeout=SOON).acquire)
        await world.until_waiting(other, "a", 1)
        for seen in (await election.leader(), await theirs.leader()):
            assert seen.metadata == metadata and seen.term == hold.fence
            (holder,) = (await other.inspect("a")).holders
            assert seen.who == holder.who and seen.since == holder.since
    next_hold = await waiter.join()
    leader = await election.leader()
    assert leader.metadata == "b" and leader.term == next_hold.fence > hold.fence
    await next_hold.release()
    assert await election.leader() is None and await theirs.leader() is None


@case()
async def test_leadership_is_renewed_as_long_as_it_is_held(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.election("a", lease=SHORT).lead() as hold:
        await world.sleep(SHORT * 1.5)
        assert hold.is_held and await other.election("a").lead().try_acquire() is None
        leader = await other.election("a").leader()
        assert leader is not None and leader.term == hold.fence


@case()
async def test_the_next_candidate_leads_when_the_leader_resigns(world: World) -> None:
    client, other = world.client(), world.client()
    election, theirs = client.election("a"), other.election("a")
    last = 0
    for first, second in ((election, theirs), (theirs, election)) * 2:
        hold = await first.lead(timeout=SOON).acquire()
        waiter = world.spawn(second.lead(timeout=SOON).acquire)
        await world.until_waiting(client, "a", 1)
        assert not waiter.done and hold.fence > last
        await hold.release()
        next_hold = await waiter.join()
        assert next_hold.fence > hold.fence
        last = next_hold.fence
        await next_hold.release()


@case(processes=True)
async def test_the_next_candidate_leads_when_the_leader_crashes(world: World) -> None:
    client, child = world.client(), world.child()
    campaign = partial(child.call, "lead", name="a", timeout=SOON, metadata="child", lease=2)
    term = await world.blocking(campaign)
    election = client.election("a", metadata="us")
    leader = await election.leader()
    assert leader.metadata == "child" and leader.who.pid == child.pid and leader.term == term
    child.kill()
    async with election.lead(timeout=30) as hold:
        assert hold.fence > term
        leader = await election.leader()
        assert leader.metadata == "us" and leader.term == hold.fence


@case()
async def test_lost_leadership_is_reported_once_and_the_next_candidate_leads(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    lost: list[Any] = []
    election = client.election("a", on_lost=lost.append)
    hold = await election.lead().acquire()
    waiter = world.spawn(other.election("a").lead(timeout=SOON).acquire)
    await world.until_waiting(other, "a", 1)
    assert await other.break_hold("a", hold.fence)
    next_hold = await waiter.join()
    assert next_hold.fence > hold.fence
    assert await hold.wait_lost(SOON) and not hold.is_held
    await world.until(lambda: lost)
    await world.sleep(SHORT / 2)
    assert lost == [hold.raw]
    with raises(HoldLost, "'a'"):
        await hold.release()
    assert next_hold.is_held
    await next_hold.release()


@case()
async def test_on_gained_receives_the_hold_before_the_body_runs(world: World) -> None:
    client, other = world.client(), world.client()
    events: list[Any] = []

    def gained(hold: Any) -> None:
        events.append((hold.fence, hold.is_held))

    election = client.election("a", on_gained=gained, on_lost=events.append)
    async with election.lead() as hold:
        events.append("body")
    assert events == [(hold.fence, True), "body"], "a resignation is not a loss"
    events.clear()
    tried = await election.lead().try_acquire()
    assert tried is not None and events == [(tried.fence, True)]
    await tried.release()
    theirs = await other.election("a").lead().acquire()
    events.clear()
    assert await election.lead().try_acquire() is None
    with raises(AcquireTimeout):
        await election.lead(timeout=0).acquire()
    assert not events, "on_gained was called without leadership"
    await theirs.release()


@case()
async def test_leadership_is_released_when_on_gained_raises(world: World) -> None:
    def fail(hold: Any) -> None:
        raise ZeroDivisionError("mine")

    other = world.client()
    for hook in (None, Failing("release", float("inf"), "before")):
        client = world.client(hook=hook, lease=SHORT)
        election = client.election("a", on_gained=fail)
        lead = election.lead()
        for campaign in (lead.acquire, lead.try_acquire):
            with raises(ZeroDivisionError, "mine") as caught:
                await campaign()
            assert (hook is None) != hasattr(caught.error, "__notes__"), (
                "only a failed release adds a note"
            )
            assert client.statistics().held == 0 and not lead.is_held
            if hook is None:
                assert await election.leader() is None
            else:  # a hold that could not be released ends with its lease
                await (await other.election("a").lead(timeout=SOON).acquire()).release()
        with raises(ZeroDivisionError, "mine"):
            async with election.lead():
                raise AssertionError("the body ran")
        async with other.election("a").lead(timeout=SOON):
            pass


@case()
async def test_a_candidate_that_times_out_gets_an_error_naming_the_leader(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.election("a", metadata="http://leader:80").lead() as hold:
        for timeout in (0, 0.1):
            with raises(AcquireTimeout, "'a'", "http://leader:80", "pid", str(hold.fence)):
                await other.election("a").lead(timeout=timeout).acquire()
            with raises(AcquireTimeout, "http://leader:80"):
                async with other.election("a").lead(timeout=timeout):
                    raise AssertionError("the body ran")
        assert not (await other.inspect("a")).waiters


@case()
async def test_run_returns_the_result_of_its_function_and_resigns(world: World) -> None:
    client, other = world.client(), world.client()
    seen: list[Any] = []

    async def body(hold: AnyHold) -> str:
        leader = await other.election("a").leader()
        seen.append((hold.is_held, leader.term == hold.fence))
        return "done"

    election = client.election("a", on_gained=lambda hold: seen.append(hold.fence))
    assert await election.run(work(world, body)) == "done"
    assert seen[1:] == [(True, True)] and type(seen[0]) is int
    assert await election.leader() is None


@case()
async def test_run_waits_until_it_leads(world: World) -> None:
    client, other = world.client(), world.client()
    theirs = await other.election("a").lead().acquire()

    async def body(hold: AnyHold) -> int:
        return hold.fence

    task = world.spawn(client.election("a").run, work(world, body))
    await world.until_waiting(other, "a", 1)
    await world.sleep(0.05)
    assert not task.done
    await theirs.release()
    assert await task.join() > theirs.fence


@case()
async def test_run_campaigns_again_when_leadership_is_lost(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    gained: list[int] = []
    lost: list[int] = []
    cancelled: list[int] = []

    async def body(hold: AnyHold) -> str:
        if len(gained) == 4:
            return "done"
        assert await other.break_hold("a", hold.fence)
        if world.api == "asyncio":
            try:
                await asyncio.sleep(SOON)
                raise AssertionError("the body went on without leadership")
            except asyncio.CancelledError:
                cancelled.append(hold.fence)
                raise
        await world.until(lambda: not hold.is_held)
        if len(gained) == 2:
            hold.check()  # raises HoldLost for the hold of the election itself
        return "out of date"

    election = client.election(
        "a",
        on_gained=lambda hold: gained.append(hold.fence),
        on_lost=lambda hold: lost.append(hold.fence),
    )
    assert await election.run(work(world, body)) == "done"
    assert len(gained) == 4 and gained == sorted(set(gained)), "a term was repeated, or decreased"
    await world.until(lambda: len(lost) >= 3)  # called after the body has ended
    assert lost == gained[:3] and cancelled == (lost if world.api == "asyncio" else [])
    assert await election.leader() is None


@case()
async def test_run_lets_others_lead_while_it_campaigns_again(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    terms: list[int] = []

    async def body(hold: AnyHold) -> str:
        terms.append(hold.fence)
        if len(terms) == 1:
            assert await other.break_hold("a", hold.fence)
            await hold.wait_lost(SOON)
        return "done"

    hold = await client.election("a").lead().acquire()
    task = world.spawn(client.election("a").run, work(world, body))
    await world.until_waiting(other, "a", 1)
    theirs = world.spawn(other.election("a").lead(timeout=SOON).acquire)
    await world.until_waiting(other, "a", 2)
    await hold.release()
    between = await theirs.join()
    await world.until_waiting(other, "a", 1)
    assert not task.done and len(terms) == 1
    await between.release()
    assert await task.join() == "done"
    assert hold.fence < terms[0] < between.fence < terms[1]


@case()
async def test_run_propagates_the_exception_of_its_function_and_resigns(world: World) -> None:
    client = world.client()
    calls: list[int] = []

    async def body(hold: AnyHold) -> None:
        calls.append(hold.fence)
        assert len(calls) == 1, "the election ran again"
        raise ZeroDivisionError("mine")

    election = client.election("a")
    with raises(ZeroDivisionError, "mine"):
        await election.run(work(world, body))
    assert len(calls) == 1 and await election.leader() is None


@case()
async def test_the_loss_of_another_lock_inside_run_does_not_end_leadership(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    calls: list[int] = []

    async def body(hold: AnyHold) -> None:
        calls.append(hold.fence)
        assert len(calls) == 1, "the election ran again"
        async with client.lock("b", on_lost=flag(world)) as inner:
            assert await other.break_hold("b", inner.fence)
            assert await inner.wait_lost(SOON) and hold.is_held
            inner.check()

    election = client.election("a")
    with raises(HoldLost, "'b'"):
        await election.run(work(world, body))
    assert len(calls) == 1 and await election.leader() is None


@case()
async def test_invalid_election_arguments_are_refused_before_any_io(
    world: World,
) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    bad: list[dict[str, Any]] = [
        {"metadata": "x" * 1001},
        {"metadata": "ü" * 501},
        {"metadata": b"bytes"},
        {"metadata": None},
        {"metadata": "\ud800"},
        {"lease": 0},
        {"lease": "5"},
        {"on_gained": "flag"},
        {"on_lost": "cancel"},
        {"label": "a"},
        {"fair": False},
    ]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.election("a", **terms)
    for name in ("", "a\0b"):
        with raises(ConfigurationError):
            client.election(name)
    for timeout in (-1, "5", float("nan")):
        with raises(ConfigurationError, "timeout"):
            client.election("a").lead(timeout=timeout)
    assert not traffic.verbs


@case()
async def test_metadata_up_to_the_limit_reaches_other_clients_unchanged(world: World) -> None:
    client, other = world.client(), world.client()
    for metadata in ("", "x" * 1000, "ü" * 500, "a b\nc\td %20 +", "\x01\x7f"):
        async with client.election("a", metadata=metadata).lead():
            leader = await other.election("a").leader()
            assert leader is not None and leader.metadata == metadata


@case()
async def test_an_outage_shorter_than_the_lease_does_not_end_leadership(world: World) -> None:
    failing = Failing("renew", 2, "before")
    client = world.client(lease=3, hook=failing)

    async def body(hold: AnyHold) -> str:
        await world.until(lambda: client.statistics().renewals > 0)
        return "done"

    assert await client.election("a").run(work(world, body)) == "done"
    assert failing.left == 0 and client.statistics().lost == 0
    with raises(BackendError):
        gone = world.client(lease=1, hook=Failing("claim", float("inf"), "before"))
        await gone.election("a").run(work(world, body))
