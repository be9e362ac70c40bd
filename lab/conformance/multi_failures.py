"""Failures of multi-locks: interruptions, lost replies, outages, and the loss of one name."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from lab.conformance.adapters import AnyClient, AnyPrimitive
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.locks import LostReply
from lab.conformance.worlds import World
from lockfast import BackendError, HoldLost, NotHeld

SHORT = 1.5  # the keeper renews every third of it; a busy machine answers within a sixth
NAMES = [f"n{number:03}" for number in range(130)]  # more than fit into one request


async def interrupt_each_step(world: World, client: AnyClient, other: AnyClient, work: Any) -> int:
    """Interrupt ``work`` at each of its steps and check that nothing is left behind; return the
    number of steps."""
    for step in itertools.count():
        interrupted = await world.interrupted(step, work)
        left = await other.names()
        assert not left, f"left behind by an interruption at step {step}: {left[:3]}"
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    return step


@case()
async def test_an_interruption_at_any_step_of_a_multi_lock_leaves_nothing_behind(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()

    async def cycle() -> None:
        async with client.multi_lock("a", "b", "c", timeout=SOON):
            pass

    assert await interrupt_each_step(world, client, other, cycle) >= 4


@case()
async def test_an_interruption_leaves_nothing_behind_when_the_names_need_several_requests(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()

    async def cycle() -> None:
        await (await client.multi_lock(*NAMES).acquire(timeout=SOON)).release()

    assert await interrupt_each_step(world, client, other, cycle) >= 8


@case()
async def test_an_interruption_of_a_multi_lock_leaves_nothing_behind_at_any_of_its_clients(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    clients = [world.client(hook=world.step) for _ in range(2)]

    async def cycle() -> None:
        locks = [clients[0].lock("b"), clients[1].lock("d"), clients[0].lock("e")]
        async with client.multi_lock("a", "c", *locks, timeout=SOON):
            pass

    assert await interrupt_each_step(world, client, other, cycle) >= 16
    assert not any(one.statistics().held for one in clients)


@case()
async def test_an_interruption_at_any_step_of_waiting_for_one_name_releases_the_others(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    blocker = await other.lock("c").acquire()
    multi = client.multi_lock("a", "b", "c", "d")

    async def wait() -> None:
        assert await multi.try_acquire(timeout=0.05) is None

    for step in itertools.count():
        interrupted = await world.interrupted(step, wait)
        assert await other.names() == ["c"], f"left behind at step {step}"
        assert not (await other.inspect("c")).waiters, f"still waiting after step {step}"
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 8 and blocker.is_held  # claim, watch, wait, leave, release, and some between
    await blocker.release()


@case()
async def test_an_interrupted_release_of_a_partly_lost_multi_hold_releases_the_rest(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():
        hold = await client.multi_lock("a", "b", "c").acquire(timeout=SOON)
        assert await other.break_hold("b", hold.fences["b"])
        with raises(HoldLost, "'b'"):
            await hold.renew()

        async def release(hold: AnyPrimitive = hold) -> None:
            with raises(HoldLost, "'b'"):
                await hold.release()

        interrupted = await world.interrupted(step, release)
        left = await other.names()
        assert not left, f"left behind by an interruption at step {step}: {left}"
        async with client.lock("b", timeout=SOON):
            pass  # its owner has released the lost hold
        if not interrupted:
            break
    assert step >= 4


@case(only="asyncio")
async def test_a_cancelled_multi_lock_leaves_its_queue_and_releases_the_other_names(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    blocker = await other.lock("b").acquire()
    task = world.spawn(client.multi_lock("a", "b", "c").acquire)
    await world.until_waiting(other, "b", 1)
    behind = world.spawn(other.lock("a", timeout=SOON).acquire)
    await world.until_waiting(other, "a", 1)
    task.cancel()
    await (await behind.join()).release()
    assert await task.outcome() is None and not (await other.inspect("b")).waiters
    await blocker.release()


@case()
async def test_a_multi_lock_holds_all_names_although_the_reply_to_its_claim_is_lost(
    world: World,
) -> None:
    other = world.client()
    for names in (["a", "b", "c"], NAMES):
        lost = LostReply("claim")
        client = world.client(hook=lost)
        async with client.multi_lock(*names, timeout=SOON) as hold:
            assert lost.times == 1, "no reply was lost: the case tests nothing"
            for name in ("n000", "n129") if names is NAMES else names:
                (holder,) = (await other.inspect(name)).holders
                assert holder.fence == hold.fences[name]
        assert not await other.names()


@case()
async def test_a_multi_lock_keeps_its_queue_position_although_the_reply_to_its_claim_is_lost(
    world: World,
) -> None:
    lost = LostReply("claim")
    client, other = world.client(hook=lost), world.client()
    blocker = await other.lock("b").acquire()
    waiter = world.spawn(client.multi_lock("a", "b", "c", timeout=SOON).acquire)
    await world.until_waiting(other, "b", 1)
    await world.sleep(0.05)
    assert len((await other.inspect("b")).waiters) == 1, "it is in the queue twice"
    await blocker.release()
    await (await waiter.join()).release()
    assert lost.times == 1


@case()
async def test_the_release_of_a_multi_lock_is_retried_when_its_reply_is_lost(world: World) -> None:
    other = world.client()
    for names in (["a", "b", "c"], NAMES):
        lost = LostReply("release")
        hold = await world.client(hook=lost).multi_lock(*names).acquire()
        await hold.release()
        assert lost.times == 1 and not hold.is_held and not hold.lost
        assert not await other.names()
        with raises(NotHeld):
            await hold.release()


@case()
async def test_a_multi_lock_that_failed_in_an_outage_leaves_no_claim_at_the_store(
    world: World,
) -> None:
    failing: list[str] = ["after"]

    async def cut(verb: str, moment: str) -> None:
        if moment in failing and verb not in ("inspect", "names"):
            raise BackendError("the network is gone")

    client, other = world.client(hook=cut, lease=20), world.client()
    with raises(BackendError):
        await client.multi_lock("a", "b", "c").acquire(timeout=0)
    failing.clear()

    async def nothing_left() -> bool:
        return not await other.names()

    await world.until(nothing_left, within=10)  # well before their leases end
    assert client.statistics().held == 0


@case()
async def test_a_multi_lock_release_with_an_unknown_outcome_can_be_repeated(world: World) -> None:
    failing: list[str] = []

    async def cut(verb: str, moment: str) -> None:
        if moment in failing and verb in ("release", "release"):
            raise BackendError("the network is gone")

    client, second, other = world.client(hook=cut, lease=3), world.client(), world.client()
    multi = client.multi_lock("a", "b", second.lock("c"), lease=20)
    for moment in ("before", "after"):
        hold = await multi.acquire(timeout=SOON)
        failing.append(moment)
        with raises(BackendError, "unknown"):
            await hold.release()
        failing.clear()
        assert not hold.is_held and await other.lock("c").try_acquire() is not None
        await hold.release()
        left = await other.names()
        assert left == ["c"], f"the release succeeded, and {left} are left"
        with raises(NotHeld):
            await hold.release()
        await other.lock("c").release()


@case()
async def test_the_loss_of_one_name_is_reported_once_and_the_others_are_released(
    world: World,
) -> None:
    client, other = world.client(lease=SHORT), world.client()
    reported: list[object] = []
    multi = client.multi_lock("a", "b", "c", on_lost=reported.append)
    hold = await multi.acquire()
    assert not await hold.wait_lost(0.01) and not hold.lost
    for name in ("b", "c"):
        assert await other.break_hold(name, hold.fences[name])
    assert await hold.wait_lost(SOON)
    assert hold.lost and not hold.is_held and not multi.is_held and await hold.remaining() == 0
    with raises(HoldLost):
        await hold.check()
    await world.until(lambda: reported)
    with raises(HoldLost):
        await multi.acquire(timeout=0)
    with raises(HoldLost) as caught:
        await hold.release()
    assert caught.error.name in ("b", "c")
    assert caught.error.fence == hold.fences[caught.error.name]
    await world.sleep(SHORT / 2)
    assert reported == [hold.raw] and not await other.names(), "the other names were kept"
    async with multi as again:
        assert again.is_held


@case()
async def test_leaving_the_body_after_the_loss_of_one_name_raises_unless_the_body_raised(
    world: World,
) -> None:
    client, other = world.client(lease=SHORT), world.client()
    flag: Any = "flag" if world.api == "asyncio" else None
    with raises(HoldLost, "'b'"):
        async with client.multi_lock("a", "b", on_lost=flag) as hold:
            assert await other.break_hold("b", hold.fences["b"])
            assert await hold.wait_lost(SOON)
    assert not await other.names()
    with raises(ZeroDivisionError) as caught:
        async with client.multi_lock("a", "b", on_lost=flag) as hold:
            assert await other.break_hold("b", hold.fences["b"])
            raise ZeroDivisionError("mine")
    assert "'b'" in "".join(caught.error.__notes__) and not await other.names()


@case(only="asyncio")
async def test_the_body_is_cancelled_when_one_of_its_names_is_lost(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    reached: list[str] = []
    with raises(HoldLost, "'b'"):
        async with client.multi_lock("a", "b", "c") as hold:
            assert await other.break_hold("b", hold.fences["b"])
            try:
                await asyncio.sleep(SOON)
                reached.append("after the loss")
            except asyncio.CancelledError:
                reached.append("cancelled")
                raise
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0 and reached == ["cancelled"]
    await asyncio.sleep(0)
    assert not await other.names()


@case()
async def test_a_name_lost_while_a_multi_lock_waits_for_another_is_reported(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    blocker = await other.lock("c").acquire()

    async def wait() -> None:
        with raises(HoldLost, "'a'"):
            await client.multi_lock("a", "b", "c").acquire(timeout=SOON)

    waiter = world.spawn(wait)
    await world.until_waiting(other, "c", 1)
    (holder,) = (await other.inspect("a")).holders
    assert await other.break_hold("a", holder.fence)
    await world.until(lambda: client.statistics().lost == 1)
    await blocker.release()
    await waiter.join()
    assert not await other.names(), "not all names were released"
    async with client.multi_lock("a", "b", "c", timeout=SOON):
        pass


@case()
async def test_on_lost_is_not_called_for_a_released_multi_lock(world: World) -> None:
    client, other = world.client(lease=SHORT), world.client()
    reported: list[object] = []
    outer = await client.lock("a").acquire()
    async with client.multi_lock("a", "b", on_lost=reported.append):
        pass
    assert await other.break_hold("a", outer.fence)
    assert await outer.wait_lost(SOON)
    await world.sleep(0.1)
    assert not reported, "a released hold was reported as lost"
    with raises(HoldLost):
        await outer.release()


@case()
async def test_closing_a_client_while_its_multi_lock_waits_releases_all_names(world: World) -> None:
    client, other = world.client(), world.client()
    blocker = await other.lock("b").acquire()

    async def wait() -> None:
        with raises(NotHeld, "closed"):
            await client.multi_lock("a", "b", "c").acquire(timeout=SOON)

    waiter = world.spawn(wait)
    await world.until_waiting(other, "b", 1)
    await client.close()
    await waiter.join()
    assert await other.names() == ["b"] and not (await other.inspect("b")).waiters
    await blocker.release()
