"""The minimal ACL rights in a cluster, and the errors when one of them is missing."""

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
    """Make a user with these rights; return its URL."""

    def user(rules: str) -> str:
        name = f"user{next(numbers)}"
        for node in redis_cluster.nodes:
            node.call("ACL", "SETUSER", name, "on", ">opensesame", *rules.split())
        return str(redis_cluster.url.replace("://", f"://{name}:opensesame@"))

    return user


def hand_over(agent: Make, cluster: Any, url: str, name: str) -> float:
    """Lock, wait, inspect, migrate the slot, hand over; return the seconds from release to
    grant."""
    mine, other = agent(url, lease=6), agent(url, lease=6)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: waits.done() or mine.do(lambda client: client.inspect(name)).waiters)
    source = cluster.owner(slot(name))
    to = elsewhere(cluster, source)
    cluster.begin_to_move(slot(name), to)
    cluster.move_keys(slot(name), source, to)
    mine.do(lambda client: hold.renew())  # the new node serves it, by ASK
    cluster.end_to_move(slot(name), source, to)
    time.sleep(0.3)
    assert mine.do(lambda client: client.names(name)) == [name]
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    other.do(lambda client: later.release())
    return time_of.unstalled


def test_the_documented_rights_suffice(
    agent: Make, redis_cluster: Any, user: Callable[[str], str], name: str
) -> None:
    assert hand_over(agent, redis_cluster, user(f"{RIGHTS_OF_ONE} {BEYOND}"), name) < 1.0


# Without +sunsubscribe a name merely stays subscribed for as long as the connection lasts.
@pytest.mark.parametrize("right", sorted({*BEYOND.split()} - {"+ssubscribe", "+sunsubscribe"}))
def test_a_missing_right_is_reported(
    agents: Any, redis_cluster: Any, user: Callable[[str], str], name: str, right: str
) -> None:
    url = user(f"{RIGHTS_OF_ONE} {BEYOND}".replace(right, "+ping"))
    blocking: Make = lambda where, **terms: agents("blocking", where, **terms)  # noqa: E731
    with pytest.raises(BackendError, match=r"lacks (the|a) right") as caught:
        hand_over(blocking, redis_cluster, url, name)
    assert not caught.value.transient


def test_a_client_without_the_right_to_subscribe_is_served_and_warned(
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
    assert "subscriptions fail" in caplog.text and "ssubscribe" in caplog.text.lower()
