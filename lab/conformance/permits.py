"""Expiring permits: any client that knows the id may release one, and each ends with its lease."""

from __future__ import annotations

import itertools
import logging
import time
from functools import partial
from typing import Any

from lab.conformance.cases import case, raises
from lab.conformance.children import Refused
from lab.conformance.concurrency import SOON
from lab.conformance.locks import LostReply, Traffic
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, ConfigurationError, HoldLost, NotHeld


@case()
async def test_a_permit_can_be_released_by_another_client(world: World) -> None:
    client, other = world.client(), world.client()
    ours, theirs = client.permits("a", 2), other.permits("a", 2)
    first, second = await ours.acquire(), await ours.acquire(timeout=0)
    assert isinstance(first, str) and first != second
    assert await theirs.try_acquire() is None
    with raises(AcquireTimeout, "'a'", "pid"):
        await theirs.acquire(timeout=0)
    await theirs.release(first)
    assert (await ours.in_use(), await ours.available()) == (1, 1)
    third = await theirs.acquire(timeout=0)
    await world.spawn(ours.release, second).join()
    await ours.release(third)
    assert (await theirs.in_use(), await theirs.available()) == (0, 2)


@case()
async def test_the_release_of_a_permit_serves_the_next_waiter(world: World) -> None:
    client, other, third = world.client(), world.client(), world.client()
    permit = await client.permits("a", 1).acquire()
    waiters = [world.spawn(other.permits("a", 1, timeout=SOON).acquire) for _ in range(2)]
    await world.until_waiting(client, "a", 2)
    await third.permits("a", 1).release(permit)
    await world.until(lambda: any(waiter.done for waiter in waiters))
    await world.until_waiting(client, "a", 1)
    for waiter in sorted(waiters, key=lambda waiter: not waiter.done):
        permit = await waiter.join()
        assert await client.permits("a", 1).in_use() == 1
        (holder,) = (await client.inspect("a")).holders
        assert holder.remaining > 20, "the permit was granted for less than its lease"
        await third.permits("a", 1).release(permit)


@case()
async def test_never_more_permits_are_in_use_than_exist_under_load(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    inside: list[str] = []

    async def work(number: int) -> None:
        taker, giver = clients[number % 3], clients[(number + 1) % 3]
        for _ in range(4):
            permit = await taker.permits("a", 2, timeout=60).acquire()
            inside.append(permit)
            await world.sleep(0.002)
            assert len(inside) <= 2
            inside.remove(permit)
            await giver.permits("a", 2).release(permit)

    for worker in [world.spawn(work, number) for number in range(9)]:
        await worker.join(60)


@case()
async def test_a_permit_is_not_renewed_and_expires_with_its_lease(world: World) -> None:
    client, other = world.client(), world.client()
    began = time.monotonic()
    permit = await client.permits("a", 1, lease=0.6).acquire()
    (holder,) = (await other.inspect("a")).holders
    assert 0 < holder.remaining <= 0.6
    theirs = await other.permits("a", 1, timeout=SOON).acquire()
    assert time.monotonic() - began >= 0.55, (
        "the permit was granted to another client before its lease ended"
    )
    assert client.statistics().renewals == 0 and client.statistics().lost == 0
    with raises(HoldLost, "'a'"):
        await client.permits("a", 1).release(permit)
    assert await client.permits("a", 1).in_use() == 1, (
        "the late release affected the permit of another client"
    )
    await other.permits("a", 1).release(theirs)


@case()
async def test_acquire_can_set_the_lease_of_a_permit(world: World) -> None:
    client, other = world.client(), world.client()
    permits = client.permits("a", 3, lease=50)
    taken = [
        await permits.acquire(),
        await permits.acquire(lease=5),
        await permits.try_acquire(lease=500, timeout=1),
    ]
    remaining = [holder.remaining for holder in (await other.inspect("a")).holders]
    assert remaining[1] <= 5 < 30 < remaining[0] <= 50 < 400 < remaining[2] <= 500
    assert await permits.try_acquire(lease=1, timeout=0.1) is None
    for permit in taken:
        await permits.release(permit)


@case()
async def test_a_permit_outlives_the_client_that_took_it(world: World) -> None:
    client, other = world.client(), world.client()
    permit = await client.permits("a", 1).acquire()
    await client.close()
    assert await other.permits("a", 1).in_use() == 1
    assert await other.permits("a", 1).try_acquire() is None
    await other.permits("a", 1).release(permit)
    assert await other.permits("a", 1).available() == 1


@case(processes=True)
async def test_a_permit_outlives_its_process_and_can_be_released_by_another(world: World) -> None:
    client, child, second = world.client(), world.child(), world.child()
    permit = await world.blocking(partial(child.call, "take_permit", name="a", of=1, lease=60))
    child.kill()
    await world.sleep(0.1)
    assert await client.permits("a", 1).try_acquire() is None
    await world.blocking(partial(second.call, "give_permit", name="a", of=1, permit=permit))
    permit = await client.permits("a", 1).acquire(timeout=0)
    await world.blocking(partial(second.call, "give_permit", name="a", of=1, permit=permit))
    with raises(Refused, "HoldLost"):
        await world.blocking(partial(second.call, "give_permit", name="a", of=1, permit=permit))


@case()
async def test_any_client_that_knows_the_id_can_renew_a_permit(world: World) -> None:
    client, other = world.client(), world.client()
    permit = await client.permits("a", 1, lease=1).acquire()
    await other.permits("a", 1).renew(permit, lease=60)
    (holder,) = (await other.inspect("a")).holders
    assert 30 < holder.remaining <= 60
    await client.permits("a", 1).renew(permit)  # by the lease it was acquired with
    (holder,) = (await other.inspect("a")).holders
    assert holder.remaining <= 1
    await other.permits("a", 1).renew(permit, lease=60)
    await world.sleep(1.1)
    assert await client.permits("a", 1).try_acquire() is None
    await client.permits("a", 1).release(permit)
    with raises(HoldLost, "'a'"):
        await client.permits("a", 1).renew(permit, lease=60)
    assert not await other.names(), "the renewal recreated a released permit"


@case()
async def test_a_permit_can_be_released_only_once(world: World) -> None:
    client, other = world.client(), world.client()
    permits = client.permits("a", 2)
    permit, theirs = await permits.acquire(), await other.permits("a", 2).acquire()
    await permits.release(permit)
    for _ in range(2):
        with raises(HoldLost, "'a'"):
            await permits.release(permit)
        with raises(HoldLost, "'a'"):
            await other.permits("a", 2).release(permit)
    assert await permits.in_use() == 1
    await permits.release(theirs)


@case()
async def test_a_permit_id_is_refused_under_another_name(world: World) -> None:
    client = world.client()
    permit = await client.permits("a", 2).acquire()
    with raises(HoldLost, "'b'"):
        await client.permits("b", 2).release(permit)
    with raises(HoldLost, "'b'"):
        await client.permits("b", 2).renew(permit)
    assert await client.permits("a", 2).in_use() == 1
    await client.permits("a", 2).release(permit)


@case()
async def test_invalid_permit_ids_are_refused_before_any_request(world: World) -> None:
    traffic = Traffic()
    permits = world.client(hook=traffic).permits("a", 2)
    wrong: list[Any] = ["", "x", "lf1", "lf1::::", "lf2:a-1:5:30.0:2:1", None, 7, b"lf1:a-1:5"]
    wrong += ["lf1:a-1:five:30.0:2:1", "lf1:a-1:5:nan:2:1", "lf1:a-1:5:30.0:2:1:x"]
    for text in wrong:
        for verb in (permits.release, permits.renew):
            with raises(ConfigurationError):
                await verb(text)
    with raises(ConfigurationError, "lease"):
        await permits.acquire(lease=0)
    with raises(ConfigurationError, "timeout"):
        await permits.try_acquire(timeout=-1)
    assert not traffic.verbs, "a request was sent to the store"


@case()
async def test_the_id_of_a_permit_appears_in_no_log_message_or_error(world: World) -> None:
    client, other = world.client(), world.client()
    texts: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    log, recorder = logging.getLogger("lockfast"), Recorder()
    level, propagate = log.level, log.propagate
    log.addHandler(recorder)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        permits = client.permits("a", 1)
        permit = await permits.acquire()
        secret = permit.split(":")[1]
        with raises(AcquireTimeout) as refused:
            await other.permits("a", 1).acquire(timeout=0.05)
        snapshot = await other.inspect("a")
        texts += [repr(permits.raw), repr(client.raw), str(refused), repr(snapshot)]
        assert await other.break_hold("a", snapshot.holders[0].fence)
        with raises(HoldLost) as lost:
            await permits.release(permit)
        texts += [str(lost), repr(lost.error)]
        with raises(ConfigurationError) as wrong:
            await permits.release(permit + ":x")
        texts.append(str(wrong))
    finally:
        log.removeHandler(recorder)
        log.setLevel(level)
        log.propagate = propagate
    assert len(secret) > 20 and len(texts) > 6
    assert not [text for text in texts if secret[:20] in text], "the id was revealed"


@case()
async def test_a_permit_can_be_attached_as_a_hold(world: World) -> None:
    client, taker = world.client(), world.client(lease=0.9)
    permits = client.permits("a", 2, lease=1)
    permit, second = await permits.acquire(), await permits.acquire(lease=60)
    hold = await taker.attach("a", permit)
    other = await taker.attach("a", second)  # each permit has an owner of its own
    await world.sleep(1.3)
    assert hold.is_held and other.is_held and hold.fence < other.fence, (
        "an attached hold was not renewed"
    )
    with raises(NotHeld):
        await client.attach("a", permit)  # the other client has attached it
    await hold.release()
    await other.release()
    assert await permits.in_use() == 0
    with raises(HoldLost):
        await permits.release(permit)


@case()
async def test_an_interruption_at_any_step_of_acquiring_a_permit_leaves_none_in_use(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    taken: list[str] = []

    async def acquire() -> None:
        taken.append(await client.permits("a", 1).acquire(timeout=SOON))

    for step in itertools.count():
        interrupted = await world.interrupted(step, acquire)
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
        assert not taken and not await other.names(), (
            f"a permit whose id nobody knows, at step {step}"
        )
    assert step >= 4 and len(taken) == 1
    for step in itertools.count():
        interrupted = await world.interrupted(step, partial(client.permits("a", 1).release, *taken))
        if not interrupted:
            break
        assert not await other.names(), f"left behind by an interruption at step {step}"
        taken = [await client.permits("a", 1).acquire(timeout=0)]
    assert step >= 2


@case()
async def test_a_permit_is_acquired_and_released_although_replies_are_lost(world: World) -> None:
    other = world.client()
    for verb in ("claim", "transfer", "release"):
        lost = LostReply(verb)
        permits = world.client(hook=lost).permits("a", 1)
        permit = await permits.acquire(timeout=0)
        assert (await other.permits("a", 1).in_use()) == 1
        await permits.release(permit)
        assert lost.times == 1, f"no reply of {verb} was lost: the case tests nothing"
        assert not await other.names()
