"""Read-write locks over time: downgrades, leases of single readers, killed processes."""

from __future__ import annotations

import itertools
from functools import partial

from lab.conformance.adapters import AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.children import Refused
from lab.conformance.concurrency import SOON
from lab.conformance.locks import LostReply
from lab.conformance.worlds import World
from lockfast import HoldLost, WouldDeadlock


@case()
async def test_releasing_the_write_half_while_reading_lets_other_readers_in(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    writing = await rw.write().acquire()
    reading = await rw.read().acquire()

    async def waits() -> int:
        async with other.rwlock("a", timeout=SOON).read() as theirs:
            assert reading.is_held
            return theirs.fence

    waiters = [world.spawn(waits) for _ in range(2)]
    await world.until_waiting(other, "a", 2)
    await writing.release()
    if client.capabilities.wakes != "ask":  # else they were only woken
        assert not (await other.inspect("a")).waiters, (
            "the release did not grant to the waiting readers"
        )
    assert min([await waiter.join() for waiter in waiters]) > reading.fence
    assert reading.is_held and reading.fence == writing.fence
    assert rw.read().is_held and not rw.write().is_held
    (holder,) = (await other.inspect("a")).holders
    assert holder.fence == reading.fence
    assert await other.rwlock("a").write().try_acquire() is None
    with raises(WouldDeadlock):
        await rw.write().acquire(timeout=SOON)
    await reading.release()
    assert not reading.is_held and not await other.names()


@case()
async def test_no_writer_gets_in_between_during_a_downgrade(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    await rw.write().acquire()
    reading = await rw.read().acquire()

    async def waits() -> int:
        async with other.rwlock("a", timeout=SOON).write() as theirs:
            assert not reading.is_held, "a writer got in while we read"
            return theirs.fence

    waiter = world.spawn(waits)
    await world.until_waiting(other, "a", 1)
    await rw.write().release()
    await world.sleep(0.1)
    snapshot = await other.inspect("a")
    assert [held.fence for held in snapshot.holders] == [reading.fence] and reading.is_held
    assert len(snapshot.waiters) == 1 and not waiter.done
    await rw.read().release()
    assert await waiter.join() > reading.fence


@case()
async def test_releasing_the_read_half_while_writing_keeps_the_write_half(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    async with rw.write() as writing:
        for _ in range(2):
            async with rw.read() as reading:
                assert reading.fence == writing.fence
            assert writing.is_held and rw.write().is_held
            assert await other.rwlock("a").read().try_acquire() is None
    assert not await other.names()


@case()
async def test_only_the_last_release_of_the_write_half_downgrades(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    await rw.write().acquire()
    await rw.read().acquire()
    await rw.write().acquire()
    await rw.write().release()
    assert rw.write().is_held and await other.rwlock("a").read().try_acquire() is None
    await rw.write().release()
    assert not rw.write().is_held and rw.read().is_held
    theirs = await other.rwlock("a").read().try_acquire()
    assert theirs is not None
    await rw.read().release()
    assert not rw.read().is_held and theirs.is_held


@case()
async def test_a_downgraded_hold_is_renewed_and_can_be_lost(world: World) -> None:
    client, other = world.client(lease=0.8), world.client()
    rw = client.rwlock("a")
    writing = await rw.write().acquire()
    reading = await rw.read().acquire()
    await writing.release()
    await world.sleep(1.2)
    assert reading.is_held and await other.rwlock("a").write().try_acquire() is None
    assert await other.break_hold("a", reading.fence)
    assert await reading.wait_lost(SOON)
    with raises(HoldLost, "'a'"):
        await reading.release()


@case()
async def test_a_downgrade_succeeds_although_its_reply_is_lost(world: World) -> None:
    lost = LostReply("shrink")
    client, other = world.client(hook=lost), world.client()
    rw = client.rwlock("a")
    writing = await rw.write().acquire()
    reading = await rw.read().acquire()
    await writing.release()
    assert lost.times == 1, "no reply was lost: the case tests nothing"
    assert reading.is_held and not rw.write().is_held
    assert await other.rwlock("a").read().try_acquire() is not None
    await reading.release()


@case()
async def test_a_downgrade_of_a_broken_hold_raises_hold_lost(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    writing = await rw.write().acquire()
    reading = await rw.read().acquire()
    assert await other.break_hold("a", writing.fence)
    with raises(HoldLost, "'a'"):
        await writing.release()
    assert not reading.is_held and reading.lost
    with raises(HoldLost, "'a'"):
        await reading.release()


@case()
async def test_an_interruption_at_any_step_of_a_downgrade_leaves_nothing_behind(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    rw = client.rwlock("a")

    async def cycle() -> None:
        writing = await rw.write().acquire(timeout=SOON)
        reading = await rw.read().acquire()
        try:
            await writing.release()
        finally:
            assert reading.is_held
            await reading.release()

    for step in itertools.count():
        interrupted = await world.interrupted(step, cycle)
        assert not await other.names(), f"left behind by an interruption at step {step}"
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 6, "claim, shrink and release have at least a step before and after each"


@case()
async def test_the_lease_of_one_reader_ends_without_affecting_the_others(world: World) -> None:
    client, other, renewing = world.client(), world.client(), world.client(lease=1.5)
    kept = await renewing.rwlock("a").read().acquire()
    long = await client.rwlock("a", lease=50, owner="long").read().acquire()
    brief = await client.rwlock("a", lease=1).read().acquire()
    remaining = [held.remaining for held in (await other.inspect("a")).holders]
    assert (
        remaining[2] <= 1
        and remaining[0] <= 1.5 < min(30, other.longest_validity(50)) < remaining[1] <= 50
    )
    writer = world.spawn(other.rwlock("a", timeout=SOON).write().acquire)
    assert await brief.wait_lost(SOON)

    async def ended() -> bool:
        return len((await other.inspect("a")).holders) == 2

    await world.until(ended, within=5)
    with raises(HoldLost, "'a'", str(brief.fence)):
        await brief.release()
    await world.sleep(0.1)
    assert long.is_held and kept.is_held and not writer.done, (
        "the end of one lease ended other holds"
    )
    await long.release()
    assert kept.is_held and not writer.done
    await kept.release()
    await (await writer.join()).release()


@case()
async def test_the_loss_of_one_reader_is_reported_to_that_reader_only(world: World) -> None:
    client, other = world.client(lease=0.6), world.client(lease=0.6)
    reported: list[object] = []
    first = await client.rwlock("a", on_lost=reported.append).read().acquire()
    second = await other.rwlock("a", on_lost=reported.append).read().acquire()
    assert await other.break_hold("a", first.fence)
    assert await first.wait_lost(SOON)
    await world.until(lambda: reported)
    renewals = other.statistics().renewals
    await world.until(lambda: other.statistics().renewals > renewals)
    assert reported == [first.raw] and second.is_held and not second.lost
    with raises(HoldLost):
        await first.release()
    await second.release()


@case()
async def test_a_writer_waits_for_readers_whose_leases_end_by_themselves(world: World) -> None:
    client, other = world.client(), world.client()

    async def reads(lease: float) -> AnyHold:
        return await client.rwlock("a", lease=lease).read().acquire()

    last = [await world.spawn(reads, lease).join() for lease in (0.2, 0.5)][-1]
    async with other.rwlock("a", timeout=SOON).write():
        assert not last.is_held, "the writer got in before the last reader's lease ended"


@case(processes=True)
async def test_processes_read_together_and_write_alone(world: World) -> None:
    client, child, second = world.client(), world.child(), world.child()
    first = await world.blocking(partial(child.call, "read", name="a"))
    async with client.rwlock("a", timeout=0).read() as mine:
        assert mine.fence > first
        with raises(Refused, "AcquireTimeout"):
            await world.blocking(partial(second.call, "write", name="a", timeout=0))
    second.send("write", name="a", timeout=SOON)
    await world.until_waiting(client, "a", 1)
    assert await client.rwlock("a").read().try_acquire() is None, "a reader overtook the writer"
    await world.blocking(partial(child.call, "release"))
    assert await world.blocking(second.receive) > mine.fence
    assert await client.rwlock("a").read().try_acquire() is None
    await world.blocking(partial(second.call, "release"))
    assert await client.rwlock("a").write().try_acquire() is not None


@case(processes=True)
async def test_the_death_of_one_readers_process_does_not_affect_the_others(world: World) -> None:
    client, other, child = world.client(), world.client(), world.child()
    await world.blocking(partial(child.call, "read", name="a", lease=1.5, renew=True))
    mine = await client.rwlock("a").read().acquire()
    writer = world.spawn(other.rwlock("a", timeout=60).write().acquire)
    await world.until_waiting(client, "a", 1)
    child.kill()

    async def only_ours() -> bool:
        return [held.fence for held in (await client.inspect("a")).holders] == [mine.fence]

    await world.until(only_ours)
    await world.sleep(0.1)
    assert mine.is_held and not writer.done, "the writer did not wait for the other reader"
    await mine.release()
    await (await writer.join()).release()


@case(processes=True)
async def test_the_write_lock_of_a_killed_process_becomes_free(world: World) -> None:
    client, child = world.client(), world.child()
    fence = await world.blocking(partial(child.call, "write", name="a", lease=1.5, renew=True))
    assert await client.rwlock("a").read().try_acquire() is None
    child.kill()
    async with client.rwlock("a", timeout=SOON).read() as mine:
        assert mine.fence > fence


@case()
async def test_read_and_write_holds_can_be_detached_and_attached(world: World) -> None:
    client, taker, other = world.client(), world.client(), world.client()
    text = await (await client.rwlock("a").read().acquire()).detach()
    reading = await taker.attach("a", text)
    assert await other.rwlock("a").write().try_acquire() is None
    async with other.rwlock("a", timeout=0).read():
        await reading.release()
    text = await (await client.rwlock("a").write().acquire()).detach()
    writing = await taker.attach("a", text, owner="me")
    async with taker.rwlock("a", owner="me").read() as inside:
        assert inside.fence == writing.fence
        assert await other.rwlock("a").read().try_acquire() is None
    assert writing.is_held
    assert await other.rwlock("a").read().try_acquire() is None, (
        "the writer reports a write hold that the store has not"
    )
    await writing.release()
    assert not await other.names()
