"""Locks: mutual exclusion, re-entrancy, ownership, fences."""

from __future__ import annotations

import asyncio
import threading

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, BackendError, HoldLost, NotHeld, aio, sync


class Traffic:
    """A hook that records the verbs that a client sends."""

    def __init__(self) -> None:
        self.verbs: list[str] = []

    async def __call__(self, verb: str, moment: str) -> None:
        if moment == "before":
            self.verbs.append(verb)


class LostReply:
    """A hook that loses the reply to a verb that the store executed, at most ``most`` times."""

    def __init__(self, verb: str, most: int = 1) -> None:
        self._verb = verb
        self._most = most
        self.times = 0

    async def __call__(self, verb: str, moment: str) -> None:
        if (verb, moment) == (self._verb, "after") and self.times < self._most:
            self.times += 1
            raise BackendError("the network lost the reply")


@case()
async def test_one_owner_at_a_time_holds_a_lock_among_several_clients(world: World) -> None:
    inside: list[int] = []
    fences: list[int] = []
    clients = [world.client() for _ in range(3)]

    async def work(client: AnyClient, fair: bool) -> None:
        for _ in range(6):
            async with client.lock("shared", timeout=60, fair=fair) as hold:
                inside.append(hold.fence)
                fences.append(hold.fence)
                await world.sleep(0.001)
                assert inside == [hold.fence], f"several holders at once: {inside}"
                inside.clear()

    workers = [
        world.spawn(work, client, fair) for client in clients for fair in (True, True, False)
    ]
    for worker in workers:
        await worker.join(60)
    assert len(fences) == len(workers) * 6
    assert fences == sorted(set(fences)), "a fence was repeated, or decreased"


@case()
async def test_one_lock_object_keeps_its_owners_apart(world: World) -> None:
    lock = world.client().lock("shared", timeout=30)
    inside: list[int] = []

    async def work() -> None:
        for _ in range(5):
            async with lock as hold:
                inside.append(hold.fence)
                assert lock.is_held
                async with lock as again:
                    await world.sleep(0.001)
                    assert again.fence == hold.fence and inside == [hold.fence]
                inside.clear()
            assert not lock.is_held

    for worker in [world.spawn(work) for _ in range(6)]:
        await worker.join(30)


@case()
async def test_a_held_lock_is_refused_to_others_at_once(world: World) -> None:
    holder, other = world.client(), world.client()
    async with holder.lock("a") as hold:
        assert hold.is_held and not hold.lost and hold.name == "a" and hold.fence > 0
        assert await other.lock("a").try_acquire() is None
        with raises(AcquireTimeout):
            await other.lock("a").acquire(timeout=0)
        with raises(AcquireTimeout):
            await other.lock("a", timeout=0).acquire()
        assert await other.lock("a").locked() and not other.lock("a").is_held
        assert await other.lock("b").try_acquire() is not None
    assert not await other.lock("a").locked() and not hold.is_held and not hold.lost
    again = await other.lock("a").try_acquire()
    assert again is not None and again.fence > hold.fence


@case()
async def test_another_thread_or_task_of_the_same_client_is_another_owner(world: World) -> None:
    client = world.client()

    async def other() -> AnyHold | None:
        assert not client.lock("a").is_held
        return await client.lock("a").try_acquire()

    async with client.lock("a"):
        assert client.lock("a").is_held
        assert await world.spawn(other).join() is None


@case()
async def test_the_body_does_not_run_without_the_lock(world: World) -> None:
    holder, other = world.client(), world.client()
    ran = False
    async with holder.lock("a"):
        with raises(AcquireTimeout):
            async with other.lock("a", timeout=0.05):
                ran = True
    assert not ran


@case()
async def test_re_entry_keeps_the_fence_and_sends_nothing_to_the_store(world: World) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    lock = client.lock("a")
    hold = await lock.acquire()
    sent = len(traffic.verbs)
    inner = await client.lock("a", timeout=1).acquire()
    tried = await lock.try_acquire()
    assert tried is not None and {hold.fence, inner.fence, tried.fence} == {hold.fence}
    await tried.release()
    await lock.release()
    assert len(traffic.verbs) == sent and client.statistics().reentered == 2
    assert hold.is_held and await other.lock("a").try_acquire() is None
    await lock.release()
    assert not hold.is_held and not await other.lock("a").locked()


@case()
async def test_one_release_too_many_is_refused(world: World) -> None:
    client, other = world.client(), world.client()
    lock = client.lock("a")
    with raises(NotHeld, "'a'"):
        await lock.release()
    hold = await lock.acquire()
    await hold.release()
    theirs = await other.lock("a").acquire(timeout=0)
    with raises(NotHeld, "'a'"):
        await hold.release()
    with raises(NotHeld, "'a'"):
        await lock.release()
    assert theirs.is_held and await lock.try_acquire() is None


@case()
async def test_concurrent_releases_of_one_hold_release_it_once(world: World) -> None:
    client = world.client()
    for _ in range(5):
        hold = await client.lock("a").acquire(timeout=0)
        refused: list[NotHeld] = []

        async def release(hold: AnyHold = hold, refused: list[NotHeld] = refused) -> None:
            try:
                await hold.release()
            except NotHeld as error:
                refused.append(error)

        for task in [world.spawn(release) for _ in range(3)]:
            await task.join()
        assert len(refused) == 2
    assert not await client.names()


@case()
async def test_only_the_owner_may_release_through_the_lock(world: World) -> None:
    client, stranger = world.client(), world.client()
    lock = client.lock("a")
    hold = await lock.acquire()

    async def release() -> None:
        with raises(NotHeld, "'a'"):
            await lock.release()

    await world.spawn(release).join()
    with raises(NotHeld, "'a'"):
        await stranger.lock("a").release()
    assert hold.is_held and await stranger.lock("a").locked()
    await lock.release()


@case()
async def test_a_hold_can_be_released_by_another_thread_or_task(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a").acquire()
    await world.spawn(hold.release).join()
    assert not hold.is_held and not client.lock("a").is_held
    assert await other.lock("a").try_acquire() is not None


@case()
async def test_a_named_owner_may_span_threads_or_tasks(world: World) -> None:
    client = world.client()
    hold = await client.lock("a", owner="job-7").acquire()

    async def same_owner() -> int:
        lock = client.lock("a", owner="job-7")
        assert lock.is_held
        fence = (await lock.acquire(timeout=0)).fence
        await lock.release()
        await lock.release()
        return fence

    assert await client.lock("a").try_acquire() is None, "this thread or task is another owner"
    assert await client.lock("a", owner="job-8").try_acquire() is None
    assert await world.spawn(same_owner).join() == hold.fence
    assert not hold.is_held and not await client.lock("a").locked()


@case(only="blocking")
async def test_a_new_thread_does_not_inherit_the_hold_of_an_ended_thread(world: World) -> None:
    client = world.client()
    idents: list[int] = []

    async def hold() -> AnyHold:
        idents.append(threading.get_ident())
        return await client.lock("a").acquire()

    async def probe() -> AnyHold | None:
        idents.append(threading.get_ident())
        return await client.lock("a").try_acquire()

    held = await world.spawn(hold).join()
    for _ in range(10):
        assert await world.spawn(probe).join() is None
    assert held.is_held
    await held.release()


@case()
async def test_fences_rise_across_clients_and_after_a_name_was_forgotten(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    fences = []
    for number in range(12):
        async with clients[number % 3].lock("a") as hold:
            fences.append(hold.fence)
        async with clients[number % 2].lock("b"):
            pass
    assert fences == sorted(set(fences))


@case()
async def test_an_exception_of_the_body_propagates_and_releases_the_lock(world: World) -> None:
    client, other = world.client(), world.client()
    with raises(ZeroDivisionError) as caught:
        async with client.lock("a"), client.lock("a"):
            raise ZeroDivisionError("mine")
    assert str(caught) == "mine" and not getattr(caught.error, "__notes__", [])
    assert not await other.lock("a").locked()


@case()
async def test_an_exception_of_the_body_is_not_replaced_by_an_error_of_the_release(
    world: World,
) -> None:
    client = world.client()
    with raises(ZeroDivisionError) as caught:
        async with client.lock("a") as hold:
            await hold.release()
            raise ZeroDivisionError("mine")
    assert "'a'" in "".join(caught.error.__notes__), (
        "the error of the release is missing in the notes"
    )
    with raises(NotHeld):
        async with client.lock("a") as hold:
            await hold.release()


@case()
async def test_a_hold_is_a_context_manager_too(world: World) -> None:
    client = world.client()
    async with await client.lock("a").acquire() as hold:
        assert hold.is_held
    assert not hold.is_held and not await client.lock("a").locked()


@case()
async def test_re_entry_of_a_lost_hold_is_refused_until_the_owner_has_released_it(
    world: World,
) -> None:
    client, other = world.client(lease=0.6), world.client()
    lock = client.lock("a")
    hold = await lock.acquire()
    inner = await lock.acquire()
    assert await other.break_hold("a", hold.fence)
    assert await hold.wait_lost(10)
    with raises(HoldLost, "'a'", str(hold.fence)):
        await lock.acquire(timeout=0)
    with raises(HoldLost):
        await lock.try_acquire()
    assert not lock.is_held
    with raises(HoldLost):
        await inner.release()
    with raises(HoldLost):
        await lock.acquire(timeout=0)
    with raises(HoldLost):
        await lock.release()
    again = await lock.acquire(timeout=5)
    assert again.fence > hold.fence
    with raises(NotHeld):
        await hold.release()
    assert again.is_held
    await again.release()


@case()
async def test_the_sync_and_the_async_api_exclude_and_wake_each_other(world: World) -> None:
    client = world.client()

    async def as_asyncio() -> tuple[object, int]:
        async with aio.connect(world.url) as other:
            tried = await other.lock("a").try_acquire()
            has_tried.set()
            async with other.lock("a", timeout=15) as hold:
                return tried, hold.fence

    def as_threads() -> tuple[object, int]:
        with sync.connect(world.url) as other:
            tried = other.lock("a").try_acquire()
            has_tried.set()
            with other.lock("a", timeout=15) as hold:
                return tried, hold.fence

    has_tried = threading.Event()

    async def other_api() -> tuple[object, int]:
        if world.api == "asyncio":
            return await world.blocking(as_threads)
        return asyncio.run(as_asyncio())

    hold = await client.lock("a").acquire()
    task = world.spawn(other_api)
    await world.until(has_tried.is_set)
    await world.until_waiting(client, "a", 1)
    await hold.release()
    tried, fence = await task.join()
    assert tried is None and fence > hold.fence
