"""Leases: renewed by the keeper, fixed, capped by ``max_hold``, extended by ``renew``."""

from __future__ import annotations

import time

from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import World
from lockfast import HoldLost, NotHeld


@case()
async def test_a_hold_without_a_fixed_lease_is_renewed_even_while_the_event_loop_is_blocked(
    world: World,
) -> None:
    client, other = world.client(lease=1.0), world.client()
    hold = await client.lock("a").acquire()
    renewed = await client.lock("b", lease=1.0, renew=True).acquire()
    time.sleep(2.1)  # in asyncio too: it blocks the loop for more than two leases
    for held in (hold, renewed):
        assert held.is_held and not held.lost
        held.check()
        assert await other.lock(held.name).try_acquire() is None
        assert 0 < held.remaining() <= 1.0
    assert client.statistics().renewals >= 2
    await hold.release()
    await renewed.release()


@case()
async def test_a_fixed_lease_ends_by_itself_and_is_reported_as_lost(world: World) -> None:
    client, other = world.client(), world.client()
    before = time.monotonic()
    hold = await client.lock("a", lease=0.4).acquire()
    assert hold.lease == 0.4 and 0 < hold.remaining() <= 0.4
    theirs = await other.lock("a", timeout=SOON).acquire()
    assert time.monotonic() - before >= 0.35, (
        "the lock was granted to another client before the lease ended"
    )
    assert not hold.is_held and hold.lost and hold.remaining() == 0
    with raises(HoldLost, "'a'"):
        hold.check()
    with raises(HoldLost, "'a'"):
        await hold.release()
    assert theirs.is_held and theirs.fence > hold.fence
    assert await client.lock("a").try_acquire() is None, "the late release affected the next holder"


@case()
async def test_renew_extends_a_fixed_lease(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a", lease=0.6).acquire()
    await hold.renew(lease=30)
    assert hold.lease == 30 and hold.remaining() > client.longest_validity(30) * 2 / 3
    await world.sleep(0.7)
    assert hold.is_held and await other.lock("a").try_acquire() is None
    (holder,) = (await other.inspect("a")).holders
    assert holder.remaining > client.longest_validity(30) * 2 / 3 and holder.fence == hold.fence
    await hold.renew(lease=0.3)
    assert hold.remaining() <= 0.3
    assert await hold.wait_lost(SOON)
    assert await other.lock("a").try_acquire(timeout=SOON) is not None


@case()
async def test_renew_is_refused_once_the_hold_has_ended(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a").acquire()
    assert await other.break_hold("a", hold.fence)
    with raises(HoldLost, "'a'"):
        await hold.renew()
    assert hold.lost and not hold.is_held and not await other.lock("a").locked()
    released = await client.lock("b").acquire()
    await released.release()
    with raises(NotHeld, "'b'"):
        await released.renew()
    with raises(NotHeld, "'b'"):
        released.check()
    with raises(HoldLost):
        await hold.release()


@case()
async def test_max_hold_ends_a_hold_that_is_renewed(world: World) -> None:
    client, other = world.client(lease=0.6), world.client()
    hold = await client.lock("a", max_hold=1.0).acquire()
    await world.sleep(0.75)
    assert await other.lock("a").try_acquire() is None
    began = time.monotonic()
    assert await hold.wait_lost(SOON)
    assert time.monotonic() - began < 5
    assert await other.lock("a").try_acquire(timeout=SOON) is not None
    with raises(HoldLost, "max_hold"):
        await hold.release()


@case()
async def test_max_hold_shorter_than_the_lease_also_ends_the_hold_at_the_store(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a", max_hold=0.9).acquire()
    assert await hold.wait_lost(SOON)
    with raises(HoldLost, "max_hold"):
        await hold.release()
    assert await other.lock("a").try_acquire(timeout=5) is not None, (
        "the store still had the hold after max_hold"
    )


@case()
async def test_max_hold_caps_a_fixed_lease(world: World) -> None:
    hold = await world.client().lock("a", lease=20, max_hold=0.9).acquire()
    assert hold.remaining() <= 0.9


@case()
async def test_a_released_hold_is_not_renewed_any_more(world: World) -> None:
    client, other = world.client(lease=0.6), world.client()
    await (await client.lock("a").acquire()).release()
    theirs = await other.lock("a").acquire(timeout=0)
    (before,) = (await other.inspect("a")).holders
    await world.sleep(0.3)
    (after,) = (await other.inspect("a")).holders
    assert after.fence == before.fence == theirs.fence and after.remaining < before.remaining
    await theirs.release()
    await world.sleep(0.25)
    assert not await other.names()
