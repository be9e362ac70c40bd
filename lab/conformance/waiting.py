"""Waiting: arrival order, wake-ups, time-outs, and cancelled waiters that leave nothing behind."""

from __future__ import annotations

import itertools
import time
from functools import partial

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import AcquireTimeout


@case(needs="arrival order")
async def test_waiters_of_several_clients_are_served_in_arrival_order(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    served: list[int] = []

    async def wait(number: int) -> None:
        async with clients[number % 3].lock("a", timeout=SOON):
            served.append(number)

    hold = await clients[0].lock("a").acquire()
    waiters = []
    for number in range(7):
        waiters.append(world.spawn(wait, number))
        await world.until_waiting(clients[0], "a", number + 1)
    await hold.release()
    for waiter in waiters:
        await waiter.join()
    assert served == list(range(7))


@case()
async def test_a_newcomer_does_not_overtake_a_waiter(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a").acquire()
    served = world.event()
    may_leave = world.event()

    async def wait() -> None:
        async with other.lock("a", timeout=SOON):
            served.set()
            await may_leave.wait()

    waiter = world.spawn(wait)
    await world.until_waiting(client, "a", 1)
    await hold.release()
    assert await client.lock("a").try_acquire() is None, "the release did not serve the waiter"
    await served.wait()
    may_leave.set()
    await waiter.join()


@case()
async def test_unfair_waiters_are_all_served_in_some_order(world: World) -> None:
    clients = [world.client() for _ in range(2)]
    hold = await clients[0].lock("a").acquire()
    served: list[int] = []

    async def wait(number: int) -> None:
        async with clients[number % 2].lock("a", timeout=30, fair=number == 0):
            served.append(number)

    waiters = [world.spawn(wait, number) for number in range(4)]
    await world.until_waiting(clients[0], "a", 4)
    waiting = (await clients[0].inspect("a")).waiters
    assert sorted(waiter.fair for waiter in waiting) == [False, False, False, True]
    await hold.release()
    for waiter in waiters:
        await waiter.join(30)
    assert sorted(served) == [0, 1, 2, 3]


@case()
async def test_a_waiter_does_not_poll(world: World) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    hold = await other.lock("a").acquire()
    waiter = world.spawn(client.lock("a", timeout=SOON).acquire)
    await world.until_waiting(other, "a", 1)
    await world.sleep(0.6)
    requests = [verb for verb in traffic.verbs if verb in ("claim", "renew")]
    assert len(requests) <= 5, f"it sent {len(requests)} requests while it waited 0.6 s"
    await hold.release()
    await (await waiter.join()).release()


@case()
async def test_a_hand_over_needs_neither_a_refresh_nor_another_claim(world: World) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    took: list[float] = []
    claims: list[int] = []

    async def wait() -> float:
        async with client.lock("a", timeout=SOON):
            return time.monotonic()

    for _ in range(4):
        hold = await other.lock("a").acquire(timeout=SOON)
        waiter = world.spawn(wait)
        await world.until(lambda: client.statistics().waiting == 1)
        await world.sleep(0.05)  # it has sent its second claim by now, and only listens
        before = len(traffic.verbs)
        released = time.monotonic()
        await hold.release()
        took.append(await waiter.join() - released)
        claims.append(traffic.verbs[before:].count("claim"))
    # Without a wake-up the waiter would get it at its next refresh, after about 1.5 seconds.
    assert min(took) < 0.75, f"hand-overs took {took}"
    needed = 1 if client.capabilities.wakes in ("notify", "ask") else 0  # to learn its position
    assert min(claims) == needed, "a grant by the release needs no further claim"


@case()
async def test_hand_overs_between_several_clients_do_not_wait_for_a_refresh(
    world: World,
) -> None:
    clients = [world.client() for _ in range(3)]
    rounds = 10
    began = time.monotonic()

    async def work(client: AnyClient) -> None:
        for _ in range(rounds):
            async with client.lock("a", timeout=60):
                await world.sleep(0)

    for task in [world.spawn(work, client) for client in clients]:
        await task.join(60)
    # If every wake-up were lost, each hand-over would wait for a refresh, about 1.5 seconds.
    assert time.monotonic() - began < rounds * len(clients) * 0.4


@case()
async def test_a_timeout_covers_the_whole_wait_and_its_error_names_the_holder(world: World) -> None:
    holder, client = world.client(), world.client()
    await holder.lock("a", label="nightly").acquire()
    for verb in ("acquire", "try_acquire"):
        lock = client.lock("a", lease=3)
        began = time.monotonic()
        if verb == "acquire":
            with raises(AcquireTimeout, "'a'", "nightly", "pid", "0.3 s") as caught:
                await lock.acquire(timeout=0.3)
            assert isinstance(caught.error, TimeoutError) and caught.error.name == "a"
            assert caught.error.timeout == 0.3 and caught.error.snapshot is not None
            assert [held.who.label for held in caught.error.snapshot.holders] == ["nightly"]
            assert not caught.error.snapshot.waiters, "the waiter is still in the queue"
        else:
            assert await lock.try_acquire(timeout=0.3) is None
        took = time.monotonic() - began
        # One operation may take min(5, lease / 6); a second more for a machine that is busy.
        assert 0.3 <= took < 0.3 + 0.1 + 0.5 + 1.0, f"{verb} took {took} s"
    snapshot = await client.inspect("a")
    assert not snapshot.waiters and len(snapshot.holders) == 1
    assert client.statistics().timed_out == 2 and client.statistics().waiting == 0


@case()
async def test_a_waiter_that_times_out_does_not_block_those_behind_it(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    hold = await clients[0].lock("a").acquire()

    async def impatient() -> AnyHold | None:
        return await clients[1].lock("a").try_acquire(timeout=0.4)

    async def patient() -> int:
        async with clients[2].lock("a", timeout=SOON) as mine:
            return mine.fence

    first = world.spawn(impatient)
    await world.until_waiting(clients[0], "a", 1)
    second = world.spawn(patient)
    await world.until_waiting(clients[0], "a", 2)
    assert await first.join() is None
    await world.until_waiting(clients[0], "a", 1)
    await hold.release()
    assert await second.join() > hold.fence


@case()
async def test_a_waiter_gets_a_lock_whose_lease_ends(world: World) -> None:
    holder, client = world.client(), world.client()
    hold = await holder.lock("a", lease=0.3).acquire()
    began = time.monotonic()
    theirs = await client.lock("a", timeout=SOON).acquire()
    assert time.monotonic() - began < 3 and theirs.fence > hold.fence


@case()
async def test_a_waiter_gets_a_lock_whose_hold_an_operator_breaks(world: World) -> None:
    holder, client, operator = (world.client() for _ in range(3))
    hold = await holder.lock("a").acquire()

    async def wait() -> int:
        async with client.lock("a", timeout=SOON) as mine:
            return mine.fence

    waiter = world.spawn(wait)
    await world.until_waiting(operator, "a", 1)
    assert await operator.break_hold("a", hold.fence)
    assert await waiter.join() > hold.fence


@case()
async def test_a_hold_granted_after_a_wait_is_renewed_like_any_other(world: World) -> None:
    holder, client = world.client(), world.client(lease=0.9)
    hold = await holder.lock("a").acquire()

    async def wait() -> bool:
        async with client.lock("a", timeout=SOON) as mine:
            await world.sleep(1.3)
            held = mine.is_held
            assert await holder.lock("a").try_acquire() is None
            return held

    waiter = world.spawn(wait)
    await world.until_waiting(holder, "a", 1)
    await hold.release()
    assert await waiter.join()


@case(only="asyncio")
async def test_a_cancelled_waiter_leaves_the_queue(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await other.lock("a").acquire()
    tasks = [world.spawn(partial(client.lock("a").acquire)) for _ in range(2)]
    await world.until_waiting(other, "a", 2)
    tasks[0].cancel()
    await world.until_waiting(other, "a", 1)
    tasks[1].cancel()
    await world.until_waiting(other, "a", 0)
    await world.until(lambda: client.statistics().waiting == 0)
    await hold.release()
    assert not await other.names()
    assert [await task.outcome() for task in tasks] == [None, None]


@case(only="asyncio")
async def test_a_cancellation_that_crosses_the_grant_leaves_nothing_behind(world: World) -> None:
    client, other = world.client(), world.client()
    for number in range(12):
        hold = await other.lock("a").acquire(timeout=SOON)
        task = world.spawn(partial(client.lock("a", timeout=SOON).acquire))
        await world.until_waiting(other, "a", 1)
        if number % 3 == 0:
            task.cancel()
        await hold.release()
        if number % 3 == 1:
            task.cancel()
        for _ in range(number):
            await world.sleep(0)
        task.cancel()
        if (held := await task.outcome()) is not None:
            await held.release()
        assert client.statistics().held == client.statistics().waiting == 0
        assert not await other.lock("a").locked(), f"left behind in round {number}"


@case()
async def test_an_interruption_at_any_step_of_acquiring_leaves_nothing_behind(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():

        async def cycle() -> None:
            await (await client.lock("a").acquire(timeout=SOON)).release()

        interrupted = await world.interrupted(step, cycle)
        assert not await other.names(), f"left behind by an interruption at step {step}"
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 4, "acquire and release have at least a step before and after each verb"


@case()
async def test_an_interruption_at_any_step_of_waiting_leaves_nothing_behind(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    hold = await other.lock("a").acquire()
    for step in itertools.count():

        async def wait() -> None:
            assert await client.lock("a").try_acquire(timeout=0.05) is None

        interrupted = await world.interrupted(step, wait)
        assert not (await other.inspect("a")).waiters, f"left behind at step {step}"
        assert client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 6 and hold.is_held  # claim, watch, wait, leave, and some between


@case()
async def test_an_interruption_at_any_step_of_releasing_leaves_nothing_behind(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():
        hold = await client.lock("a").acquire(timeout=0)
        interrupted = await world.interrupted(step, hold.release)
        assert not hold.is_held and not client.lock("a").is_held
        assert not await other.names(), f"left behind by an interruption at step {step}"
        if not interrupted:
            break
    assert step >= 2


@case()
async def test_an_interrupted_waiter_passes_its_grant_to_the_next(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in range(8):
        hold = await other.lock("a").acquire(timeout=SOON)

        async def release(hold: AnyHold = hold) -> None:
            await world.sleep(0.03)
            await hold.release()

        async def wait() -> None:
            async with client.lock("a", timeout=SOON):
                pass

        releasing = world.spawn(release)
        await world.interrupted(step, wait)
        await releasing.join()
        assert not await other.names(), f"left behind by an interruption at step {step}"
