"""Bugs of other lock libraries that were found on clusters, reproduced against lockfast."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster_clients import elsewhere, slot

from both_apis import PATIENCE, Agent
from lockfast import HoldLost
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis_cluster.slots import slot_of_key

Make = Callable[..., Agent]
BRACES = ["a{b}c", "{", "}", "}{", "{}", "{}{x}", "{{a}}", "a}b{c}"]


def rows(cluster: Any, name: str) -> list[bytes]:
    """Return the fences of a name's holders, as the store has them."""
    found = cluster.owner(slot(name)).client().hgetall(key_of(f"default:{name}"))
    return [row.split()[0] for key, row in found.items() if key != b".f"]


@pytest.mark.parametrize("name", BRACES)
def test_python_redis_lock_59_all_keys_of_a_name_are_in_one_slot_whatever_it_contains(
    agent: Make, redis_cluster: Any, name: str
) -> None:
    """Also sherlock #31 and Redisson #1098: a script over keys of two slots is refused."""
    key = key_of(f"default:{name}").encode()
    assert {slot_of_key(key + kind) for kind in (b"", b":q", b":w")} == {slot(name)}
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    writer = mine.do(lambda client: client.rwlock(name).write().acquire(timeout=PATIENCE))
    assert other.do(lambda client: client.rwlock(name).read().try_acquire()) is None
    waits = other.later(lambda client: client.rwlock(name).read().acquire(timeout=PATIENCE))
    time.sleep(0.05)
    mine.do(lambda client: writer.release())
    reader = waits.result(PATIENCE)
    assert reader.fence > writer.fence
    other.do(lambda client: reader.release())


@pytest.mark.parametrize("moved", [False, True], ids=["stayed", "moved"])
def test_coredis_a_client_that_lost_a_lock_does_not_delete_the_next_holders(
    agent: Make, redis_cluster: Any, name: str, moved: bool
) -> None:
    """The lease was over when the client noticed, and another client held the lock by then, also at
    another node."""
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    hold = mine.do(lambda client: client.lock(name, lease=0.3).acquire())
    if moved:
        redis_cluster.move(slot(name), elsewhere(redis_cluster, redis_cluster.owner(slot(name))))
    theirs = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert rows(redis_cluster, name) == [str(theirs.fence).encode()]
    assert theirs.fence > hold.fence and theirs.is_held
    other.do(lambda client: theirs.release())
    assert rows(redis_cluster, name) == []


def test_coredis_a_plain_lock_of_another_is_not_deleted(
    agent: Make, redis_cluster: Any, name: str
) -> None:
    mine = agent(redis_cluster.url)
    hold = mine.do(lambda client: client.lock(name, layout="simple", lease=0.3).acquire())
    node = redis_cluster.owner(slot_of_key(name.encode()))
    node.call("SET", name, "somebody else's", "PX", 5000)
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert node.call("GET", name) == b"somebody else's"
    node.call("DEL", name)
    again = mine.do(lambda client: client.lock(name, layout="simple").acquire(timeout=PATIENCE))
    assert node.call("EXISTS", name)
    mine.do(lambda client: again.release())
    assert not node.call("EXISTS", name)
