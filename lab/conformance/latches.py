"""Latches: closed until counted down, then open, whatever happens to the clients that counted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from lab.conformance.adapters import AnyClient
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON, AnyTask
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import BackendError, ConfigurationError, NotHeld
from lockfast.model import BARRIER, LATCH

BAD_COUNTS = (0, -1, 1.5, True, "3", None, 10_001)


class Failing:
    """A hook that raises `BackendError` for a verb a number of times: after it was executed, or
    "before"."""

    def __init__(self, verb: str, times: float = 1, moment: str = "after") -> None:
        self.when = (verb, moment)
        self.left = times
        self.sent = 0

    async def __call__(self, verb: str, moment: str) -> None:
        self.sent += (verb, moment) == (self.when[0], "before")
        if (verb, moment) == self.when and self.left > 0:
            self.left -= 1
            raise BackendError("the network lost a message")


async def forget(client: AnyClient, name: str) -> None:
    """Remove the counts of a latch. All its waiters must have passed and left."""
    snapshot = await client.inspect(name)
    assert not snapshot.waiters and all(holder.take == 1 for holder in snapshot.holders), snapshot
    for holder in snapshot.holders:
        assert await client.break_hold(name, holder.fence)


async def all_true(waiters: Iterable[AnyTask]) -> None:
    assert [await waiter.join() for waiter in waiters] == [True for _ in waiters]


@case()
async def test_a_latch_that_was_never_counted_down_is_not_open(world: World) -> None:
    client = world.client()
    latch = client.latch("a", 1)
    assert await latch.remaining() == 1
    assert await latch.wait(0) is False
    assert await latch.wait(0.05) is False
    assert await latch.remaining() == latch.count == 1 and latch.name == "a"
    assert not await client.names(), "waiting or reading created the latch"


@case()
async def test_a_latch_opens_exactly_at_the_last_count_down(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    for number, client in enumerate(clients):
        latch = client.latch("a", 3)
        assert await latch.remaining() == 3 - number
        assert await latch.wait(0) is False, f"open after {number} of 3"
        assert await latch.count_down() is True
    for client in clients:
        assert await client.latch("a", 3).remaining() == 0
        assert await client.latch("a", 3).wait(0) is True
    await forget(clients[0], "a")


@case()
async def test_the_last_count_down_lets_all_waiters_of_a_latch_through(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    waiters = [world.spawn(client.latch("a", 2).wait, SOON) for client in clients * 3]
    await world.until_waiting(clients[0], "a", 9)
    assert await clients[0].latch("a", 2).count_down()
    await world.sleep(0.1)
    assert not any(waiter.done for waiter in waiters), "a waiter passed too early"
    assert len((await clients[0].inspect("a")).waiters) == 9
    assert await clients[1].latch("a", 2).count_down()
    if clients[0].capabilities.wakes != "notify":  # else each leaves when it was woken
        left = (await clients[0].inspect("a")).waiters
        assert not left, "the last count-down left some waiting"
    await all_true(waiters)
    await forget(clients[0], "a")


@case()
async def test_an_open_latch_lets_every_later_wait_through_at_once(world: World) -> None:
    client = world.client()
    latch = client.latch("a", 1)
    assert await latch.count_down()
    for _ in range(3):
        assert await latch.wait() is True
        assert await world.client().latch("a", 1).wait(0) is True
    await forget(client, "a")


@case()
async def test_opening_a_latch_wakes_its_waiters(world: World) -> None:
    client, other = world.client(), world.client()
    took: list[float] = []

    async def wait(name: str) -> float:
        assert await client.latch(name, 1).wait(SOON)
        return time.monotonic()

    for number in range(4):
        name = f"a{number}"
        waiter = world.spawn(wait, name)
        await world.until_waiting(other, name, 1)
        await world.sleep(0.05)
        opened = time.monotonic()
        assert await other.latch(name, 1).count_down()
        took.append(await waiter.join() - opened)
        await forget(other, name)
    # Without a wake-up the waiter would pass at its next refresh, after about 1.5 seconds.
    assert min(took) < 0.75, f"wake-ups took {took}"


@case()
async def test_counting_down_an_open_latch_returns_false_and_changes_nothing(world: World) -> None:
    client, other = world.client(), world.client()
    for _ in range(2):
        assert await client.latch("a", 2, keep=60).count_down()
    before = await client.inspect("a")
    for _ in range(3):
        assert await client.latch("a", 2, keep=5000).count_down() is False
        assert await other.latch("a", 2, keep=5000).count_down() is False
    after = await client.inspect("a")
    assert [h.fence for h in after.holders] == [h.fence for h in before.holders]
    assert max(h.remaining for h in after.holders) <= 60, "a refused count-down extended the latch"
    assert await other.latch("a", 2).remaining() == 0 and await other.latch("a", 2).wait(0)
    await forget(client, "a")


@case()
async def test_a_count_down_whose_reply_is_lost_counts_once(world: World) -> None:
    other = world.client()
    for left in (2, 1, 0):
        lost = Failing("claim")
        assert await world.client(hook=lost).latch("a", 3).count_down() is True
        assert lost.sent == 2, "no reply was lost: the case tests nothing"
        assert await other.latch("a", 3).remaining() == left
    assert await other.latch("a", 3).wait(0)
    await forget(other, "a")


@case()
async def test_a_count_down_that_never_reaches_the_store_raises_and_does_not_count(
    world: World,
) -> None:
    failing = world.client(hook=Failing("claim", float("inf"), "before"))
    with raises(BackendError):
        await failing.latch("a", 2, keep=1).count_down()
    assert not await world.client().names()


@case()
async def test_an_interrupted_count_down_counts_once_or_not_at_all(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():
        name = f"a{step}"
        interrupted = await world.interrupted(step, client.latch(name, 2).count_down)
        left = await other.latch(name, 2).remaining()
        assert left in (1, 2) and (interrupted or left == 1), f"{left} left after step {step}"
        await forget(other, name)
        if not interrupted:
            break
    assert step >= 2


@case()
async def test_a_count_survives_the_closing_of_the_client_that_counted(world: World) -> None:
    client, other = world.client(), world.client()
    assert await client.latch("a", 2).count_down()
    await client.close()
    with raises(NotHeld, "closed"):
        await client.latch("a", 2).count_down()
    waiter = world.spawn(other.latch("a", 2).wait, SOON)
    await world.until_waiting(other, "a", 1)
    assert await other.latch("a", 2).remaining() == 1
    last = world.client()
    assert await last.latch("a", 2).count_down()
    await last.close()
    assert await waiter.join() is True
    assert await world.client().latch("a", 2).wait(0), "a new client does not find the latch open"
    await forget(other, "a")


@case(processes=True)
async def test_a_count_survives_the_end_of_the_process_that_counted(world: World) -> None:
    client = world.client()
    ended, killed, late = (world.child() for _ in range(3))
    for child, end in ((ended, ended.finish), (killed, killed.kill)):
        assert await world.blocking(partial(child.call, "count_down", name="a", count=3)) is True
        await world.blocking(end)
    # Enough time for a store that notices the end of a process.
    await world.sleep(0.3)
    assert await client.latch("a", 3).remaining() == 1
    late.send("wait", kind="latch", name="a", size=3, timeout=30)
    await world.until_waiting(client, "a", 1)
    assert await client.latch("a", 3).count_down()
    assert await world.blocking(late.receive) is True
    again = world.child()
    wait = partial(again.call, "wait", kind="latch", name="a", size=3, timeout=0)
    assert await world.blocking(wait) is True, "a new client does not find the latch open"
    await forget(client, "a")


@case()
async def test_a_waiter_that_times_out_leaves_the_queue_of_the_latch(world: World) -> None:
    client, other = world.client(), world.client()
    began = time.monotonic()
    assert await client.latch("a", 2).wait(0.2) is False
    assert time.monotonic() - began >= 0.2 and not await other.names()
    assert await other.latch("a", 2).count_down()
    for timeout in (0, 0.05):
        assert await client.latch("a", 2).wait(timeout) is False
        assert not (await other.inspect("a")).waiters
    assert client.statistics().waiting == client.statistics().held == 0
    await forget(other, "a")


@case()
async def test_an_interruption_at_any_step_of_waiting_for_a_latch_leaves_nothing_behind(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    for is_open in (False, True):
        name = f"open {is_open}"
        if is_open:
            assert await other.latch(name, 1).count_down()
        for step in itertools.count():

            async def wait(name: str = name, is_open: bool = is_open) -> None:
                assert await client.latch(name, 1).wait(0.05) is is_open

            interrupted = await world.interrupted(step, wait)
            snapshot = await other.inspect(name)
            assert not snapshot.waiters and len(snapshot.holders) == is_open, f"at step {step}"
            assert client.statistics().held == client.statistics().waiting == 0
            if not interrupted:
                break
        assert step >= 4
        await forget(other, name)


@case(only="asyncio")
async def test_a_cancelled_wait_for_a_latch_leaves_the_others_waiting(world: World) -> None:
    client, other = world.client(), world.client()
    first, second = (world.spawn(client.latch("a", 1).wait) for _ in range(2))
    await world.until_waiting(other, "a", 2)
    first.cancel()
    await world.until_waiting(other, "a", 1)
    assert await other.latch("a", 1).count_down()
    assert await second.join() is True and await first.outcome() is None
    await forget(other, "a")


@case()
async def test_a_name_in_use_as_a_latch_refuses_any_other_size_or_kind(world: World) -> None:
    client, other = world.client(), world.client()
    assert await client.latch("a", 2).count_down()
    waiter = world.spawn(client.latch("b", 2).wait, SOON)  # a latch without counts
    await world.until_waiting(other, "b", 1)
    for name in ("a", "b"):
        for verb, kind in (
            (other.latch(name, 3).count_down, "a latch of 3"),
            (other.latch(name, 3).wait, "a latch of 3"),
            (other.lock(name).acquire, "a lock"),
            (other.lock(name).try_acquire, "a lock"),
            (other.semaphore(name, 2).acquire, "a semaphore of 2"),
            (other.rwlock(name).read().acquire, "a read-write lock"),
            (other.barrier(name, 2).wait, "a barrier of 2"),
        ):
            with raises(ConfigurationError, f"{name!r}", "a latch of 2", kind):
                await verb()
    assert (await other.inspect("a")).slots == LATCH + 2
    assert len((await other.inspect("a")).holders) == 1 and not (await other.inspect("a")).waiters
    for _ in range(2):
        assert await other.latch("b", 2).count_down()
    assert await waiter.join() is True
    await forget(other, "a")
    await forget(other, "b")


@case()
async def test_a_name_in_use_as_a_lock_or_a_barrier_cannot_be_a_latch(world: World) -> None:
    client, other = world.client(), world.client()
    party = world.spawn(client.barrier("b", 2).wait, SOON)
    await world.until_waiting(other, "b", 1)
    async with client.lock("a"):
        for name, kind in (("a", "a lock"), ("b", "a barrier of 2")):
            for verb in (other.latch(name, 2).count_down, other.latch(name, 2).wait):
                with raises(ConfigurationError, f"{name!r}", kind, "a latch of 2"):
                    await verb()
    assert (await other.inspect("b")).slots == BARRIER + 2
    assert await other.barrier("b", 2).wait(SOON) and await party.join()


@case()
async def test_a_latch_expires_after_keep_and_can_be_used_again(world: World) -> None:
    client = world.client()
    latch = client.latch("a", 1, keep=1.5)
    for _ in range(2):
        assert await latch.count_down()

        async def forgotten() -> bool:
            return bool(await latch.remaining() == 1)

        await world.until(forgotten)
        assert await latch.wait(0) is False and not await client.names()


@case()
async def test_all_counts_of_a_latch_expire_together(world: World) -> None:
    """All counts expire ``keep`` after the last one: an open latch does not partly close."""
    client = world.client()
    latch = client.latch("a", 3, keep=60)
    for _ in range(3):
        assert await latch.count_down()
        await world.sleep(0.3)
    rest = [holder.remaining for holder in (await client.inspect("a")).holders]
    assert len(rest) == 3 and max(rest) - min(rest) < 0.05, rest
    assert 0 < max(rest) <= 60
    await forget(client, "a")


@case()
async def test_invalid_latch_arguments_are_refused_before_any_io(world: World) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    for count in BAD_COUNTS:
        with raises(ConfigurationError, "count"):
            client.latch("a", count)  # type: ignore[arg-type]
    bad: list[dict[str, Any]] = [
        {"keep": 0},
        {"keep": -1},
        {"keep": "5"},
        {"keep": float("nan")},
        {"keep": float("inf")},
        {"label": 5},
        {"lease": 5},
        {"timeout": 5},
    ]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.latch("a", 1, **terms)
    for name in ("", "a\0b"):
        with raises(ConfigurationError):
            client.latch(name, 1)
    for timeout in (-1, "5", float("nan"), True):
        with raises(ConfigurationError, "timeout"):
            await client.latch("a", 1).wait(timeout)
    assert not traffic.verbs
