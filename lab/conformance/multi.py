"""Multi-locks: several names as one lock, all or none, in whatever order the caller lists them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from lab.conformance.adapters import AnyClient
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, ConfigurationError, NotHeld, WouldDeadlock, aio, sync


@case()
async def test_a_multi_lock_takes_all_names_or_none(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await other.lock("b", label="nightly").acquire()
    multi = client.multi_lock("a", "b", "c")
    assert await multi.try_acquire() is None and not multi.is_held
    assert await other.names() == ["b"], "a refused multi-lock kept some names"
    for timeout in (0, 0.2):
        with raises(AcquireTimeout, "'b'", "nightly") as caught:
            await multi.acquire(timeout=timeout)
        assert caught.error.name == "b" and caught.error.timeout == timeout
        assert await other.names() == ["b"] and not (await other.inspect("b")).waiters
    await hold.release()
    async with multi as hold:
        assert hold.is_held and multi.is_held and await other.names() == ["a", "b", "c"]
        for name in ("a", "b", "c"):
            assert await other.lock(name).try_acquire() is None
    assert not hold.is_held and not multi.is_held and not await other.names()


@case()
async def test_a_multi_lock_takes_each_name_once_in_sorted_order_with_its_own_fence(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    multi = client.multi_lock("c", "a", "b", "a", client.lock("c"))
    assert multi.names == ["a", "b", "c"]
    hold = await multi.acquire()
    assert hold.names == ["a", "b", "c"] and list(hold.fences) == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        (holder,) = (await other.inspect(name)).holders
        assert holder.fence == hold.fences[name] > 0
    before = hold.fences
    await hold.release()
    async with other.multi_lock("b", "a") as again:
        assert all(again.fences[name] > before[name] for name in ("a", "b"))


@case()
async def test_one_request_takes_all_names_and_one_releases_them(world: World) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    for _ in range(2):
        traffic.verbs.clear()
        async with client.multi_lock("b", "a", "c") as hold:
            assert traffic.verbs == ["claim"]
            assert hold.is_held and await hold.remaining() > client.longest_validity(30) * 2 / 3
            await hold.check()
        assert traffic.verbs == ["claim", "release"]


@case()
async def test_a_large_number_of_names_is_taken_in_few_requests(world: World) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    names = [f"n{number:03}" for number in range(150)]
    async with client.multi_lock(*names) as hold:
        assert hold.names == names and len(set(hold.fences)) == 150
        assert await other.names() == names
        assert await other.multi_lock("n149", "n000").try_acquire() is None
    assert not await other.names()
    assert traffic.verbs.count("claim") == traffic.verbs.count("release") == 2
    blocker = await other.lock("n120").acquire()
    assert await client.multi_lock(*names).try_acquire() is None
    assert await other.names() == ["n120"]
    await blocker.release()


@case()
async def test_multi_locks_with_names_in_different_orders_never_deadlock(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    inside: dict[str, int] = {}
    rounds = [0]

    async def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(5):
            names = chance.sample("abcdef", chance.randint(2, 4))
            parts = [
                clients[chance.randrange(3)].lock(name) if chance.random() < 0.3 else name
                for name in names
            ]
            async with clients[number % 3].multi_lock(*parts, timeout=60) as hold:
                assert hold.names == sorted(names)
                for name in names:
                    assert name not in inside, f"{name} has two holders"
                    inside[name] = number
                await world.sleep(0.001)
                for name in names:
                    assert inside.pop(name) == number
                rounds[0] += 1

    for worker in [world.spawn(work, number) for number in range(9)]:
        await worker.join(90)
    assert rounds[0] == 45


@case()
async def test_a_waiting_multi_lock_holds_the_names_before_the_busy_one_and_none_after_it(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    blocker = await other.lock("b").acquire()
    waiter = world.spawn(client.multi_lock("c", "b", "a", timeout=SOON).acquire)
    await world.until_waiting(other, "b", 1)
    assert await other.lock("a").try_acquire() is None, "a name before the busy one is not held"
    # The nodes of a cluster are asked in parallel: the release of the names after it may lag.
    in_parallel = "+cluster://" in world.url
    after = await other.lock("c").try_acquire(timeout=SOON / 2 if in_parallel else 0)
    assert after is not None, "a name after the busy one is held"
    await blocker.release()
    await world.until_waiting(other, "c", 1)
    assert await other.lock("b").try_acquire() is None
    await after.release()
    hold = await waiter.join()
    assert hold.is_held and await other.names() == ["a", "b", "c"]
    await hold.release()


@case()
async def test_a_multi_lock_that_times_out_releases_all_names_to_other_waiters(
    world: World,
) -> None:
    client, other, third = world.client(), world.client(), world.client()
    blocker = await other.lock("c").acquire()

    async def impatient() -> None:
        with raises(AcquireTimeout, "'c'", "1 s"):
            await client.multi_lock("a", "b", "c").acquire(timeout=1)

    trying = world.spawn(impatient)
    await world.until_waiting(other, "c", 1)
    waiting = world.spawn(third.multi_lock("a", "b", timeout=SOON).acquire)
    await world.until_waiting(other, "a", 1)
    await trying.join()
    hold = await waiting.join()
    assert hold.is_held and blocker.is_held and not (await other.inspect("c")).waiters
    assert client.statistics().held == client.statistics().waiting == 0
    await hold.release()
    await blocker.release()


@case()
async def test_a_multi_lock_re_enters_the_names_its_owner_already_holds(world: World) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    async with client.lock("b") as outer:
        async with client.multi_lock("a", "b", "c") as hold:
            assert hold.fences["b"] == outer.fence
            async with client.multi_lock("c", "a") as inner:
                assert inner.fences == {name: hold.fences[name] for name in ("a", "c")}
            assert hold.is_held and await other.names() == ["a", "b", "c"]
            blocker = await other.lock("d").acquire()
            assert await client.multi_lock("a", "b", "d").try_acquire() is None
            assert hold.is_held and outer.is_held, "a refusal released a name that was held before"
            await blocker.release()
        assert outer.is_held and await other.names() == ["b"]
    assert not await other.names()
    assert traffic.verbs.count("claim") == 3, "re-entry sent a request"


@case()
async def test_another_thread_or_task_is_another_owner_of_a_multi_lock(world: World) -> None:
    client = world.client()
    multi = client.multi_lock("a", "b")

    async def other() -> Any:
        assert not multi.is_held
        return await multi.try_acquire()

    async with multi as hold:
        assert multi.is_held and await world.spawn(other).join() is None
    await (await world.spawn(other).join()).release()  # by another thread or task than its owner
    with raises(NotHeld, "'b'"):
        await hold.release()
    with raises(NotHeld):
        await hold.check()


@case()
async def test_one_multi_lock_object_keeps_its_owners_apart(world: World) -> None:
    client = world.client()
    multi = client.multi_lock("a", "b", timeout=60)
    shared = client.multi_lock(client.rwlock("r").read(), timeout=60)
    inside: list[int] = []

    async def work() -> None:
        for _ in range(4):
            async with shared as reading:
                async with multi as hold:
                    inside.append(hold.fences["a"])
                    async with multi as again:
                        await world.sleep(0.001)
                        assert again.fences == hold.fences and inside == [hold.fences["a"]]
                    inside.clear()
                assert reading.is_held, "another owner's exit ended it"
            assert not reading.is_held

    for worker in [world.spawn(work) for _ in range(5)]:
        await worker.join(60)


@case()
async def test_locks_of_several_clients_and_namespaces_are_taken_together(world: World) -> None:
    client, second = world.client(), world.client(namespace="elsewhere")
    other, there = world.client(), world.client(namespace="elsewhere")
    multi = client.multi_lock("a", second.lock("a", lease=50), second.lock("b"))
    async with multi as hold:
        assert hold.names == ["a", "a", "b"] and hold.is_held
        assert await other.names() == ["a"] and await there.names() == ["a", "b"]
        (holder,) = (await there.inspect("a")).holders
        assert holder.remaining > min(client.longest_validity(50), 31), (
            "the lock lost its own lease"
        )
    assert not await other.names() and not await there.names()
    blocker = await there.lock("b").acquire()
    assert await multi.try_acquire() is None
    assert not await other.names() and await there.names() == ["b"]
    await blocker.release()


@case()
async def test_locks_of_several_stores_are_taken_together(world: World) -> None:
    connect: Any = sync.connect if world.api == "blocking" else aio.connect
    elsewhere, further = AnyClient(connect("memory://")), AnyClient(connect("memory://"))
    here = world.client()
    try:
        multi = here.multi_lock("a", elsewhere.lock("a"), "c", further.lock("a"))
        async with multi as hold:
            assert hold.names == ["a", "a", "a", "c"]
            for client in (elsewhere, further):
                assert await client.names() == ["a"], (
                    "the same name in two stores was taken for one lock"
                )
            assert await here.names() == ["a", "c"]
        blocker = await elsewhere.lock("a", owner="x").acquire()
        assert await multi.try_acquire() is None
        assert not await here.names() and not await further.names()
        await blocker.release()
    finally:
        await elsewhere.close()
        await further.close()


@case()
async def test_a_multi_lock_can_include_the_read_or_write_half_of_a_read_write_lock(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    rw, theirs = client.rwlock("r"), other.rwlock("r")
    async with client.multi_lock("a", rw.read()):
        assert await theirs.write().try_acquire() is None
        async with theirs.read():
            pass
        with raises(WouldDeadlock, "'r'"):
            await client.multi_lock("b", rw.write()).acquire()
        assert await other.names() == ["a", "r"]
    async with client.multi_lock("a", rw.write()):
        assert await theirs.read().try_acquire() is None
    async with rw.write() as writing:
        async with client.multi_lock("a", rw.read()):
            pass
        async with rw.read():
            pass
        assert writing.is_held
        assert await theirs.read().try_acquire() is None, (
            "the writer reports a write hold that the store has not"
        )
    multi = await client.multi_lock("a", rw.write()).acquire()
    reading = await rw.read().acquire()
    await multi.release()
    assert reading.is_held and not rw.write().is_held
    async with theirs.read():
        await reading.release()
    assert not await other.names()


@case(needs="semaphore")
async def test_a_multi_lock_reports_a_name_of_another_kind_and_releases_the_others(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    async with other.semaphore("b", 3):
        for timeout in (0, SOON):
            with raises(ConfigurationError, "'b'", "a semaphore of 3", "a lock"):
                await client.multi_lock("a", "b", "c").acquire(timeout=timeout)
        assert await other.names() == ["b"]


@case(needs="semaphore")
async def test_invalid_multi_lock_arguments_are_refused_before_any_request(world: World) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    wrong: list[Any] = [None, 7, b"a", "", "a\0", ["a"], client.semaphore("b", 2).raw, object()]
    wrong.append((aio if world.api == "blocking" else sync).connect("memory://").lock("a"))
    for one in wrong:
        with raises(ConfigurationError):
            client.raw.multi_lock("a", one)
    with raises(ConfigurationError, "at least one"):
        client.multi_lock()
    with raises(ConfigurationError, "lease"):
        client.multi_lock("a", lease=0)
    multi = client.multi_lock("a", "b")
    with raises(ConfigurationError, "timeout"):
        await multi.acquire(timeout=-1)
    with raises(ConfigurationError, "timeout="):
        await multi.try_acquire(blocking_timeout=1)
    assert not traffic.verbs


@case()
async def test_all_names_of_a_multi_lock_are_renewed_by_the_keeper_or_by_renew(
    world: World,
) -> None:
    client, other = world.client(lease=2.0), world.client()
    kept = await client.multi_lock("a", "b").acquire()
    fixed = await client.multi_lock("c", "d", lease=2.0).acquire()
    await fixed.renew(lease=60)
    await world.sleep(2.6)
    for hold in (kept, fixed):
        assert hold.is_held and not hold.lost and not await hold.wait_lost(0)
        await hold.check()
    assert (
        await fixed.remaining() > client.longest_validity(60) / 2
        and 2.0 >= await kept.remaining() > 0
    )
    for name in "abcd":
        assert await other.lock(name).try_acquire() is None
    await fixed.release()
    await kept.release()
    assert await kept.remaining() == 0 and not await kept.wait_lost()


@case()
async def test_an_exception_of_the_body_propagates_and_releases_all_names(world: World) -> None:
    client, other = world.client(), world.client()
    with raises(ZeroDivisionError) as caught:
        async with client.multi_lock("a", "b"), client.multi_lock("b", "c"):
            raise ZeroDivisionError("mine")
    assert str(caught) == "mine" and not getattr(caught.error, "__notes__", [])
    assert not await other.names()
    with raises(ZeroDivisionError) as caught:
        async with client.multi_lock("a", "b") as hold:
            await hold.release()
            raise ZeroDivisionError("mine")
    assert "one release too many" in "".join(caught.error.__notes__)


@case(processes=True)
async def test_multi_locks_of_different_processes_exclude_each_other(world: World) -> None:
    client, child = world.client(), world.child()
    fences = await world.blocking(
        partial(child.call, "acquire_all", names=["c", "a", "b"], lease=1.5, renew=True)
    )
    assert sorted(fences) == ["a", "b", "c"]
    assert await client.multi_lock("b", "x").try_acquire() is None
    assert await client.names() == ["a", "b", "c"]
    child.kill()
    async with client.multi_lock("a", "c", "b", timeout=30) as mine:
        assert all(mine.fences[name] > fences[name] for name in fences)


@case(needs="arrival order")
async def test_a_lock_and_a_multi_lock_are_served_from_one_queue_in_arrival_order(
    world: World,
) -> None:
    client, other, third = world.client(), world.client(), world.client()
    blocker = await other.lock("b").acquire()
    served: list[str] = []

    async def multi() -> None:
        async with client.multi_lock("a", "b", timeout=SOON):
            served.append("multi")

    async def single() -> None:
        async with third.lock("b", timeout=SOON):
            served.append("single")

    tasks = []
    for number, work in enumerate((single, multi, single)):
        tasks.append(world.spawn(work))
        await world.until_waiting(other, "b", number + 1)
    await blocker.release()
    for task in tasks:
        await task.join()
    assert served == ["single", "multi", "single"]
