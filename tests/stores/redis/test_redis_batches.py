"""Tasks that ask at the same time share one call of a script, and nothing else: each is answered
for itself, whatever happens to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import hiredis
import pytest

import lockfast
from direct_transport import DirectTransport
from lab.miniredis import MiniRedis
from lockfast import AcquireTimeout, BackendError, aio
from lockfast.aio import Client, Hold
from lockfast.model import BARRIER, Busy, Claim, Differs, Granted
from lockfast.stores.redis import scripts, task_connection
from lockfast.stores.redis.batches import LOT, Lot, answered
from lockfast.stores.redis.commands import claim_words, key_of, keys_of
from lockfast.stores.redis.replies import claimed

PATIENCE = 30.0
Run = Callable[[Callable[[Client], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def server(redis_server: Any) -> Iterator[Any]:
    with redis_server.client() as server:
        yield server


@pytest.fixture
def run(redis_server: Any) -> Run:
    """What is to be done with a client that has its connection and knows its scripts."""

    async def all_of(what: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async with asyncio.timeout(PATIENCE), aio.connect(redis_server.url) as client:
            async with client.lock("first"):
                pass
            await what(client)

    return lambda what: asyncio.run(all_of(what))


def calls(server: Any) -> int:
    return int(server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def key(name: str) -> str:
    return key_of(f"default:{name}")


@contextlib.asynccontextmanager
async def in_flight(client: Client) -> AsyncIterator[None]:
    """An answer is awaited: whoever asks now travels together with the others."""
    asked = asyncio.create_task(client.inspect("first"))
    await asyncio.sleep(0)
    yield
    await asked


async def together(client: Client, *work: Coroutine[Any, Any, Any]) -> list[Any]:
    async with in_flight(client):
        return await asyncio.gather(*work, return_exceptions=True)


async def grab(client: Client, name: str, **more: Any) -> Hold:
    return await client.lock(name, **{"timeout": 0, **more}).acquire()


def test_those_who_ask_together_share_a_call(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        before = calls(server)
        holds = await together(client, *(grab(client, f"{name}:{i}") for i in range(LOT)))
        assert all(hold.is_held for hold in holds)
        # What is looked at, and all of them.
        assert calls(server) - before == 1 + 1
        assert len({hold.fence for hold in holds}) == 1  # of names of their own: one moment
        await together(client, *(hold.release() for hold in holds))
        assert calls(server) - before == 2 + 2

    run(work)


def test_more_than_a_lot_are_several(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        before = calls(server)
        await together(client, *(grab(client, f"{name}:{i}") for i in range(3 * LOT + 1)))
        assert calls(server) - before == 1 + 4

    run(work)


def test_each_is_answered_for_itself(run: Run, redis_server: Any, name: str) -> None:
    """Free, held by another, free, a semaphore of another size, free."""

    async def work(client: Client) -> None:
        with lockfast.connect(redis_server.url) as other:
            other.lock(f"{name}:held").acquire()
            other.semaphore(f"{name}:size", 3).acquire()
            answers = await together(
                client,
                grab(client, f"{name}:1"),
                grab(client, f"{name}:held"),
                grab(client, f"{name}:2"),
                grab(client, f"{name}:size"),
                grab(client, f"{name}:3"),
            )
        assert [answers[n].is_held for n in (0, 2, 4)] == [True] * 3
        assert isinstance(answers[1], AcquireTimeout)
        assert isinstance(answers[3], lockfast.ConfigurationError)

    run(work)


def test_of_those_who_want_the_same_one_has_it_and_the_others_wait_in_order(
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


def test_what_is_released_is_free_for_who_claims_it_with_it(run: Run, name: str) -> None:
    async def work(client: Client) -> None:
        others = [grab(client, f"{name}:{number}") for number in range(3)]
        hold = await grab(client, name)
        answers = await together(client, *others, hold.release(), grab(client, name))
        assert answers[-1].is_held and answers[-1].fence > hold.fence

    run(work)


def test_who_came_to_a_gate_in_the_same_call_is_seen() -> None:
    """It waits, and nobody holds it: the name has a size all the same."""
    transport = DirectTransport("left")
    transport.server = MiniRedis(lambda: 1_763_258_400_123_456, lambda channel, message: 1)
    transport.server.script_load(scripts.CLAIM.source)
    lot = Lot(scripts.CLAIM)
    for number, slots in enumerate((1, BARRIER + 2, 1)):
        claim = Claim("gate" if number else "other", f"id-{number}", "host 1 t", 30.0, slots)
        lot.keys.append(keys_of(claim.name)[2])
        lot.words.append(claim_words(claim, "left"))
    granted, waits, differs = transport.send(lot.command(), 1.0)
    assert claimed(granted, 30.0) == Granted(1_763_258_400_123_456, 30.0)
    assert isinstance(claimed(waits, 30.0), Busy)
    assert claimed(differs, 30.0) == Differs(BARRIER + 2)


def test_a_name_that_is_waited_for_does_not_slow_down_its_neighbours(
    run: Run, redis_server: Any, server: Any, name: str
) -> None:
    """They are granted without the law's walk, in about a command each more."""

    async def work(client: Client) -> None:
        with lockfast.connect(redis_server.url) as other:
            held = other.lock(f"{name}:held").acquire()
            waiting = asyncio.create_task(grab(client, f"{name}:held", timeout=PATIENCE))
            while not (await client.inspect(f"{name}:held")).waiters:
                pass
            server.config_resetstat()
            names = [f"{name}:{number}" for number in range(9)]
            first = [grab(client, f"{name}:held"), *(grab(client, one) for one in names)]
            answers = await together(client, *first)
            assert all(hold.is_held for hold in answers[1:])
            walks = server.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})
            assert walks["calls"] <= 2
            held.release()
            assert (await waiting).is_held

    run(work)


def test_data_of_somebody_else_is_in_the_way_of_one_only(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        server.set(key(f"{name}:foreign"), "mine")
        answers = await together(
            client, *(grab(client, f"{name}:{which}") for which in ("1", "foreign", "2"))
        )
        assert answers[0].is_held and answers[2].is_held
        assert isinstance(answers[1], BackendError) and "foreign" in str(answers[1])
        for hold in (answers[0], answers[2]):
            await hold.release()  # or HoldLost

    run(work)


def test_it_is_in_the_way_of_one_release_only(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        names = [f"{name}:{which}" for which in ("1", "foreign", "2")]
        holds = await together(client, *(grab(client, one) for one in names))
        server.set(key(f"{name}:foreign"), "mine")
        answers = await together(client, *(hold.release() for hold in holds))
        assert answers[0] is None and answers[2] is None, "they were told that they lost it"
        assert isinstance(answers[1], lockfast.LockfastError)
        for which in ("1", "2"):
            assert server.hkeys(key(f"{name}:{which}")) == [b".f"]

    run(work)


def test_who_is_cancelled_leaves_nothing_and_the_others_go_on(
    run: Run, server: Any, name: str
) -> None:
    async def work(client: Client) -> None:
        names = [f"{name}:{number}" for number in range(10)]
        async with in_flight(client):
            asking = [asyncio.create_task(grab(client, one)) for one in names]
            await asyncio.sleep(0)  # they have asked
            for task in asking[::2]:
                task.cancel()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in answers[::2])
        assert all(hold.is_held for hold in answers[1::2])
        for one in names[::2]:
            assert server.hkeys(key(one)) in ([], [b".f"])

    run(work)


def test_scripts_that_were_flushed_are_told_again(run: Run, server: Any, name: str) -> None:
    async def work(client: Client) -> None:
        server.script_flush()
        names = [f"{name}:{number}" for number in range(10)]
        holds = await together(client, *(grab(client, one) for one in names))
        server.script_flush()
        assert await together(client, *(hold.release() for hold in holds)) == [None] * 10

    run(work)


@pytest.mark.parametrize("lost", ["claim", "release"])
def test_when_the_answer_to_a_lot_is_lost_each_asks_again(
    run: Run, server: Any, name: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed, and the connection breaks before anybody knows."""
    armed: list[Any] = []

    def losing(asked: list[Any], answer: Any) -> None:
        if armed and len(asked) > 1:
            armed.pop()._asked.appendleft(asked)
            raise hiredis.ProtocolError("lost on the way")
        answered(asked, answer)

    monkeypatch.setattr(task_connection, "answered", losing)

    async def work(client: Client) -> None:
        link = client._backend._transport._link
        names = [f"{name}:{number}" for number in range(10)]
        armed.extend([link] if lost == "claim" else [])
        holds = await together(client, *(grab(client, one, timeout=10) for one in names))
        assert all(hold.is_held for hold in holds), holds
        armed.extend([link] if lost == "release" else [])
        assert await together(client, *(hold.release() for hold in holds)) == [None] * 10
        assert not armed
        for one in names:
            assert server.hkeys(key(one)) == [b".f"]

    run(work)


def test_a_client_that_closes_tells_those_who_are_asking(run: Run, name: str) -> None:
    async def work(client: Client) -> None:
        async with in_flight(client):
            asking = [asyncio.create_task(grab(client, f"{name}:{n}")) for n in range(5)]
            await asyncio.sleep(0)
            client._backend.close()
            answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(one, Hold | BackendError) for one in answers), answers

    run(work)
