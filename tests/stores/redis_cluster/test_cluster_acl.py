"""The least rights with which everything works in a cluster, and what is said when one of them is
missing."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster_clients import RIGHTS_OF_ONE, elsewhere, slot

from both_apis import PATIENCE, Agent, took, until
from lockfast import BackendError

Make = Callable[..., Agent]
# docs/redis-cluster.md quotes these.
BEYOND = (
    "+cluster|slots +cluster|myid +asking +ssubscribe +sunsubscribe +spublish +pubsub|shardnumsub"
)
numbers = itertools.count()


@pytest.fixture
def user(redis_cluster: Any) -> Callable[[str], str]:
    """The URL of a user with these rights."""

    def user(rules: str) -> str:
        name = f"user{next(numbers)}"
        for node in redis_cluster.nodes:
            node.call("ACL", "SETUSER", name, "on", ">opensesame", *rules.split())
        return str(redis_cluster.url.replace("://", f"://{name}:opensesame@"))

    return user


def hand_over(agent: Make, cluster: Any, url: str, name: str) -> float:
    """Lock, wait, look, move, be woken; how long that took."""
    mine, other = agent(url, lease=6), agent(url, lease=6)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: waits.done() or mine.do(lambda client: client.inspect(name)).waiters)
    source = cluster.owner(slot(name))
    to = elsewhere(cluster, source)
    cluster.begin_to_move(slot(name), to)
    cluster.move_keys(slot(name), source, to)
    mine.do(lambda client: hold.renew())  # which is asked for at the new node
    cluster.end_to_move(slot(name), source, to)
    time.sleep(0.3)
    assert mine.do(lambda client: client.names(name)) == [name]
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    other.do(lambda client: later.release())
    return time_of.seconds


def test_the_least_rights_suffice(
    agent: Make, redis_cluster: Any, user: Callable[[str], str], name: str
) -> None:
    assert hand_over(agent, redis_cluster, user(f"{RIGHTS_OF_ONE} {BEYOND}"), name) < 1.0


# Without +sunsubscribe a name is heard for as long as the connection lasts, and that is all.
@pytest.mark.parametrize("right", sorted({*BEYOND.split()} - {"+ssubscribe", "+sunsubscribe"}))
def test_one_that_is_missing_is_told(
    agents: Any, redis_cluster: Any, user: Callable[[str], str], name: str, right: str
) -> None:
    url = user(f"{RIGHTS_OF_ONE} {BEYOND}".replace(right, "+ping"))
    blocking: Make = lambda where, **terms: agents("blocking", where, **terms)  # noqa: E731
    with pytest.raises(BackendError, match=r"lacks (the|a) right") as caught:
        hand_over(blocking, redis_cluster, url, name)
    assert not caught.value.transient


def test_who_may_not_listen_is_served_all_the_same_and_warned(
    agents: Any,
    redis_cluster: Any,
    user: Callable[[str], str],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "lockfast")
    url = user(f"{RIGHTS_OF_ONE} {BEYOND}".replace("+ssubscribe", "+ping"))
    blocking: Make = lambda where, **terms: agents("blocking", where, **terms)  # noqa: E731
    hand_over(blocking, redis_cluster, url, name)
    assert "bells are refused" in caplog.text and "ssubscribe" in caplog.text.lower()
