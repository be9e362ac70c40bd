"""Inspection and operators' verbs, namespaces, closing a client, detaching and attaching holds."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.worlds import World
from lockfast import HoldLost, LockfastError, NotHeld, Unsupported


@case()
async def test_inspect_shows_holder_and_waiters_in_order(world: World) -> None:
    client, other, third = (world.client() for _ in range(3))
    free = await third.inspect("a")
    assert free.name == "a" and not free.holders and not free.waiters
    before = time.time()
    hold = await client.lock("a", label="the report").acquire()

    async def wait(label: str) -> None:
        async with other.lock("a", timeout=SOON, label=label):
            pass

    waiters = []
    for number, label in enumerate(("first", "second")):
        waiters.append(world.spawn(wait, label))
        await world.until_waiting(third, "a", number + 1)
    snapshot = await third.inspect("a")
    (holder,) = snapshot.holders
    assert holder.who.host == socket.gethostname() and holder.who.pid == os.getpid()
    assert holder.who.label == "the report" and holder.who.thread
    assert holder.fence == hold.fence and holder.take == 1
    assert before - 1 <= holder.since <= time.time() + 1 and 0 < holder.remaining <= 30
    assert [waiter.who.label for waiter in snapshot.waiters] == ["first", "second"]
    assert all(waiter.fair and waiter.since >= holder.since for waiter in snapshot.waiters)
    assert snapshot.name == "a" and snapshot.slots == 1
    await hold.release()
    for waiter in waiters:
        await waiter.join()
    assert not (await third.inspect("a")).holders


@case()
async def test_names_lists_the_names_in_use_by_prefix(world: World) -> None:
    client, other = world.client(), world.client()
    assert await other.names() == []
    for name in ("orders:2", "orders:1", "orders%", "orders*", "Orders:1", "users:1", "o"):
        await client.lock(name).acquire()
    assert await other.names() == sorted(await other.names()) and len(await other.names()) == 7
    assert await other.names("orders:") == ["orders:1", "orders:2"]
    assert await other.names("orders%") == ["orders%"]
    assert await other.names("orders*") == ["orders*"]
    assert await other.names("nothing") == []
    await client.lock("orders:1").release()
    assert await other.names("orders:") == ["orders:2"]


@case()
async def test_break_hold_compares_the_fence_and_the_next_one_is_higher(world: World) -> None:
    client, operator = world.client(lease=0.6), world.client()
    hold = await client.lock("a").acquire()
    assert not await operator.break_hold("a", hold.fence + 1)
    assert not await operator.break_hold("a", hold.fence - 1)
    assert not await operator.break_hold("b", hold.fence)
    assert hold.is_held and await operator.lock("a").locked()
    assert await operator.break_hold("a", hold.fence)
    assert not await operator.break_hold("a", hold.fence), "a broken hold was broken again"
    theirs = await operator.lock("a").acquire(timeout=0)
    assert theirs.fence > hold.fence
    assert await hold.wait_lost(SOON)
    with raises(HoldLost):
        await hold.release()
    assert theirs.is_held and await operator.lock("a").locked()


@case()
async def test_statistics_count_the_operations_of_one_client(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.lock("a"), client.lock("a"), client.lock("b"):
        assert client.statistics().held == 2
    hold = await other.lock("a").acquire()
    assert await client.lock("a").try_acquire(timeout=0.02) is None

    async def wait() -> None:
        async with client.lock("a", timeout=SOON):
            pass

    waiter = world.spawn(wait)
    await world.until(lambda: client.statistics().waiting == 1)
    await hold.release()
    await waiter.join()
    seen = client.statistics()
    assert (seen.acquired, seen.reentered, seen.released) == (3, 1, 3)
    assert (seen.contended, seen.timed_out, seen.lost) == (2, 1, 0)
    assert (seen.held, seen.waiting) == (0, 0)
    assert sum(seen.wait_time) == sum(seen.hold_time) == 3
    assert other.statistics().acquired == 1


@case()
async def test_an_unsupported_primitive_is_refused_at_creation_with_the_reason(
    world: World,
) -> None:
    client = world.client()
    seen = client.capabilities
    factories: dict[str, Callable[[], object]] = {
        "semaphore": lambda: client.raw.semaphore("a", 3),
        "permits": lambda: client.raw.permits("a", 3),
        "latch": lambda: client.raw.latch("a", 3),
        "barrier": lambda: client.raw.barrier("a", 3),
        "once_every": lambda: client.raw.once_every("1h"),
    }
    assert seen.refuses.keys() <= factories.keys()
    for kind, make in factories.items():
        if kind in seen.refuses:
            with raises(Unsupported, seen.refuses[kind]):
                make()
        else:
            assert make() is not None
    if seen.longest_lease < 1e6:
        for refused in (lambda: client.lock("a", lease=1e6), lambda: world.client(lease=1e6)):
            with raises(Unsupported, f"{seen.longest_lease:g} s"):
                refused()


@case()
async def test_capabilities_describe_the_store(world: World) -> None:
    seen = world.client().capabilities
    assert seen.store == world.url.partition(":")[0].partition("+")[0]
    assert seen.across in ("process", "host", "network") and seen.fences


@case()
async def test_namespaces_are_separate(world: World) -> None:
    blue, green = world.client(namespace="blue"), world.client(namespace="green")
    bluer = world.client(namespace="blue.r")
    async with blue.lock("a") as hold, green.lock("a"), bluer.lock("a"):
        assert await blue.names() == await green.names() == ["a"]
        assert not await green.break_hold("a", hold.fence)
        assert len((await blue.inspect("a")).holders) == 1
        assert await world.client(namespace="blue").lock("a").try_acquire() is None


@case()
async def test_closing_a_client_releases_all_its_holds(world: World) -> None:
    client, other = world.client(), world.client()
    holds = [await client.lock(name).acquire() for name in ("a", "b")]
    await client.lock("a").acquire()
    await client.close()
    assert not await other.names()
    assert not any(hold.is_held or hold.lost for hold in holds)
    for refused in (client.lock("a").acquire, client.lock("a").try_acquire):
        with raises(NotHeld, "closed"):
            await refused()
    await client.close()
    assert await other.lock("a").try_acquire() is not None


@case()
async def test_closing_a_client_ends_its_own_waits(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await other.lock("a").acquire()

    async def wait() -> str:
        try:
            await client.lock("a").acquire(timeout=10)
        except LockfastError as error:
            return type(error).__name__
        return "acquired on a closed client"

    waiter = world.spawn(wait)
    await world.until_waiting(other, "a", 1)
    began = time.monotonic()
    await client.close()
    assert await waiter.join() in ("NotHeld", "BackendError")
    assert time.monotonic() - began < 2, "the waiter did not notice that its client was closed"
    assert not (await other.inspect("a")).waiters
    await hold.release()
    assert not await other.names()


@case()
async def test_closing_one_client_does_not_affect_the_others(world: World) -> None:
    client, other = world.client(lease=0.9), world.client()
    hold = await client.lock("a").acquire()
    await other.lock("b").acquire()
    await other.close()
    renewals = client.statistics().renewals
    await world.until(lambda: client.statistics().renewals > renewals)
    assert hold.is_held
    await hold.release()


@case()
async def test_a_detached_hold_can_be_attached_by_its_text(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.lock("a") as hold:
        text = await hold.detach()
        assert not hold.is_held and not hold.lost and not client.lock("a").is_held
    assert await other.lock("a").locked(), "leaving the body released a detached hold"
    with raises(NotHeld):
        await hold.release()
    assert await client.lock("a").try_acquire() is None
    with raises(NotHeld, "'b'"):
        await other.attach("b", text)
    taken = await other.attach("a", text)
    assert taken.fence == hold.fence and taken.is_held and other.lock("a").is_held
    await client.close()
    assert taken.is_held and await other.lock("a").locked(), (
        "closing the first client ended the attached hold"
    )
    async with other.lock("a") as again:
        assert again.fence == hold.fence
    await taken.release()
    assert not await other.names()
    with raises(NotHeld):
        await other.attach("a", text)


@case()
async def test_a_detached_hold_can_be_attached_only_once(world: World) -> None:
    client, other, third = (world.client() for _ in range(3))
    text = await (await client.lock("a").acquire()).detach()
    taken = await other.attach("a", text)
    with raises(NotHeld, "'a'"):
        await third.attach("a", text)
    assert taken.is_held


@case()
async def test_a_detached_hold_that_nobody_attaches_ends_with_its_lease(world: World) -> None:
    client, other = world.client(lease=0.3), world.client()
    text = await (await client.lock("a").acquire()).detach()
    theirs = await other.lock("a", timeout=SOON).acquire()
    with raises(NotHeld, "'a'"):
        await client.attach("a", text)
    assert theirs.is_held


@case()
async def test_an_attached_hold_is_renewed_again(world: World) -> None:
    client, other = world.client(lease=0.9), world.client()
    taken = await other.attach("a", await (await client.lock("a").acquire()).detach())
    assert taken.lease == 0.9
    await world.sleep(1.2)
    assert taken.is_held and await client.lock("a").try_acquire() is None


@case()
async def test_a_reentered_hold_cannot_be_detached_in_the_inner_block(world: World) -> None:
    client = world.client()
    async with client.lock("a") as hold, client.lock("a") as inner:
        with raises(NotHeld, "'a'"):
            await inner.detach()
        assert hold.is_held and inner.is_held
