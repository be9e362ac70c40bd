"""Crowds take a shorter way through the scripts than the law: it must lead to the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_redis import until

import lockfast
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.runtime.threads import run
from lockfast.stores.redis.backend import RedisBackend

BUDGET = 5.0


@pytest.fixture
def desk(redis_server: Any) -> Iterator[RedisBackend]:
    client = lockfast.connect(redis_server.url)
    yield client._backend  # type: ignore[misc]
    client.close()


def claim(name: str, who: str, **terms: Any) -> Claim:
    return Claim(name, f"{name}-{who}", f"host 1 {who}", **{"lease": 30.0, **terms})


def ask(desk: RedisBackend, wanted: Claim) -> Granted | Busy | Differs:
    return run(desk.claim(wanted, BUDGET))


def waiting(desk: RedisBackend, name: str) -> list[str]:
    return [waiter.who.thread for waiter in run(desk.inspect(name, BUDGET)).waiters]


def test_who_asks_again_keeps_its_place(desk: RedisBackend, name: str) -> None:
    first, *others = (claim(name, who) for who in "abcd")
    assert isinstance(ask(desk, first), Granted)
    for other in [*others, *others[:1], *others[1:2]]:
        assert isinstance(ask(desk, other), Busy)
    assert waiting(desk, name) == ["b", "c", "d"]


def test_everybody_is_served_in_the_order_of_arrival_under_a_growing_fence(
    desk: RedisBackend, name: str
) -> None:
    everybody = [claim(name, who) for who in "abcdef"]
    fence = 0
    for one in everybody:
        ask(desk, one)
    for number, one in enumerate(everybody):
        seen = run(desk.inspect(name, BUDGET))
        assert [holder.who.thread for holder in seen.holders] == ["abcdef"[number]]
        assert seen.holders[0].fence > fence
        # Who is served may be dead by now, and then does not hold it for long.
        assert seen.holders[0].remaining <= (5.0 if number else 30.0)
        fence = seen.holders[0].fence
        assert waiting(desk, name) == list("abcdef"[number + 1 :])
        assert run(desk.release(one, BUDGET))
        assert not run(desk.release(one, BUDGET))
    assert not run(desk.inspect(name, BUDGET)).holders


def test_an_unfair_waiter_is_only_rung(desk: RedisBackend, name: str) -> None:
    first, other = claim(name, "a"), claim(name, "b", fair=False)
    ask(desk, first)
    assert isinstance(ask(desk, other), Busy)
    assert run(desk.release(first, BUDGET))
    assert not run(desk.inspect(name, BUDGET)).holders
    assert waiting(desk, name) == ["b"]


def test_a_waiter_of_another_size_is_told_so(desk: RedisBackend, name: str) -> None:
    ask(desk, claim(name, "a"))
    assert ask(desk, claim(name, "b", slots=2)) == Differs(1)
    assert waiting(desk, name) == []


def test_of_a_lease_that_ends_soon_the_first_who_waits_is_told(
    desk: RedisBackend, name: str
) -> None:
    ask(desk, claim(name, "a", lease=0.5))
    soon = ask(desk, claim(name, "b"))
    assert isinstance(soon, Busy) and soon.retry_after <= 0.5


def test_the_dead_and_the_deaf_are_passed_over(
    desk: RedisBackend, redis_server: Any, name: str
) -> None:
    first, dead, deaf, alive = (claim(name, who) for who in "abcd")
    for one in (first, dead, deaf, alive):
        ask(desk, one)
    waiters = f"lf:{{{name}}}:w"
    row = redis_server.call("HGET", waiters, dead.id).split(b" ")
    redis_server.call("HSET", waiters, dead.id, b" ".join([row[0], b"1", *row[2:]]))
    row = redis_server.call("HGET", waiters, deaf.id).split(b" ")
    row[6] = b"0123456789abcdef"  # where nobody listens
    redis_server.call("HSET", waiters, deaf.id, b" ".join(row))
    assert run(desk.release(first, BUDGET))
    assert [holder.who.thread for holder in run(desk.inspect(name, BUDGET)).holders] == ["d"]
    assert redis_server.call("HKEYS", waiters) == [b".n"]


@pytest.mark.parametrize("slots", [1, 2])  # the crowd's way, and the law's
def test_who_listens_to_a_replica_hears_of_no_grant_that_was_none(slots: int, name: str) -> None:
    from lab.servers.redis_server import RedisServer

    with RedisServer() as master, RedisServer() as replica:
        master.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        # Before anybody stands in line: nobody refreshes their places here.
        until(lambda: master.call("INFO", "replication").get("connected_slaves") == 1)
        with replica.client().pubsub() as ear, lockfast.connect(master.url) as client:
            desk: Any = client._backend
            ear.subscribe("lf:wake:0123456789abcdef", "done")
            first, deaf, alive = (claim(name, who, slots=slots, take=slots) for who in "abc")
            for one in (first, deaf, alive):
                ask(desk, one)
            waiters = f"lf:{{{name}}}:w"
            row = master.call("HGET", waiters, deaf.id).split(b" ")
            row[6] = b"0123456789abcdef"  # it listened when the replica was the master
            master.call("HSET", waiters, deaf.id, b" ".join(row))
            until(lambda: master.call("WAIT", 1, 100) == 1)
            assert run(desk.release(first, BUDGET))
            assert [h.who.thread for h in run(desk.inspect(name, BUDGET)).holders] == ["c"]
            master.call("PUBLISH", "done", "")
            heard = (message for message in ear.subscribe() if message["type"] == "message")
            assert next(heard)["channel"] == b"done"


def test_a_semaphore_made_a_lock_is_not_granted_beside_those_who_still_hold_it(
    desk: RedisBackend, name: str
) -> None:
    for name in (f"{name}-{number}" for number in range(8)):  # a hash has no order
        two = [claim(name, who, slots=2) for who in "ab"]
        for one in [*two, claim(name, "c", slots=2)]:
            ask(desk, one)
        assert run(desk.resize(name, 2, 1, BUDGET)) == 2
        assert run(desk.release(two[0], BUDGET))
        assert [holder.who.thread for holder in run(desk.inspect(name, BUDGET)).holders] == ["b"]
        assert waiting(desk, name) == ["c"]


def test_tasks_hand_over_in_order(redis_server: Any, name: str) -> None:
    async def everybody() -> list[int]:
        order: list[int] = []
        async with lockfast.aio.connect(redis_server.url) as client:

            async def one(number: int) -> None:
                async with client.lock(name):
                    order.append(number)

            async with client.lock(name):
                tasks = []
                for number in range(10):
                    tasks.append(asyncio.create_task(one(number)))
                    while len((await client.inspect(name)).waiters) <= number:
                        pass
            await asyncio.gather(*tasks)
        return order

    assert asyncio.run(everybody()) == list(range(10))
