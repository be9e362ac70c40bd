"""The minimal ACL with which everything works, and the error that names a missing permission."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, until

from lockfast import BackendError
from lockfast.stores.redis.commands import key_of

Make = Callable[..., Agent]

# docs/redis.md quotes this line.
LEAST = (
    "~lf:* &lf:wake:* -@all +evalsha +eval +subscribe +scan +time +exists +publish +pubsub|numsub"
    " +hget +hset +hsetnx +hgetall +hdel +hlen +hincrby +pexpire +pttl"
    " +zadd +zrem +zscore +zrange +zrangebyscore"
)
PERMISSIONS = [rule for rule in LEAST.split() if rule[0] == "+"]
numbers = itertools.count()


@pytest.fixture(scope="module")
def acl_server() -> Iterator[Any]:
    from lab.servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture
def user(acl_server: Any) -> Callable[[str], str]:
    """Create a user with these ACL rules; return the URL for that user."""

    def user(rules: str) -> str:
        name = f"user{next(numbers)}"
        acl_server.call("ACL", "SETUSER", name, "on", ">opensesame", *rules.split())
        return f"redis://{name}:opensesame@127.0.0.1:{acl_server.port}"

    return user


def everything(mine: Agent, other: Agent, name: str) -> None:
    """Lock, wait, be woken, renew by hand and by the keeper, inspect, break, detach and attach."""
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: waits.done() or mine.do(lambda client: client.inspect(name)).waiters)
    until(lambda: waits.done() or other.client.statistics().waiting)
    mine.do(lambda client: hold.renew())
    assert mine.do(lambda client: client.names(name)) == [name]
    time.sleep(0.32)  # the keepers renew and refresh
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    assert mine.do(lambda client: client.lock(name).try_acquire(timeout=0.05)) is None
    gone = mine.later(lambda client: client.lock(name, fair=False).acquire(timeout=PATIENCE))
    until(lambda: gone.done() or mine.client.statistics().waiting)
    assert mine.do(lambda client: client.break_hold(name, later.fence))
    taken = gone.result(PATIENCE)
    until(lambda: later.lost)
    text = mine.do(lambda client: taken.detach())
    again = other.do(lambda client: client.attach(name, text))
    other.do(lambda client: again.release())
    # No keeper was refused anything without a visible error.
    for agent in (mine, other):
        assert agent.client.statistics().renew_errors == 0, "a keeper was refused something"
    # Long leases: a contended lock takes a shorter path through the scripts.
    last = mine.do(lambda client: client.lock(name, lease=5).acquire())
    waits = other.later(lambda client: client.lock(name, lease=5).acquire(timeout=PATIENCE))
    until(lambda: waits.done() or mine.do(lambda client: client.inspect(name)).waiters)
    mine.do(lambda client: last.release())
    after = waits.result(PATIENCE)
    other.do(lambda client: after.release())
    # A lease that is longer than fences are kept, and a name with two holders.
    for slots in (1, 2):
        holds = [mine.do(lambda client: acquire_slot(client, name, slots)) for _ in range(slots)]  # noqa: B023
        for one in holds:
            mine.do(lambda client: one.renew())  # noqa: B023
        for one in holds:
            mine.do(lambda client: one.release())  # noqa: B023


def acquire_slot(client: Any, name: str, slots: int) -> Any:
    lock = client.lock(name, lease=200, owner=object())
    lock._terms = lock._terms._replace(slots=slots)
    return lock.acquire()


def test_the_minimal_permissions_suffice(
    agent: Make, user: Any, acl_server: Any, name: str
) -> None:
    url = user(LEAST)
    acl_server.call("SCRIPT", "FLUSH")
    acl_server.call("ACL", "LOG", "RESET")
    everything(agent(url, lease=0.9), agent(url, lease=0.9), name)
    refused = {str(entry) for entry in acl_server.call("ACL", "LOG")}
    assert all("info" in entry for entry in refused), "more than INFO, which is optional"


@pytest.mark.parametrize(
    "permission, api",
    [(one, "blocking") for one in PERMISSIONS]
    + [
        (permission, "asyncio")
        for permission in ("+evalsha", "+eval", "+subscribe", "+publish", "+hget")
    ],
)
def test_a_missing_permission_is_named(
    agent: Make, user: Any, acl_server: Any, name: str, permission: str, caplog: Any
) -> None:
    url = user(f"{LEAST} -{permission[1:]}")
    acl_server.call("SCRIPT", "FLUSH")  # so that EVAL is needed as well
    with pytest.raises((BackendError, AssertionError)) as caught:
        everything(agent(url, lease=0.9), agent(url, lease=0.9), name)
    shown = f"{caught.value} {caplog.text}"
    assert permission in shown and "lacks" in shown
    if isinstance(caught.value, BackendError):
        assert not caught.value.transient
    assert "opensesame" not in shown


def test_forbidden_keys_are_named(agent: Make, user: Any, name: str) -> None:
    mine = agent(user(LEAST.replace("~lf:*", "~app:*")))
    with pytest.raises(BackendError, match=r"lacks the right to keys") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=1))
    assert key_of(f"default:{name}") in str(caught.value) and "~lf:*" in str(caught.value)


@pytest.mark.parametrize("channels", ["&app:*", "resetchannels"])
def test_forbidden_channels_are_named_and_leave_no_waiter_behind(
    agent: Make, user: Any, acl_server: Any, name: str, channels: str
) -> None:
    url = user(LEAST.replace("&lf:wake:*", channels))
    mine, other = agent(url), agent(f"redis://127.0.0.1:{acl_server.port}")
    own = mine.do(lambda client: client.lock(f"{name}-own").acquire())
    hold = other.do(lambda client: client.lock(name).acquire())
    with pytest.raises(BackendError, match=r"lacks the right to channels, &lf:wake:\*"):
        mine.do(lambda client: client.lock(name).acquire(timeout=1))
    assert not other.do(lambda client: client.inspect(name)).waiters, "it is still in the queue"
    # Operations without wake-ups still work: holds can be released.
    mine.do(lambda client: own.release())
    another = mine.do(lambda client: client.lock(f"{name}-other").acquire(timeout=0))
    mine.do(lambda client: another.release())
    other.do(lambda client: hold.release())
