"""Lost holds: how a loss is reported, to whom, and that it is reported once."""

from __future__ import annotations

import asyncio
import contextlib

from lab.conformance.adapters import AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import World
from lockfast import BackendError, HoldLost

SHORT = 1.5  # the keeper renews every third of it; a busy machine answers within a sixth


@case()
async def test_a_loss_is_reported_in_every_way_and_once(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    reported: list[object] = []
    lock = client.lock("a", on_lost=reported.append)
    hold = await lock.acquire()
    await lock.acquire()  # re-entry adds no second report
    assert not await hold.wait_lost(0.01) and not hold.lost
    assert await other.break_hold("a", hold.fence)
    assert await hold.wait_lost(SOON)
    assert hold.lost and not hold.is_held and hold.remaining() == 0
    with raises(HoldLost, "'a'", str(hold.fence)) as caught:
        hold.check()
    assert caught.error.name == "a" and caught.error.fence == hold.fence
    await world.until(lambda: reported)
    for _ in range(2):
        with raises(HoldLost):
            await lock.release()
    await world.sleep(SHORT / 2)
    assert reported == [hold.raw] and client.statistics().lost == 1


@case()
async def test_a_release_is_not_reported_as_a_loss(world: World) -> None:
    client = world.client(lease=SHORT)
    reported: list[object] = []
    hold = await client.lock("a", on_lost=reported.append).acquire()

    async def waits() -> bool:
        return await hold.wait_lost(SOON)

    waiter = world.spawn(waits)
    await world.sleep(0.05)
    await hold.release()
    assert await waiter.join() is False
    assert await hold.wait_lost() is False
    await world.sleep(SHORT / 2)
    assert not reported and not hold.lost and client.statistics().lost == 0


@case()
async def test_an_on_lost_that_raises_does_not_end_the_keeper(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()

    def fail(hold: object) -> None:
        raise ZeroDivisionError

    broken = await client.lock("a", on_lost=fail).acquire()
    kept = await client.lock("b").acquire()
    assert await other.break_hold("a", broken.fence)
    assert await broken.wait_lost(SOON)
    renewals = client.statistics().renewals
    await world.until(lambda: client.statistics().renewals > renewals)
    await kept.release()
    with raises(HoldLost):
        await broken.release()


@case()
async def test_a_renewal_does_not_recreate_a_lost_hold(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    hold = await client.lock("a").acquire()
    assert await other.break_hold("a", hold.fence)
    assert not await other.lock("a").locked()
    assert await hold.wait_lost(SOON)
    assert not await other.lock("a").locked()
    theirs = await other.lock("a").acquire(timeout=0)
    with raises(HoldLost):
        await hold.release()
    assert theirs.is_held and await other.lock("a").locked()


@case()
async def test_leaving_the_body_after_a_loss_raises_unless_the_body_raised(world: World) -> None:
    client, other = world.client(), world.client()
    with raises(HoldLost, "'a'"):
        async with client.lock("a", lease=0.6, on_lost=_flag(world)) as hold:
            await hold.wait_lost(SOON)
    with raises(ZeroDivisionError) as caught:
        async with client.lock("a", lease=0.6, on_lost=_flag(world)) as hold:
            await hold.wait_lost(SOON)
            raise ZeroDivisionError("mine")
    assert str(caught) == "mine"
    assert "is lost" in "".join(caught.error.__notes__), "the loss is missing in the notes"
    assert await other.lock("a").try_acquire(timeout=SOON) is not None


@case()
async def test_a_loss_detected_only_at_the_release_is_raised_by_it(world: World) -> None:
    client, other = world.client(), world.client()
    with raises(HoldLost, "'a'"):
        async with client.lock("a") as hold:
            assert await other.break_hold("a", hold.fence)
    assert not hold.is_held and not await other.lock("a").locked()


@case()
async def test_a_hold_ends_with_its_lease_when_no_renewal_gets_through(world: World) -> None:
    async def cut(verb: str, moment: str) -> None:
        if verb == "renew":
            raise BackendError("the network is gone")

    client = world.client(lease=0.5, hook=cut)
    reported: list[object] = []
    hold = await client.lock("a", on_lost=reported.append).acquire()
    assert hold.is_held
    assert await hold.wait_lost(SOON)
    assert not hold.is_held and client.statistics().renew_errors > 0
    await world.until(lambda: reported)
    with raises(HoldLost):
        await hold.release()


@case()
async def test_a_hold_is_uncertain_from_a_failed_renewal_to_the_next_successful_one(
    world: World,
) -> None:
    disconnected = True

    async def cut(verb: str, moment: str) -> None:
        if verb == "renew" and disconnected:
            raise BackendError("the network is gone")

    # Long enough that the hold does not end meanwhile on a busy machine.
    client = world.client(lease=4.5, hook=cut)
    hold, multi = await client.lock("a").acquire(), await client.multi_lock("b", "c").acquire()
    assert hold.is_certain and multi.is_certain
    await world.until(lambda: not hold.is_certain and not multi.is_certain)
    assert hold.is_held and hold.remaining() > 0 and "unconfirmed" in repr(hold.raw)
    with raises(BackendError):
        await hold.renew()
    assert hold.is_held and not hold.is_certain
    disconnected = False
    await world.until(lambda: hold.is_certain and multi.is_certain)
    assert hold.is_held and "unconfirmed" not in repr(hold.raw)
    await hold.release()
    await multi.release()
    assert hold.is_certain and not hold.is_held, "a released hold is certain"


@case(only="asyncio")
async def test_the_body_of_a_lost_hold_is_cancelled_and_raises_hold_lost(
    world: World,
) -> None:
    client, other = world.client(lease=SHORT), world.client()
    reached: list[str] = []

    async def body(hold: AnyHold) -> None:
        try:
            assert await other.break_hold("a", hold.fence)
            await asyncio.sleep(SOON)
            reached.append("after the loss")
        except asyncio.CancelledError:
            reached.append("cancelled")
            raise

    with raises(HoldLost, "'a'"):
        async with client.lock("a") as hold:
            await body(hold)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over
    with raises(HoldLost):
        async with client.lock("a") as hold, client.lock("a") as inner:
            await body(inner)
    assert task.cancelling() == 0 and reached == ["cancelled"] * 2
    await asyncio.sleep(0)


@case(only="asyncio")
async def test_a_body_that_swallows_the_cancellation_still_raises_hold_lost(
    world: World,
) -> None:
    client, other = world.client(lease=SHORT), world.client()
    with raises(HoldLost):
        async with client.lock("a") as hold:
            assert await other.break_hold("a", hold.fence)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(SOON)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@case(only="asyncio")
async def test_with_flag_the_body_continues_and_the_loss_is_raised_at_its_end(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    with raises(HoldLost):
        async with client.lock("a", on_lost="flag") as hold:
            assert await other.break_hold("a", hold.fence)
            assert await hold.wait_lost(SOON)
            await asyncio.sleep(0.05)
            reached = hold.lost
    assert reached


@case(only="asyncio")
async def test_a_cancellation_from_outside_propagates_and_releases_the_lock(world: World) -> None:
    client, other = world.client(), world.client()
    entered = world.event()

    async def body() -> None:
        async with client.lock("a"):
            entered.set()
            await asyncio.sleep(SOON)

    task = asyncio.ensure_future(body())
    await entered.wait()
    task.cancel("foreign")
    await asyncio.wait({task})
    assert task.cancelled() and not await other.lock("a").locked()


@case(only="asyncio")
async def test_a_cancellation_from_outside_wins_over_that_of_a_loss(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    entered = world.event()
    fences: list[int] = []

    async def body() -> None:
        async with client.lock("a") as hold:
            fences.append(hold.fence)
            entered.set()
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                await hold.wait_lost(SOON)
                await asyncio.sleep(0)
                raise

    task = asyncio.ensure_future(body())
    await entered.wait()
    task.cancel("foreign")
    await asyncio.sleep(0)
    assert await other.break_hold("a", fences[0])
    await asyncio.wait({task})
    assert task.cancelled(), "the foreign cancellation was swallowed"


@case(only="asyncio")
async def test_a_timeout_around_the_body_stays_a_timeout(world: World) -> None:
    client = world.client()
    with raises(TimeoutError):
        async with asyncio.timeout(0.05):
            async with client.lock("a"):
                await asyncio.sleep(SOON)
    assert not await client.lock("a").locked()


def _flag(world: World) -> object:
    """The ``on_lost`` that does not cancel the body; only asyncio cancels it by default."""
    return "flag" if world.api == "asyncio" else None
