"""Barriers: a fixed number of parties wait for each other and pass together, round after round."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

from lab.conformance.adapters import AnyClient
from lab.conformance.cases import case, raises
from lab.conformance.concurrency import SOON
from lab.conformance.latches import BAD_COUNTS, Failing, all_true
from lab.conformance.locks import Traffic
from lab.conformance.worlds import World
from lockfast import ConfigurationError, NotHeld


@case()
async def test_no_party_passes_a_barrier_before_all_have_arrived(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    barrier = clients[0].barrier("a", 3)
    assert barrier.parties == 3 and barrier.name == "a" and await barrier.waiting() == 0
    waiters = []
    for number, client in enumerate(clients[:2]):
        waiters.append(world.spawn(client.barrier("a", 3).wait, SOON))
        await world.until_waiting(clients[0], "a", number + 1)
        assert await barrier.waiting() == number + 1
    await world.sleep(0.2)
    assert not any(waiter.done for waiter in waiters), "a party passed before the third arrived"
    assert await clients[2].barrier("a", 3).wait(SOON) is True
    await all_true(waiters)
    assert await barrier.waiting() == 0


@case()
async def test_a_barrier_lets_exactly_its_number_of_parties_through_together(world: World) -> None:
    client, other = world.client(), world.client()
    waiters = [world.spawn(each.barrier("a", 3).wait, SOON) for each in (client, other) * 2]
    waiters.append(world.spawn(other.barrier("a", 3).wait, SOON))

    def passed() -> int:
        return sum(waiter.done for waiter in waiters)

    await world.until(lambda: passed() == 3)
    await world.until_waiting(client, "a", 2)
    await world.sleep(0.1)
    assert passed() == 3 and await client.barrier("a", 3).waiting() == 2
    assert await client.barrier("a", 3).wait(SOON) is True
    await all_true(waiters)


@case()
async def test_a_party_with_timeout_zero_passes_only_as_the_last_one(world: World) -> None:
    client, other = world.client(), world.client()
    assert await client.barrier("one", 1).wait(0) is True
    assert await client.barrier("a", 2).wait(0) is False and not await client.names()
    waiter = world.spawn(other.barrier("a", 2).wait, SOON)
    await world.until_waiting(client, "a", 1)
    assert await client.barrier("a", 2).wait(0) is True and await waiter.join() is True


@case()
async def test_the_rounds_of_a_barrier_never_mix_and_no_party_is_left_behind(world: World) -> None:
    clients = [world.client() for _ in range(2)]
    parties, rounds = 4, 12
    arrived = [0] * rounds
    passed: list[int] = []

    async def party(client: AnyClient) -> None:
        barrier = client.barrier("a", parties)
        for number in range(rounds):
            arrived[number] += 1
            assert await barrier.wait(60) is True
            assert arrived[number] == parties, f"passed round {number} with {arrived[number]}"
            passed.append(number)

    began = time.monotonic()
    for task in [world.spawn(party, client) for client in clients * 2]:
        await task.join(60)
    assert passed == sorted(passed) and len(passed) == parties * rounds
    # If every wake-up were lost, the parties would pass at the next refresh, after about 1.5 s.
    assert time.monotonic() - began < rounds * 0.75


@case()
async def test_a_party_that_passed_but_cannot_release_does_not_block_the_next_round(
    world: World,
) -> None:
    failing = world.client(lease=1.5, hook=Failing("release", float("inf"), "before"))
    client, other = world.client(), world.client()
    for number in range(2):
        waiter = world.spawn(client.barrier("a", 2).wait, SOON)
        await world.until_waiting(other, "a", 1)
        last = failing if number == 0 else other
        assert await last.barrier("a", 2).wait(0) is True, f"round {number}"
        assert await waiter.join() is True

    async def is_free() -> bool:
        return not await other.names()

    await world.until(is_free)


@case(processes=True)
async def test_processes_meet_at_a_barrier_round_after_round(world: World) -> None:
    children = [world.child() for _ in range(3)]
    rounds = 8
    for child in children:
        child.send("rounds", name="a", parties=3, rounds=rounds)
    times_by_child = [await world.blocking(partial(child.receive, 60)) for child in children]
    for number in range(rounds):
        arrived = [times[number][0] for times in times_by_child]
        passed = [times[number][1] for times in times_by_child]
        assert max(arrived) <= min(passed), f"a party passed round {number} too early"


@case()
async def test_a_party_that_times_out_leaves_the_barrier(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    first = world.spawn(clients[0].barrier("a", 3).wait, SOON)
    await world.until_waiting(clients[0], "a", 1)
    began = time.monotonic()
    assert await clients[1].barrier("a", 3).wait(0.2) is False
    assert time.monotonic() - began >= 0.2 and await clients[0].barrier("a", 3).waiting() == 1
    second = world.spawn(clients[2].barrier("a", 3).wait, SOON)
    await world.until_waiting(clients[0], "a", 2)
    await world.sleep(0.1)
    assert not first.done and not second.done, "a party that had left was counted"
    assert await clients[1].barrier("a", 3).wait(SOON) is True
    await all_true([first, second])


@case()
async def test_a_timeout_that_crosses_the_last_arrival_counts_as_passing(world: World) -> None:
    """The others passed and counted this party: returning False would mix the rounds."""
    other = world.client()
    passed: list[bool] = []

    async def meanwhile(verb: str, moment: str) -> None:
        if (verb, moment) == ("leave", "before") and not passed:
            passed.append(await other.barrier("a", 2).wait(0))

    client = world.client(hook=meanwhile)
    assert await client.barrier("a", 2).wait(0.05) is True
    assert passed == [True] and not await other.names()


@case()
async def test_a_party_whose_claim_reply_is_lost_counts_once(world: World) -> None:
    other = world.client()
    lost = Failing("claim")
    assert await world.client(hook=lost).barrier("a", 2).wait(0.3) is False, "it was counted twice"
    assert lost.left == 0 and not await other.names()
    waiter = world.spawn(other.barrier("a", 2).wait, SOON)
    await world.until_waiting(other, "a", 1)
    lost = Failing("claim")
    assert await world.client(hook=lost).barrier("a", 2).wait(SOON) is True
    assert lost.left == 0 and await waiter.join() is True
    assert await other.barrier("a", 2).waiting() == 0


@case()
async def test_an_interruption_at_any_step_of_a_barrier_wait_leaves_nothing_behind(
    world: World,
) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():

        async def wait() -> None:
            assert await client.barrier("a", 2).wait(0.05) is False

        interrupted = await world.interrupted(step, wait)
        assert not await other.names(), f"left behind by an interruption at step {step}"
        assert client.statistics().held == client.statistics().waiting == 0
        if not interrupted:
            break
    assert step >= 6


@case()
async def test_an_interruption_of_the_last_party_leaves_nothing_behind(world: World) -> None:
    client, other = world.client(hook=world.step), world.client()
    for step in itertools.count():
        waiter = world.spawn(other.barrier("a", 2).wait, SOON)
        await world.until_waiting(other, "a", 1)
        interrupted = await world.interrupted(step, partial(client.barrier("a", 2).wait, SOON))
        if not interrupted:
            assert await waiter.join() is True
            break
        assert client.statistics().held == client.statistics().waiting == 0
        if not waiter.done and await other.barrier("a", 2).waiting():
            assert await other.barrier("a", 2).wait(0) is True
        assert await waiter.join() is True
        assert not await other.names(), f"left behind by an interruption at step {step}"
    assert step >= 4


@case(only="asyncio")
async def test_a_cancelled_party_leaves_the_barrier(world: World) -> None:
    client, other = world.client(), world.client()
    first, second = (world.spawn(client.barrier("a", 3).wait) for _ in range(2))
    await world.until_waiting(other, "a", 2)
    first.cancel()
    await world.until_waiting(other, "a", 1)
    assert await other.barrier("a", 3).wait(0.05) is False
    third = world.spawn(client.barrier("a", 3).wait, SOON)
    await world.until_waiting(other, "a", 2)
    assert await other.barrier("a", 3).wait(0) is True
    await all_true([second, third])
    assert await first.outcome() is None


@case(processes=True)
async def test_a_party_that_is_killed_leaves_the_barrier(world: World) -> None:
    client, child, second = world.client(), world.child(), world.child()
    child.send("wait", kind="barrier", name="a", size=2, timeout=60)
    await world.until_waiting(client, "a", 1)
    child.kill()
    # Within seconds: at the latest when its entry in the queue expires without a refresh.
    await world.until_waiting(client, "a", 0)
    assert await client.barrier("a", 2).wait(0) is False, "a dead party was counted"
    second.send("wait", kind="barrier", name="a", size=2, timeout=60)
    await world.until_waiting(client, "a", 1)
    assert await client.barrier("a", 2).wait(SOON) is True
    assert await world.blocking(second.receive) is True


@case()
async def test_closing_a_client_ends_its_waits_at_a_barrier(world: World) -> None:
    client, other = world.client(), world.client()
    waiter = world.spawn(client.barrier("a", 2).wait, SOON)
    await world.until_waiting(other, "a", 1)
    await client.close()
    with raises(NotHeld, "closed"):
        await waiter.join()
    assert not await other.names()
    with raises(NotHeld, "closed"):
        await client.barrier("a", 2).wait(0)


@case()
async def test_a_name_in_use_as_a_barrier_refuses_any_other_size_or_kind(world: World) -> None:
    client, other = world.client(), world.client()
    waiter = world.spawn(client.barrier("a", 2).wait, SOON)
    await world.until_waiting(other, "a", 1)
    for verb, kind in (
        (other.barrier("a", 3).wait, "a barrier of 3"),
        (partial(other.barrier("a", 3).wait, 0), "a barrier of 3"),
        (other.latch("a", 2).count_down, "a latch of 2"),
        (other.lock("a").acquire, "a lock"),
        (other.semaphore("a", 2).acquire, "a semaphore of 2"),
    ):
        with raises(ConfigurationError, "'a'", "a barrier of 2", kind):
            await verb()
    assert await other.barrier("a", 2).waiting() == 1
    assert await other.barrier("a", 2).wait(SOON) is True and await waiter.join() is True
    async with client.lock("a"):
        with raises(ConfigurationError, "'a'", "a lock", "a barrier of 2"):
            await other.barrier("a", 2).wait()


@case()
async def test_invalid_barrier_arguments_are_refused_before_any_io(world: World) -> None:
    traffic = Traffic()
    client = world.client(hook=traffic)
    for parties in BAD_COUNTS:
        with raises(ConfigurationError, "parties"):
            client.barrier("a", parties)  # type: ignore[arg-type]
    bad: list[dict[str, Any]] = [{"label": 5}, {"keep": 5}, {"lease": 5}, {"timeout": 5}]
    for terms in bad:
        with raises(ConfigurationError, next(iter(terms))):
            client.barrier("a", 2, **terms)
    for name in ("", "a\0b"):
        with raises(ConfigurationError):
            client.barrier(name, 2)
    for timeout in (-1, "5", float("nan"), True):
        with raises(ConfigurationError, "timeout"):
            await client.barrier("a", 2).wait(timeout)
    assert not traffic.verbs
