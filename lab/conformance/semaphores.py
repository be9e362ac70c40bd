"""Semaphores: never more holders than permits, holds of several permits, resizing."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.children import Refused
from lab.conformance.concurrency import SOON
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, ConfigurationError, HoldLost, NotHeld

BAD: tuple[Any, ...] = (0, -1, True, False, 1.0, 1.5, "2", None, 2**31 - 1)


@case()
async def test_a_semaphore_never_admits_more_than_its_permits_under_load(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    inside: list[int] = []
    fences: list[int] = []
    most = [0]

    async def work(client: AnyClient, permits: int, fair: bool) -> None:
        semaphore = client.semaphore("a", 3, timeout=60, fair=fair)
        for _ in range(5):
            async with await semaphore.acquire(permits) as hold:
                inside.extend([hold.fence] * permits)
                fences.append(hold.fence)
                most[0] = max(most[0], len(inside))
                await world.sleep(0.003)
                assert len(inside) <= 3, f"{len(inside)} permits of 3 in use"
                for _ in range(permits):
                    inside.remove(hold.fence)

    tasks = [
        world.spawn(work, client, permits, fair)
        for client in clients
        for permits, fair in ((1, True), (1, True), (2, True), (3, True), (1, False), (2, False))
    ]
    for task in tasks:
        await task.join(60)
    assert len(set(fences)) == len(tasks) * 5, "a fence was repeated"
    assert most[0] == 3, f"at most {most[0]} permits in use: the case tests nothing"


@case()
async def test_one_semaphore_object_keeps_its_owners_apart(world: World) -> None:
    semaphore = world.client().semaphore("a", 2, timeout=60)
    inside: list[int] = []

    async def work() -> None:
        for _ in range(5):
            async with semaphore as hold:
                inside.append(hold.fence)
                await world.sleep(0.002)
                assert hold.is_held and len(inside) <= 2
                inside.remove(hold.fence)
            assert not hold.is_held

    for worker in [world.spawn(work) for _ in range(6)]:
        await worker.join(60)
    assert await semaphore.in_use() == 0


@case()
async def test_an_owner_that_acquires_twice_takes_two_permits(world: World) -> None:
    client, other = world.client(), world.client()
    semaphore = client.semaphore("a", 2)
    async with semaphore as outer:
        async with semaphore as inner:
            assert inner.fence > outer.fence, "the second acquire re-entered the first"
            assert await semaphore.try_acquire() is None
            with raises(AcquireTimeout, "'a'"):
                await semaphore.acquire(timeout=0)
        assert outer.is_held and not inner.is_held
        theirs = await other.semaphore("a", 2).try_acquire()
        assert theirs is not None
        await theirs.release()
    assert not outer.is_held and not await other.names()


@case()
async def test_a_hold_of_several_permits_is_released_whole_and_once(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.semaphore("a", 3).acquire(2)
    (holder,) = (await other.inspect("a")).holders
    assert holder.take == 2 and holder.fence == hold.fence
    assert await other.semaphore("a", 3).try_acquire(2) is None
    rest = await other.semaphore("a", 3).try_acquire()
    assert rest is not None
    await world.spawn(hold.release).join()  # by another thread or task than its owner
    with raises(NotHeld, "'a'"):
        await hold.release()
    assert rest.is_held and await other.semaphore("a", 3).available() == 2


@case()
async def test_a_waiter_for_two_permits_is_not_overtaken_by_a_claim_for_one(
    world: World,
) -> None:
    clients = [world.client() for _ in range(3)]
    holds = [await clients[0].semaphore("a", 2).acquire() for _ in range(2)]
    served: list[int] = []

    async def wait(client: AnyClient, permits: int) -> None:
        async with await client.semaphore("a", 2, timeout=SOON).acquire(permits):
            served.append(permits)
            await world.sleep(0.02)

    big = world.spawn(wait, clients[1], 2)
    await world.until_waiting(clients[0], "a", 1)
    small = world.spawn(wait, clients[2], 1)
    await world.until_waiting(clients[0], "a", 2)
    await holds[0].release()
    assert await clients[0].semaphore("a", 2).try_acquire() is None, (
        "a claim for one overtook the waiter for two"
    )
    await world.sleep(0.05)
    assert not served and len((await clients[0].inspect("a")).waiters) == 2
    await holds[1].release()
    await big.join()
    await small.join()
    assert served == [2, 1]


@case()
async def test_an_unfair_claim_takes_a_free_permit_although_another_waiter_needs_more(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    holds = [await client.semaphore("a", 2).acquire() for _ in range(2)]
    big = world.spawn(partial(other.semaphore("a", 2, timeout=SOON).acquire, 2))
    await world.until_waiting(client, "a", 1)
    await holds[0].release()
    hasty = await client.semaphore("a", 2, fair=False).try_acquire()
    assert (hasty is not None) is client.capabilities.overtakes
    assert not big.done
    await holds[1].release()
    if hasty is not None:
        assert not big.done
        await hasty.release()
    await (await big.join()).release()


@case()
async def test_a_release_serves_every_waiter_that_fits_in_one_step_and_in_arrival_order(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    hold = await client.semaphore("a", 3).acquire(3)
    served: list[int] = []
    may_leave = world.event()

    async def wait(number: int) -> None:
        async with other.semaphore("a", 3, timeout=SOON):
            served.append(number)
            await may_leave.wait()

    waiters = []
    for number in range(5):
        waiters.append(world.spawn(wait, number))
        await world.until_waiting(client, "a", number + 1)
    await hold.release()
    snapshot = await client.inspect("a")
    assert len(snapshot.holders) == 3 and len(snapshot.waiters) == 2, (
        "the release did not serve three"
    )
    await world.until(lambda: len(served) == 3)
    assert sorted(served) == [0, 1, 2]
    may_leave.set()
    for waiter in waiters:
        await waiter.join()


@case()
async def test_a_waiter_for_several_permits_that_times_out_does_not_block_the_queue(
    world: World,
) -> None:
    client, other, third = world.client(), world.client(), world.client()
    hold = await client.semaphore("a", 2, label="nightly").acquire()

    async def impatient() -> None:
        with raises(AcquireTimeout, "'a'", "nightly", "1 s"):
            await other.semaphore("a", 2).acquire(2, timeout=1)

    first = world.spawn(impatient)
    await world.until_waiting(client, "a", 1)
    behind = world.spawn(third.semaphore("a", 2, timeout=SOON).acquire)
    await world.until_waiting(client, "a", 2)
    await first.join()
    snapshot = await client.inspect("a")
    assert len(snapshot.holders) == 2 and not snapshot.waiters, (
        "its leaving did not serve the next waiter"
    )
    theirs = await behind.join()
    assert hold.is_held and theirs.is_held
    await theirs.release()


@case()
async def test_semaphore_permits_are_renewed_and_end_with_their_own_lease(world: World) -> None:
    client, other = world.client(lease=0.9), world.client()
    kept = await client.semaphore("a", 2).acquire()
    brief = await client.semaphore("a", 2, lease=0.5).acquire()
    began = time.monotonic()
    theirs = await other.semaphore("a", 2, timeout=SOON).acquire()
    assert time.monotonic() - began >= 0.4, "a permit was granted twice"
    assert not brief.is_held and brief.lost
    with raises(HoldLost, "'a'", str(brief.fence)):
        await brief.release()
    await world.sleep(1.0)
    assert kept.is_held and theirs.is_held
    assert await other.semaphore("a", 2).try_acquire() is None


@case()
async def test_the_loss_of_one_permit_is_reported_to_its_holder_only(world: World) -> None:
    client, other = world.client(lease=0.6), world.client()
    reported: list[object] = []
    semaphore = client.semaphore("a", 2, on_lost=reported.append)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    assert await other.break_hold("a", first.fence)
    assert await first.wait_lost(SOON)
    await world.until(lambda: reported)
    assert reported == [first.raw] and second.is_held and not second.lost
    again = await semaphore.acquire(timeout=SOON)  # the owner of a lost permit may take another
    assert again.fence > second.fence
    with raises(HoldLost, "'a'"):
        await first.release()
    assert await other.semaphore("a", 2).in_use() == 2


@case(processes=True)
async def test_the_permits_of_a_killed_process_become_free(world: World) -> None:
    client, child = world.client(), world.child()
    terms = {"name": "a", "of": 3, "lease": 1.5, "renew": True}
    await world.blocking(partial(child.call, "take", permits=2, **terms))
    mine = await client.semaphore("a", 3).acquire(timeout=0)
    assert await client.semaphore("a", 3).available() == 0
    with raises(Refused, "AcquireTimeout"):
        await world.blocking(partial(child.call, "take", timeout=0, **terms))
    child.kill()
    theirs = await client.semaphore("a", 3, timeout=SOON).acquire(2)
    assert mine.is_held and theirs.fence > mine.fence


@case()
async def test_a_semaphore_of_another_size_is_refused_with_both_sizes(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.semaphore("a", 3):
        for timeout in (0, SOON):
            with raises(ConfigurationError, "'a'", "3", "5"):
                await other.semaphore("a", 5).acquire(timeout=timeout)
        with raises(ConfigurationError, "'a'", "3", "5"):
            await other.semaphore("a", 5).try_acquire()
        assert not (await other.inspect("a")).waiters
    async with other.semaphore("a", 5, timeout=0):
        pass


@case()
async def test_growing_a_semaphore_serves_its_waiters_at_once(world: World) -> None:
    client, other = world.client(), world.client()
    semaphore = client.semaphore("a", 1)
    hold = await semaphore.acquire()
    waiters = [world.spawn(other.semaphore("a", 1, timeout=SOON).acquire) for _ in range(3)]
    await world.until_waiting(client, "a", 3)
    await semaphore.resize(3)
    snapshot = await client.inspect("a")
    assert len(snapshot.holders) == 3 and len(snapshot.waiters) == 1 and snapshot.slots == 3
    assert semaphore.permits == 3 and await semaphore.available() == 0 and hold.is_held
    await hold.release()
    for waiter in waiters:
        await (await waiter.join()).release()
    await (await semaphore.acquire(3, timeout=0)).release()


@case()
async def test_shrinking_a_semaphore_keeps_its_holders_and_admits_nobody_until_there_is_room(
    world: World,
) -> None:
    client, other = world.client(lease=0.9), world.client()
    semaphore = client.semaphore("a", 4)
    holds = [await semaphore.acquire() for _ in range(4)]
    waiter = world.spawn(other.semaphore("a", 4, timeout=SOON).acquire)
    await world.until_waiting(client, "a", 1)
    await semaphore.resize(2)
    assert all(hold.is_held for hold in holds) and semaphore.permits == 2
    assert await semaphore.in_use() == 4 and await semaphore.available() == 0
    for hold in holds[:2]:
        await hold.release()
        assert await semaphore.try_acquire() is None
        assert len((await client.inspect("a")).waiters) == 1
    await world.sleep(1.0)
    assert holds[2].is_held and not waiter.done, (
        "a remaining holder was not renewed, or the waiter overtook it"
    )
    with raises(ConfigurationError, "'a'", "2", "4"):
        await other.semaphore("a", 4).try_acquire()
    await holds[2].release()
    await (await waiter.join()).release()
    assert holds[3].is_held


@case()
async def test_a_waiter_for_more_permits_than_are_left_after_a_resize_gets_an_error(
    world: World,
) -> None:
    client, other, third = world.client(), world.client(), world.client()
    semaphore = client.semaphore("a", 4)
    hold = await semaphore.acquire(2)

    async def acquire_too_much() -> None:
        with raises(ConfigurationError, "'a'", "2", "4"):
            await other.semaphore("a", 4, timeout=SOON).acquire(3)

    big = world.spawn(acquire_too_much)
    await world.until_waiting(client, "a", 1)
    behind = world.spawn(partial(third.semaphore("a", 4, timeout=SOON).acquire, 2))
    await world.until_waiting(client, "a", 2)
    await semaphore.resize(2)
    await big.join()
    assert not behind.done and len((await client.inspect("a")).waiters) == 1
    await hold.release()
    await (await behind.join()).release()


@case()
async def test_a_name_in_use_as_another_primitive_cannot_be_resized(world: World) -> None:
    client, other = world.client(), world.client()
    semaphore = client.semaphore("a", 4)
    async with other.rwlock("a").read():
        with raises(ConfigurationError, "'a'", "a read-write lock"):
            await semaphore.resize(5)
        assert semaphore.permits == 4
        assert await client.rwlock("a").write().try_acquire() is None
    async with other.lock("a"):
        with raises(ConfigurationError, "'a'", "a lock"):
            await semaphore.resize(5)
        assert await client.lock("a").try_acquire() is None
    await semaphore.resize(5)  # the name is not in use: this changes the object alone
    async with client.semaphore("a", 5):
        assert await semaphore.try_acquire(5) is None and await semaphore.available() == 4


@case()
async def test_in_use_and_available_count_the_permits_of_all_clients(world: World) -> None:
    client, other = world.client(), world.client()
    semaphore, theirs = client.semaphore("a", 5), other.semaphore("a", 5)
    assert semaphore.name == "a" and semaphore.permits == 5
    assert (await semaphore.in_use(), await semaphore.available()) == (0, 5)
    async with await semaphore.acquire(2):
        assert (await theirs.in_use(), await theirs.available()) == (2, 3)
        async with theirs:
            assert (await semaphore.in_use(), await semaphore.available()) == (3, 2)
    assert (await theirs.in_use(), await theirs.available()) == (0, 5)


@case()
async def test_an_invalid_number_of_permits_is_refused_before_any_request(
    world: World,
) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    for number in BAD:
        for make in (client.semaphore, client.permits):
            with raises(ConfigurationError, repr(number)):
                make("a", number)
    semaphore = client.semaphore("a", 3)
    for number in (*BAD, 4):
        for verb in (semaphore.acquire, semaphore.try_acquire):
            with raises(ConfigurationError, repr(number)):
                await verb(number)
        if number != 4:
            with raises(ConfigurationError, repr(number)):
                await semaphore.resize(number)
    assert semaphore.permits == 3 and not traffic.verbs, "a request was sent to the store"


@case()
async def test_a_hold_of_several_permits_can_be_detached_and_attached(world: World) -> None:
    client, taker = world.client(), world.client()
    text = await (await client.semaphore("a", 3).acquire(2)).detach()
    await client.close()
    assert await taker.semaphore("a", 3).in_use() == 2
    hold: AnyHold = await taker.attach("a", text)
    assert hold.is_held and await taker.semaphore("a", 3).available() == 1
    await hold.release()
    assert await taker.semaphore("a", 3).available() == 3


@case()
async def test_an_interruption_at_any_step_of_a_semaphore_leaves_no_permit_in_use(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    hold = await other.semaphore("b", 2).acquire()

    async def cycle() -> None:
        await (await client.semaphore("a", 2).acquire(2, timeout=SOON)).release()
        assert await client.semaphore("b", 2).try_acquire(2, timeout=0.05) is None

    for step in itertools.count():
        interrupted = await world.interrupted(step, cycle)
        assert await other.names() == ["b"], f"left behind by an interruption at step {step}"
        assert not (await other.inspect("b")).waiters
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 10
    await hold.release()
