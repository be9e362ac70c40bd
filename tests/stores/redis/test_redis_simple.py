"""The simple layout: lockfast and libraries that use SET NX PX exclude each other."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from fake_redis import PATIENCE, Agent, until

import lockfast
from lockfast import AcquireTimeout, BackendError, HoldLost, Unsupported

Make = Callable[..., Agent]
numbers = itertools.count()


def acquire(agent: Agent, name: str, **terms: Any) -> Any:
    return agent.do(lambda client: client.lock(name, layout="simple", **terms).acquire())


def tried(agent: Agent, name: str) -> Any:
    return agent.do(lambda client: client.lock(name, layout="simple").try_acquire())


def test_the_lock_of_redis_py_and_ours_exclude_each_other(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, theirs = agent(redis_server.url), redis_server.client().lock(name, timeout=30)
    hold = acquire(mine, name)
    assert not theirs.acquire(blocking=False)
    mine.do(lambda client: hold.release())
    assert theirs.acquire(blocking=False)
    assert tried(mine, name) is None
    assert mine.do(lambda client: client.lock(name, layout="simple").locked())
    theirs.release()
    assert tried(mine, name) is not None


def test_the_asyncio_lock_of_redis_py_and_ours_exclude_each_other(
    redis_server: Any, name: str
) -> None:
    async def scene() -> list[bool]:
        server = redis.asyncio.Redis(port=redis_server.port)
        theirs = server.lock(name, timeout=30)
        seen = []
        async with lockfast.aio.connect(redis_server.url) as client:
            async with client.lock(name, layout="simple"):
                seen.append(await theirs.acquire(blocking=False))
            seen.append(await theirs.acquire(blocking=False))
            seen.append(await client.lock(name, layout="simple").try_acquire() is None)
            await theirs.release()
        await server.aclose()
        return seen

    assert asyncio.run(scene()) == [False, True, True]


def test_a_waiter_acquires_soon_after_the_other_library_released(
    agent: Make, redis_server: Any, name: str
) -> None:
    theirs = redis_server.client().lock(name, timeout=30, thread_local=False)
    theirs.acquire()
    mine = agent(redis_server.url)
    waits = mine.later(lambda client: client.lock(name, layout="simple").acquire(timeout=PATIENCE))
    until(lambda: mine.client.statistics().waiting)
    theirs.release()
    began = time.monotonic()
    waits.result(PATIENCE)
    assert time.monotonic() - began < 1.0


def test_a_waiter_acquires_when_the_lease_of_a_dead_holder_ends(
    agent: Make, redis_server: Any, name: str
) -> None:
    redis_server.client().set(name, "somebody", px=400)
    began = time.monotonic()
    hold = acquire(agent(redis_server.url), name, timeout=PATIENCE)
    assert hold.is_held and 0.3 < time.monotonic() - began < 2.0


def test_a_key_without_expiry_blocks_and_is_left_alone(
    agent: Make, redis_server: Any, name: str
) -> None:
    redis_server.client().set(name, "for ever")
    with pytest.raises(AcquireTimeout, match="plain lock"):
        acquire(agent(redis_server.url), name, timeout=0.2)
    assert redis_server.client().get(name) == b"for ever"


def test_a_simple_lock_is_one_string_under_its_name_that_a_release_deletes(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, server = agent(redis_server.url, namespace="elsewhere"), redis_server.client()
    hold = acquire(mine, name)
    assert server.type(name) == b"string" and 25_000 < server.pttl(name) <= 30_000
    mine.do(lambda client: hold.release())
    assert not server.exists(name)


def test_a_simple_lock_is_renewed_while_held_and_never_created_again(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, server = agent(redis_server.url, lease=0.6), redis_server.client()
    hold = acquire(mine, name)
    time.sleep(1.2)
    assert hold.is_held and server.pttl(name) > 100
    server.delete(name)
    assert mine.do(lambda client: hold.wait_lost(PATIENCE))
    assert not server.exists(name)
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())


def test_a_release_does_not_delete_the_lock_of_another_holder(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, server = agent(redis_server.url), redis_server.client()
    hold = acquire(mine, name)
    server.set(name, "another's", px=30_000)
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert server.get(name) == b"another's"


def test_two_lockfast_clients_exclude_each_other_and_reentry_is_local(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)

    def nested(client: Any) -> Any:
        return client.lock(name, layout="simple", owner="me").acquire()

    first, second = mine.do(nested), mine.do(nested)
    assert tried(other, name) is None
    mine.do(lambda client: second.release())
    assert tried(other, name) is None
    mine.do(lambda client: first.release())
    assert tried(other, name) is not None


def test_threads_hold_a_simple_lock_one_at_a_time(redis_server: Any, name: str) -> None:
    client, inside, most = lockfast.connect(redis_server.url), [], []

    def work() -> None:
        for _ in range(5):
            with client.lock(name, layout="simple"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert max(most) == 1 and len(most) == 20


def test_unsupported_features_of_the_simple_layout_are_refused(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(redis_server.url)
    lock = mine.client.lock(name, layout="simple")
    assert (lock.capabilities.fences, lock.capabilities.fair) == (False, False)
    assert mine.client.lock(name).capabilities.fences
    assert "simple" in mine.client.capabilities.layouts
    hold = acquire(mine, name)
    with pytest.raises(Unsupported, match="no fence"):
        _ = hold.fence
    with pytest.raises(Unsupported, match="detached"):
        mine.do(lambda client: hold.detach())
    mine.do(lambda client: hold.release())
    for layout in ("plain", 7):
        with pytest.raises(Unsupported, match="simple"):
            mine.client.lock(name, layout=layout)
    with pytest.raises(Unsupported, match="no other layout"):
        lockfast.connect("memory://").lock(name, layout="simple")


def test_a_key_of_another_type_is_an_error_and_left_alone(
    agent: Make, redis_server: Any, name: str
) -> None:
    server = redis_server.client()
    server.rpush(name, "a list")
    with pytest.raises(BackendError, match="lockfast did not write"):
        acquire(agent(redis_server.url), name, timeout=1)
    assert server.lrange(name, 0, -1) == [b"a list"]


def test_the_documented_permissions_for_the_simple_layout_suffice(
    new_redis: Any, agent: Make
) -> None:
    rules = "on >opensesame ~jobs:* -@all +evalsha +eval +get +set +del +pexpire +pttl"
    server = new_redis(users=[f"careful {rules}"])
    mine = agent(f"redis://careful:opensesame@127.0.0.1:{server.port}", lease=0.3)
    hold = acquire(mine, "jobs:1")
    time.sleep(0.5)
    assert hold.is_held
    with pytest.raises(AcquireTimeout):
        acquire(mine, "jobs:1", timeout=0.1, owner="another")
    mine.do(lambda client: hold.release())
