"""Where bells are heard in a cluster: at the node that serves the name, by sharded pub/sub where
the servers have it, else by the classic one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster_clients import RIGHTS_OF_ONE, calls, elsewhere, names_at, slot

from both_apis import PATIENCE, Agent, took, until

Make = Callable[..., Agent]
BY_BELL = 1.0  # a place is refreshed after 1.5 s

WAITER = """
import sys, lockfast
url, name = sys.argv[1:]
client = lockfast.connect(url, lease=30)
print("ready", flush=True)
client.lock(name).acquire()
print("got", flush=True)
"""


@pytest.fixture(scope="module")
def old(new_redis_cluster: Callable[..., Any]) -> Any:
    """As before Redis 7: sharded pub/sub is not there."""
    words = [("--rename-command", word, "") for word in ("SSUBSCRIBE", "SPUBLISH", "SUNSUBSCRIBE")]
    extra = [part for three in words for part in three]
    return new_redis_cluster(2, 0, node_timeout=60.0, extra=extra)


@pytest.fixture(params=["sharded", "classic"])
def cluster(request: Any) -> Any:
    sharded = request.param == "sharded"
    cluster = request.getfixturevalue("redis_cluster" if sharded else "old")
    cluster.sharded = sharded
    return cluster


def waiting(agent: Agent, name: str, count: int) -> None:
    until(lambda: len(agent.do(lambda client: client.inspect(name)).waiters) == count)


def ears(node: Any) -> int:
    return len(node.call("CLIENT", "LIST", "TYPE", "pubsub").splitlines())


def test_a_hand_over_is_heard_at_once(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    for _ in range(3):
        hold = mine.do(lambda client: client.lock(name).acquire())
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waiting(mine, name, 1)
        time.sleep(0.1)
        with took() as time_of:
            mine.do(lambda client: hold.release())  # noqa: B023
            later = waits.result(PATIENCE)
        assert time_of.seconds < BY_BELL
        other.do(lambda client: later.release())  # noqa: B023


def test_the_least_rights_suffice_for_classic_bells(agent: Make, old: Any, name: str) -> None:
    rights = f"{RIGHTS_OF_ONE} +cluster|slots +cluster|myid +asking"
    rights += " +subscribe +unsubscribe +publish +pubsub|numsub"
    for node in old.nodes:
        node.call("ACL", "SETUSER", "classic", "on", ">opensesame", *rights.split())
    url = old.url.replace("://", "://classic:opensesame@")
    mine, other = agent(url), agent(url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    time.sleep(0.2)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.seconds < BY_BELL
    other.do(lambda client: later.release())


def test_a_bell_is_sent_to_one_node_or_to_all(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    node = cluster.owner(slot(name))
    before = {word: calls(node, word) for word in ("publish", "spublish")}
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    time.sleep(0.2)
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    other.do(lambda client: later.release())
    after = {word: calls(node, word) - before[word] for word in before}
    assert after == {"spublish": int(cluster.sharded), "publish": int(not cluster.sharded)}


def test_a_dead_waiter_is_passed_over(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    dead = subprocess.Popen(
        [sys.executable, "-c", WAITER, cluster.url, name], stdout=subprocess.PIPE, text=True
    )
    try:
        assert dead.stdout is not None and dead.stdout.readline() == "ready\n"
        waiting(mine, name, 1)
        time.sleep(0.3)  # it is heard, and has said so
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waiting(mine, name, 2)
    finally:
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait(PATIENCE)
        dead.communicate()
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    # Its place would last six seconds, and a grant to it five.
    assert time_of.seconds < BY_BELL
    other.do(lambda client: later.release())


def test_who_waits_is_heard_at_the_new_node_after_a_move(
    agent: Make, cluster: Any, name: str
) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    cluster.move(slot(name), elsewhere(cluster, cluster.owner(slot(name))))
    # No place is lost, even at once: at the new node nobody listens yet, and nobody is taken for
    # gone.
    assert len(mine.do(lambda client: client.inspect(name)).waiters) == 1
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    assert time_of.seconds < 2.0 + BY_BELL
    other.do(lambda client: later.release())


def test_who_waited_once_is_heard_the_next_time_without_subscribing_again(
    agent: Make, redis_cluster: Any, name: str
) -> None:
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    node = redis_cluster.owner(slot(name))
    subscribed = []
    for _ in range(3):
        before = calls(node, "ssubscribe")
        hold = mine.do(lambda client: client.lock(name).acquire())
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waiting(mine, name, 1)
        time.sleep(0.1)
        mine.do(lambda client: hold.release())  # noqa: B023
        later = waits.result(PATIENCE)
        other.do(lambda client: later.release())  # noqa: B023
        subscribed.append(calls(node, "ssubscribe") - before)
    assert subscribed == [1, 0, 0]


def test_a_name_that_nobody_waited_for_for_long_is_let_go(
    agent: Make, redis_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockfast.stores.redis_cluster.listeners.LINGER", 0.05)
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    node = redis_cluster.masters[0]
    names = names_at(redis_cluster, node, 2)

    def heard() -> list[str]:
        channels = b" ".join(node.call("PUBSUB", "SHARDCHANNELS")).decode()
        return [name for name in names if f"{name}}}" in channels]

    for name in names:
        hold = mine.do(lambda client: client.lock(name).acquire())  # noqa: B023
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))  # noqa: B023
        until(lambda: name in heard())  # noqa: B023
        mine.do(lambda client: hold.release())  # noqa: B023
        later = waits.result(PATIENCE)
        other.do(lambda client: later.release())  # noqa: B023
        time.sleep(0.1)
    assert heard() == names[1:]


def test_ears_are_opened_only_where_somebody_waits(agent: Make, redis_cluster: Any) -> None:
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    node, *rest = redis_cluster.masters
    name = names_at(redis_cluster, node, 1)[0]
    before = {one.port: ears(one) for one in (node, *rest)}
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    until(lambda: ears(node) == before[node.port] + 1)
    for one in rest:
        assert ears(one) == before[one.port]
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    other.do(lambda client: later.release())


def test_a_killed_ear_is_opened_again(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    node = cluster.owner(slot(name))
    until(lambda: node.call("CLIENT", "KILL", "TYPE", "pubsub"))
    until(lambda: ears(node))
    time.sleep(0.1)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.seconds < BY_BELL
    other.do(lambda client: later.release())
