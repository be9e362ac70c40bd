"""Read-write locks: several readers or one writer, in arrival order."""

from __future__ import annotations

import time
from typing import Any

from lab.conformance.adapters import AnyClient, AnyHold
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON, AnyTask, Event
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import ConfigurationError, HoldLost, NotHeld, WouldDeadlock


class Visitors:
    """Readers and writers, each an owner of its own, that arrive one by one and leave on demand."""

    def __init__(self, world: World, client: AnyClient, **terms: Any) -> None:
        self._world = world
        self._client = client
        self._terms: dict[str, Any] = {"timeout": SOON, **terms}
        self.entered: list[str] = []
        self._may_leave: dict[str, Event] = {}
        self._tasks: dict[str, AnyTask] = {}

    async def arrive(self, who: str) -> None:
        """Start a reader (``who`` begins with r) or a writer (w); return once it is queued."""
        before = len((await self._client.inspect("a")).waiters)
        self._may_leave[who] = self._world.event()
        self._tasks[who] = self._world.spawn(self._visit, who)
        await self._world.until_waiting(self._client, "a", before + 1)

    async def _visit(self, who: str) -> None:
        rw = self._client.rwlock("a", **self._terms)
        async with rw.read() if who.startswith("r") else rw.write():
            self.entered.append(who)
            await self._may_leave[who].wait()

    async def have_entered(self, *who: str) -> None:
        """Wait for exactly these visitors to have entered so far, in any order."""
        await self._world.until(lambda: len(self.entered) >= len(who))
        assert sorted(self.entered) == sorted(who)

    async def leave(self, who: str) -> None:
        self._may_leave[who].set()
        await self._tasks[who].join()


@case()
async def test_several_readers_hold_the_lock_at_once_and_a_writer_holds_it_alone(
    world: World,
) -> None:
    clients = [world.client() for _ in range(3)]
    other = world.client()
    holds = [await client.rwlock("a").read().acquire(timeout=0) for client in clients]

    async def reads() -> AnyHold | None:
        return await clients[0].rwlock("a").read().try_acquire()

    holds.append(await world.spawn(reads).join())
    assert all(hold.is_held for hold in holds)
    assert len({hold.fence for hold in holds}) == 4, "two readers share a fence"
    for hold in holds:
        assert await other.rwlock("a").write().try_acquire() is None
        await hold.release()
    async with other.rwlock("a", timeout=SOON).write() as writing:
        assert writing.fence > max(hold.fence for hold in holds)
        for client in clients:
            assert await client.rwlock("a").read().try_acquire() is None
            assert await client.rwlock("a").write().try_acquire() is None
    assert await clients[0].rwlock("a").read().try_acquire() is not None


@case()
async def test_readers_and_writers_are_never_together_under_load(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    reading: list[int] = []
    writing: list[int] = []
    fences: list[int] = []
    most = [0]

    async def read(client: AnyClient, fair: bool) -> None:
        for _ in range(5 if fair else 15):
            async with client.rwlock("a", timeout=60, fair=fair).read() as hold:
                reading.append(hold.fence)
                most[0] = max(most[0], len(reading))
                fences.append(hold.fence)
                assert not writing, "a reader got in during a write"
                await world.sleep(0.003)
                assert not writing
                reading.remove(hold.fence)
            if not fair:
                await world.sleep(0.01)  # else unfair readers would keep writers out for ever

    async def write(client: AnyClient, fair: bool) -> None:
        for _ in range(5):
            async with client.rwlock("a", timeout=60, fair=fair).write() as hold:
                writing.append(hold.fence)
                fences.append(hold.fence)
                await world.sleep(0.002)
                assert writing == [hold.fence] and not reading, "a writer was not alone"
                writing.clear()

    tasks = [
        world.spawn(work, client, fair)
        for client in clients
        for work, fair in ((read, True), (read, True), (write, True), (read, False), (write, False))
    ]
    for task in tasks:
        await task.join(60)
    assert len(set(fences)) == len(fences) == len(tasks) * 5 + 3 * 10, "a fence was repeated"
    assert most[0] > 1, "no two readers overlapped: the case tests nothing"


@case()
async def test_a_waiting_writer_is_not_overtaken_by_readers_that_come_later(world: World) -> None:
    client, other = world.client(), world.client()
    visitors = Visitors(world, client)
    reading = await other.rwlock("a").read().acquire()
    await visitors.arrive("w")
    await visitors.arrive("r")
    third = world.client()
    assert await third.rwlock("a").read().try_acquire() is None, "a reader overtook the writer"
    await reading.release()
    await visitors.have_entered("w")
    await visitors.leave("w")
    await visitors.have_entered("w", "r")
    await visitors.leave("r")


@case()
async def test_a_writer_is_served_in_an_endless_stream_of_readers(
    world: World,
) -> None:
    clients = [world.client() for _ in range(2)]
    first, second = world.event(), world.event()
    wrote: list[int] = []

    async def read_repeatedly(client: AnyClient, entered: Event) -> None:
        while not wrote:
            async with client.rwlock("a", timeout=60).read():
                entered.set()
                await world.sleep(0.02)

    readers = [
        world.spawn(read_repeatedly, clients[number % 2], event)
        for number, event in enumerate((first, second, first, second))
    ]
    await first.wait()
    await second.wait()
    writing = await world.client().rwlock("a").write().try_acquire(timeout=SOON)
    assert writing is not None, "the writer starved"
    wrote.append(writing.fence)
    await writing.release()
    for reader in readers:
        await reader.join(30)


@case(needs="arrival order")
async def test_after_a_writer_all_readers_up_to_the_next_writer_enter_together(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    visitors = Visitors(world, client)
    writing = await other.rwlock("a").write().acquire()
    for who in ("r1", "r2", "r3", "w1", "r4", "r5", "w2"):
        await visitors.arrive(who)
    await writing.release()
    if client.capabilities.wakes != "ask":  # else they were only woken
        holders = (await client.inspect("a")).holders
        assert len(holders) == 3, "the release did not serve all three readers"
    await visitors.have_entered("r1", "r2", "r3")
    await visitors.leave("r1")
    await visitors.leave("r3")
    await visitors.have_entered("r1", "r2", "r3")  # the writer waits for the last of them
    await visitors.leave("r2")
    await visitors.have_entered("r1", "r2", "r3", "w1")
    await visitors.leave("w1")
    await visitors.have_entered("r1", "r2", "r3", "w1", "r4", "r5")
    await visitors.leave("r4")
    await visitors.leave("r5")
    await visitors.have_entered("r1", "r2", "r3", "w1", "r4", "r5", "w2")
    await visitors.leave("w2")


@case()
async def test_an_unfair_reader_overtakes_a_waiting_writer(world: World) -> None:
    client, other = world.client(), world.client()
    visitors = Visitors(world, client)
    reading = await other.rwlock("a").read().acquire()
    await visitors.arrive("w")
    hasty = await world.client().rwlock("a", fair=False).read().try_acquire()
    if client.capabilities.overtakes:
        assert hasty is not None, "an unfair claim that fits was refused"
        await reading.release()
        assert not visitors.entered
        await hasty.release()
    else:
        assert hasty is None, "a reader overtook, although the store does not permit it"
        await reading.release()
    await visitors.have_entered("w")
    await visitors.leave("w")


@case()
async def test_an_unfair_writer_does_not_block_readers_and_is_served_when_the_lock_is_free(
    world: World,
) -> None:
    client, other = world.client(), world.client()
    visitors = Visitors(world, client, fair=False)
    reading = await other.rwlock("a").read().acquire()
    await visitors.arrive("w")
    if client.capabilities.overtakes:
        async with world.client().rwlock("a", timeout=0).read():
            assert not visitors.entered
    else:
        assert await world.client().rwlock("a").read().try_acquire() is None
    await reading.release()
    await visitors.have_entered("w")
    await visitors.leave("w")


@case()
async def test_both_halves_of_a_read_write_lock_are_re_entered_without_a_request(
    world: World,
) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    rw = client.rwlock("a")
    for outer, inner in ((rw.read(), rw.read()), (rw.write(), rw.write()), (rw.write(), rw.read())):
        hold = await outer.acquire()
        sent = len(traffic.verbs)
        async with inner as again:
            assert again.fence == hold.fence and inner.is_held and outer.is_held
            assert not await other.rwlock("a").write().try_acquire()
        assert hold.is_held and len(traffic.verbs) == sent, "re-entry sent a request"
        await outer.release()
        assert not hold.is_held and not await other.names()


@case()
async def test_a_reader_that_asks_to_write_gets_would_deadlock_at_once_and_keeps_reading(
    world: World,
) -> None:
    traffic = Traffic()
    client, other = world.client(hook=traffic), world.client()
    rw = client.rwlock("a")
    reading = await rw.read().acquire()
    sent = len(traffic.verbs)
    began = time.monotonic()
    for _ in range(2):
        with raises(WouldDeadlock, "'a'"):
            await rw.write().acquire()
        with raises(WouldDeadlock, "'a'"):
            await rw.write().acquire(timeout=60)
        with raises(WouldDeadlock, "'a'"):
            await rw.write().try_acquire()
        with raises(WouldDeadlock, "'a'"):
            await rw.write().try_acquire(timeout=60)
        await rw.read().acquire()  # in the second round it holds the read half twice
    assert time.monotonic() - began < 30, "the reader waited for itself"
    assert "claim" not in traffic.verbs[sent:]
    assert reading.is_held and rw.read().is_held and not rw.write().is_held
    snapshot = await other.inspect("a")
    assert not snapshot.waiters and [held.fence for held in snapshot.holders] == [reading.fence]
    for _ in range(3):
        await rw.read().release()
    async with rw.write():
        pass


@case()
async def test_is_held_of_each_half_is_true_only_for_its_owner(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")

    async def seen_by_another() -> tuple[bool, bool]:
        return rw.read().is_held, rw.write().is_held

    assert not rw.read().is_held and not rw.write().is_held
    async with rw.read():
        assert rw.read().is_held and not rw.write().is_held and await rw.write().locked()
        assert await world.spawn(seen_by_another).join() == (False, False)
    async with rw.write():
        assert rw.write().is_held and rw.read().is_held, "a writer may read"
        assert await world.spawn(seen_by_another).join() == (False, False)
    assert not rw.read().is_held and not rw.write().is_held and not await rw.read().locked()


@case()
async def test_a_half_that_is_not_held_cannot_be_released(world: World) -> None:
    client, other = world.client(), world.client()
    rw = client.rwlock("a")
    for half in (rw.read(), rw.write()):
        with raises(NotHeld, "'a'"):
            await half.release()
    async with rw.read() as reading:
        with raises(NotHeld, "'a'"):
            await rw.write().release()
        assert reading.is_held and await other.rwlock("a").write().try_acquire() is None
    async with rw.write() as writing:
        with raises(NotHeld, "'a'"):
            await rw.read().release()
        assert writing.is_held and await other.rwlock("a").read().try_acquire() is None

    writing, reading = await rw.write().acquire(), await rw.read().acquire()
    await reading.release()
    with raises(NotHeld, "to read"):
        await reading.release()
    assert writing.is_held and await other.rwlock("a").read().try_acquire() is None
    reading = await rw.read().acquire()
    await writing.release()
    with raises(NotHeld, "to write"):
        await writing.release()
    assert reading.is_held
    await reading.release()

    async def release_as_another_owner() -> None:
        for half in (rw.read(), rw.write()):
            with raises(NotHeld, "'a'"):
                await half.release()

    async with rw.write():
        await world.spawn(release_as_another_owner).join()
        assert rw.write().is_held


@case(needs="semaphore")
async def test_a_name_in_use_as_one_primitive_is_refused_for_another(world: World) -> None:
    clients = world.client(), world.client()
    kinds: dict[str, list[Any]] = {
        "a lock": [client.lock("a") for client in clients],
        "a semaphore of 3": [client.semaphore("a", 3) for client in clients],
        "a read-write lock": [clients[0].rwlock("a").read(), clients[1].rwlock("a").write()],
    }
    for kind, (ours, _) in kinds.items():
        async with ours:
            for other, (_, theirs) in kinds.items():
                if other != kind:
                    for timeout in (0, SOON):
                        with raises(ConfigurationError, "'a'", kind, other):
                            await theirs.acquire(timeout=timeout)
                    with raises(ConfigurationError, "'a'", kind, other):
                        await theirs.try_acquire()
        assert not await clients[1].names(), "the name is still in use"


@case()
async def test_the_loss_of_a_writer_is_reported_and_both_halves_refuse_re_entry(
    world: World,
) -> None:
    client, other = world.client(lease=0.6), world.client()
    reported: list[object] = []
    rw = client.rwlock("a", on_lost=reported.append)
    hold = await rw.write().acquire()
    await rw.read().acquire()
    assert await other.break_hold("a", hold.fence)
    assert await hold.wait_lost(SOON)
    await world.until(lambda: reported)
    assert reported == [hold.raw] and not rw.read().is_held and not rw.write().is_held
    for half in (rw.read(), rw.write()):
        with raises(HoldLost, "'a'", str(hold.fence)):
            await half.acquire()
    for half in (rw.read(), rw.write()):
        with raises(HoldLost, "'a'", str(hold.fence)):
            await half.release()
    async with rw.write() as again:
        assert again.fence > hold.fence
