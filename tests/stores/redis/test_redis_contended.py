"""Contended locks take a shorter path through the scripts than the law, with the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_redis import until

import lockfast
from lockfast.model import Busy, Claim, Differs, Granted

BUDGET = 5.0


@pytest.fixture
def store(redis_server: Any) -> Iterator[Any]:
    client = lockfast.connect(redis_server.url)
    yield client._store
    client.close()


def claim(name: str, who: str, **terms: Any) -> Claim:
    return Claim(name, f"{name}-{who}", f"host 1 {who}", **{"lease": 30.0, **terms})


def submit(store: Any, wanted: Claim) -> Granted | Busy | Differs:
    (answer,) = store.claim([wanted], BUDGET)
    return answer  # type: ignore[no-any-return]


def waiting(store: Any, name: str) -> list[str]:
    return [waiter.who.thread for waiter in store.inspect(name, BUDGET).waiters]


def test_a_waiter_that_claims_again_keeps_its_position(store: Any, name: str) -> None:
    first, *others = (claim(name, who) for who in "abcd")
    assert isinstance(submit(store, first), Granted)
    for other in [*others, *others[:1], *others[1:2]]:
        assert isinstance(submit(store, other), Busy)
    assert waiting(store, name) == ["b", "c", "d"]


def test_waiters_are_served_in_arrival_order_under_growing_fences(store: Any, name: str) -> None:
    claims = [claim(name, who) for who in "abcdef"]
    fence = 0
    for one in claims:
        submit(store, one)
    for number, one in enumerate(claims):
        seen = store.inspect(name, BUDGET)
        assert [holder.who.thread for holder in seen.holders] == ["abcdef"[number]]
        assert seen.holders[0].fence > fence
        # A waiter may be dead when it is granted the name, so its first lease is short.
        assert seen.holders[0].remaining <= (5.0 if number else 30.0)
        fence = seen.holders[0].fence
        assert waiting(store, name) == list("abcdef"[number + 1 :])
        assert store.release([one], BUDGET) == [True]
        assert store.release([one], BUDGET) == [False]
    assert not store.inspect(name, BUDGET).holders


def test_an_unfair_waiter_is_woken_but_not_granted(store: Any, name: str) -> None:
    first, other = claim(name, "a"), claim(name, "b", fair=False)
    submit(store, first)
    assert isinstance(submit(store, other), Busy)
    assert store.release([first], BUDGET) == [True]
    assert not store.inspect(name, BUDGET).holders
    assert waiting(store, name) == ["b"]


def test_a_claim_of_another_size_is_refused_with_the_size(store: Any, name: str) -> None:
    submit(store, claim(name, "a"))
    assert submit(store, claim(name, "b", slots=2)) == Differs(1)
    assert waiting(store, name) == []


def test_the_first_waiter_learns_when_a_short_lease_ends(store: Any, name: str) -> None:
    submit(store, claim(name, "a", lease=0.5))
    soon = submit(store, claim(name, "b"))
    assert isinstance(soon, Busy) and soon.retry_after <= 0.5


def test_expired_waiters_and_waiters_without_a_listener_are_skipped(
    store: Any, redis_server: Any, name: str
) -> None:
    first, expired, unreachable, alive = (claim(name, who) for who in "abcd")
    for one in (first, expired, unreachable, alive):
        submit(store, one)
    waiters = f"lf:{{{name}}}:w"
    row = redis_server.call("HGET", waiters, expired.id).split(b" ")
    redis_server.call("HSET", waiters, expired.id, b" ".join([row[0], b"1", *row[2:]]))
    row = redis_server.call("HGET", waiters, unreachable.id).split(b" ")
    row[6] = b"0123456789abcdef"  # an address without a listener
    redis_server.call("HSET", waiters, unreachable.id, b" ".join(row))
    assert store.release([first], BUDGET) == [True]
    assert [holder.who.thread for holder in store.inspect(name, BUDGET).holders] == ["d"]
    assert redis_server.call("HKEYS", waiters) == [b".n"]


@pytest.mark.parametrize("slots", [1, 2])  # the shorter path, and the law's
def test_a_listener_on_a_replica_receives_no_grant_that_was_withdrawn(
    slots: int, name: str
) -> None:
    from lab.servers.redis_server import RedisServer

    with RedisServer() as master, RedisServer() as replica:
        master.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        # Replication starts before the claims: nobody refreshes the waiters in this test.
        until(lambda: master.call("INFO", "replication").get("connected_slaves") == 1)
        with replica.client().pubsub() as listener, lockfast.connect(master.url) as client:
            store: Any = client._store
            listener.subscribe("lf:wake:0123456789abcdef", "done")
            first, unreachable, alive = (claim(name, who, slots=slots, take=slots) for who in "abc")
            for one in (first, unreachable, alive):
                submit(store, one)
            waiters = f"lf:{{{name}}}:w"
            row = master.call("HGET", waiters, unreachable.id).split(b" ")
            row[6] = b"0123456789abcdef"  # it listens on the replica, the former master
            master.call("HSET", waiters, unreachable.id, b" ".join(row))
            until(lambda: master.call("WAIT", 1, 100) == 1)
            assert store.release([first], BUDGET) == [True]
            assert [h.who.thread for h in store.inspect(name, BUDGET).holders] == ["c"]
            master.call("PUBLISH", "done", "")
            received = (message for message in listener.listen() if message["type"] == "message")
            assert next(received)["channel"] == b"done"


def test_a_semaphore_resized_to_a_lock_is_not_granted_beside_its_remaining_holders(
    store: Any, name: str
) -> None:
    for name in (f"{name}-{number}" for number in range(8)):  # a hash has no order
        two = [claim(name, who, slots=2) for who in "ab"]
        for one in [*two, claim(name, "c", slots=2)]:
            submit(store, one)
        assert store.resize(name, 2, 1, BUDGET) == 2
        assert store.release([two[0]], BUDGET) == [True]
        assert [holder.who.thread for holder in store.inspect(name, BUDGET).holders] == ["b"]
        assert waiting(store, name) == ["c"]


def test_tasks_are_served_in_arrival_order(redis_server: Any, name: str) -> None:
    async def run_all() -> list[int]:
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

    assert asyncio.run(run_all()) == list(range(10))
