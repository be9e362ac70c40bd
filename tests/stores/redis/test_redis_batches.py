"""Concurrent tasks share one script call and nothing else: each gets a reply of its own, whatever
happens to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import hiredis
import pytest

import lockfast
from direct_transport import DirectChannel
from lab.miniredis import MiniRedis
from lockfast import AcquireTimeout, BackendError, aio
from lockfast.aio import Client, Hold
from lockfast.model import BARRIER, Busy, Claim, Differs, Granted
from lockfast.stores.redis import scripts, task_connection
from lockfast.stores.redis.commands import claim_arguments, claimed, key_of, keys_of
from lockfast.stores.redis.task_connection import BATCH_SIZE, Batch, resolve

PATIENCE = 30.0
Run = Callable[[Callable[[Client], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def server(redis_server: Any) -> Iterator[Any]:
    with redis_server.client() as server:
        yield server


@pytest.fixture
def run(redis_server: Any) -> Run:
    """Run a coroutine with a client that is connected and whose scripts are loaded."""

    async def with_client(work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async with asyncio.timeout(PATIENCE), aio.connect(redis_server.url) as client:
            async with client.lock("first"):
                pass
            await work(client)

    return lambda work: asyncio.run(with_client(work))


def calls(server: Any) -> int:
    return int(server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def key(name: str) -> str:
    return key_of(f"default:{name}")


@contextlib.asynccontextmanager
async def in_flight(client: Client) -> AsyncIterator[None]:
    """Keep a request in flight: requests made meanwhile are collected into one batch."""
    request = asyncio.create_task(client.inspect("first"))
    await asyncio.sleep(0)
    yield
    await request


async def together(client: Client, *work: Coroutine[Any, Any, Any]) -> list[Any]:
    async with in_flight(client):
        return await asyncio.gather(*work, return_exceptions=True)


async def acquire(client: Client, name: str, **more: Any) -> Hold:
    return await client.lock(name, **{"timeout": 0, **more}).acquire()


def test_concurrent_claims_share_a_call(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        before = calls(server)
        holds = await together(client, *(acquire(client, f"{name}:{i}") for i in range(BATCH_SIZE)))
        assert all(hold.is_held for hold in holds)
        # One call for the inspection in flight, one for the batch.
        assert calls(server) - before == 1 + 1
        assert len({hold.fence for hold in holds}) == 1  # different names, the same moment
        await together(client, *(hold.release() for hold in holds))
        assert calls(server) - before == 2 + 2

    run(work)


def test_more_claims_than_the_batch_size_make_several_batches(
    run: Run, server: Any, name: str
) -> None:
    async def work(client: Client) -> None:
        before = calls(server)
        await together(client, *(acquire(client, f"{name}:{i}") for i in range(3 * BATCH_SIZE + 1)))
        assert calls(server) - before == 1 + 4

    run(work)


def test_each_claim_of_a_batch_gets_its_own_reply(run: Run, redis_server: Any, name: str) -> None:
    """The names: free, held by another client, free, a semaphore of another size, free."""

    async def work(client: Client) -> None:
        with lockfast.connect(redis_server.url) as other:
            other.lock(f"{name}:held").acquire()
            other.semaphore(f"{name}:size", 3).acquire()
            answers = await together(
                client,
                acquire(client, f"{name}:1"),
                acquire(client, f"{name}:held"),
                acquire(client, f"{name}:2"),
                acquire(client, f"{name}:size"),
                acquire(client, f"{name}:3"),
            )
        assert [answers[n].is_held for n in (0, 2, 4)] == [True] * 3
        assert isinstance(answers[1], AcquireTimeout)
        assert isinstance(answers[3], lockfast.ConfigurationError)

    run(work)


def test_claims_of_one_name_in_a_batch_are_granted_in_order(
    run: Run, server: Any, name: str
) -> None:
    order: list[int] = []

    async def one(client: Client, number: int) -> None:
        async with client.lock(name, timeout=PATIENCE):
            order.append(number)

    async def work(client: Client) -> None:
        await together(client, *(one(client, number) for number in range(20)))

    run(work)
    assert order == list(range(20))
    assert server.hkeys(key(name)) == [b".f"]


def test_a_release_frees_the_name_for_a_claim_of_the_same_round(run: Run, name: str) -> None:
    async def work(client: Client) -> None:
        others = [acquire(client, f"{name}:{number}") for number in range(3)]
        hold = await acquire(client, name)
        answers = await together(client, *others, hold.release(), acquire(client, name))
        assert answers[-1].is_held and answers[-1].fence > hold.fence

    run(work)


def test_a_barrier_waiter_of_the_same_batch_determines_the_size_of_the_name() -> None:
    """The name has a waiter and no holder, and a size all the same."""
    channel = DirectChannel("left")
    channel.server = MiniRedis(lambda: 1_763_258_400_123_456, lambda channel, message: 1)
    channel.server.script_load(scripts.CLAIM.source)
    batch = Batch(scripts.CLAIM)
    for number, slots in enumerate((1, BARRIER + 2, 1)):
        claim = Claim("barrier" if number else "other", f"id-{number}", "host 1 t", 30.0, slots)
        batch.keys.append(keys_of(claim.name)[2])
        batch.arguments.append(claim_arguments(claim, "left"))
    granted, waits, differs = channel.send(batch.command(), 1.0)
    assert claimed(granted, 30.0) == Granted(1_763_258_400_123_456, 30.0)
    assert isinstance(claimed(waits, 30.0), Busy)
    assert claimed(differs, 30.0) == Differs(BARRIER + 2)


def test_a_contended_name_does_not_slow_down_the_others_of_its_batch(
    run: Run, redis_server: Any, server: Any, name: str
) -> None:
    """The free names are granted without walking a queue, with about one command more each."""

    async def work(client: Client) -> None:
        with lockfast.connect(redis_server.url) as other:
            held = other.lock(f"{name}:held").acquire()
            waiting = asyncio.create_task(acquire(client, f"{name}:held", timeout=PATIENCE))
            while not (await client.inspect(f"{name}:held")).waiters:
                pass
            server.config_resetstat()
            names = [f"{name}:{number}" for number in range(9)]
            first = [
                acquire(client, f"{name}:held"),
                *(acquire(client, one) for one in names),
            ]
            answers = await together(client, *first)
            assert all(hold.is_held for hold in answers[1:])
            walks = server.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})
            assert walks["calls"] <= 2
            held.release()
            assert (await waiting).is_held

    run(work)


def test_foreign_data_fails_only_one_claim_of_a_batch(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        server.set(key(f"{name}:foreign"), "mine")
        answers = await together(
            client, *(acquire(client, f"{name}:{which}") for which in ("1", "foreign", "2"))
        )
        assert answers[0].is_held and answers[2].is_held
        assert isinstance(answers[1], BackendError) and "foreign" in str(answers[1])
        for hold in (answers[0], answers[2]):
            await hold.release()  # would raise HoldLost

    run(work)


def test_foreign_data_fails_only_one_release_of_a_batch(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        names = [f"{name}:{which}" for which in ("1", "foreign", "2")]
        holds = await together(client, *(acquire(client, one) for one in names))
        server.set(key(f"{name}:foreign"), "mine")
        answers = await together(client, *(hold.release() for hold in holds))
        assert answers[0] is None and answers[2] is None, "the other holds were reported lost"
        assert isinstance(answers[1], lockfast.LockfastError)
        for which in ("1", "2"):
            assert server.hkeys(key(f"{name}:{which}")) == [b".f"]

    run(work)


def test_a_cancelled_claim_leaves_nothing_and_the_others_go_on(
    run: Run, server: Any, name: str
) -> None:
    async def work(client: Client) -> None:
        names = [f"{name}:{number}" for number in range(10)]
        async with in_flight(client):
            claiming = [asyncio.create_task(acquire(client, one)) for one in names]
            await asyncio.sleep(0)  # the claims are made
            for task in claiming[::2]:
                task.cancel()
        answers = await asyncio.gather(*claiming, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in answers[::2])
        assert all(hold.is_held for hold in answers[1::2])
        for one in names[::2]:
            assert server.hkeys(key(one)) in ([], [b".f"])

    run(work)


def test_flushed_scripts_are_sent_again(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        server.script_flush()
        names = [f"{name}:{number}" for number in range(10)]
        holds = await together(client, *(acquire(client, one) for one in names))
        server.script_flush()
        assert await together(client, *(hold.release() for hold in holds)) == [None] * 10

    run(work)


@pytest.mark.parametrize("lost", ["claim", "release"])
def test_when_the_reply_to_a_batch_is_lost_each_claim_is_retried(
    run: Run, server: Any, name: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is executed, and the connection breaks before its reply arrives."""
    armed: list[Any] = []

    def losing(requests: list[Any], reply: Any) -> None:
        if armed and len(requests) > 1:
            armed.pop()._pending.appendleft(requests)
            raise hiredis.ProtocolError("the reply is lost")
        resolve(requests, reply)

    monkeypatch.setattr(task_connection, "resolve", losing)

    async def work(client: Client) -> None:
        connection = client._store._channel._connection
        names = [f"{name}:{number}" for number in range(10)]
        armed.extend([connection] if lost == "claim" else [])
        holds = await together(client, *(acquire(client, one, timeout=10) for one in names))
        assert all(hold.is_held for hold in holds), holds
        armed.extend([connection] if lost == "release" else [])
        assert await together(client, *(hold.release() for hold in holds)) == [None] * 10
        assert not armed
        for one in names:
            assert server.hkeys(key(one)) == [b".f"]

    run(work)


def test_closing_a_client_ends_its_claims_in_flight(run: Run, name: str) -> None:
    async def work(client: Client) -> None:
        async with in_flight(client):
            claiming = [asyncio.create_task(acquire(client, f"{name}:{n}")) for n in range(5)]
            await asyncio.sleep(0)
            client._store.close()
            answers = await asyncio.gather(*claiming, return_exceptions=True)
        assert all(isinstance(one, Hold | BackendError) for one in answers), answers

    run(work)
