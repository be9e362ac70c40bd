"""Wake-ups in a cluster: from the node that serves the name, by sharded pub/sub where the servers
have it, else by classic pub/sub."""

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
BY_WAKEUP = 1.0  # a waiter is refreshed after 1.5 s

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
    """A cluster without sharded pub/sub, as before Redis 7."""
    options = [
        ("--rename-command", command, "") for command in ("SSUBSCRIBE", "SPUBLISH", "SUNSUBSCRIBE")
    ]
    extra = [part for option in options for part in option]
    return new_redis_cluster(2, 0, node_timeout=60.0, extra=extra)


@pytest.fixture(params=["sharded", "classic"])
def cluster(request: Any) -> Any:
    sharded = request.param == "sharded"
    cluster = request.getfixturevalue("redis_cluster" if sharded else "old")
    cluster.sharded = sharded
    return cluster


def waiting(agent: Agent, name: str, count: int) -> None:
    until(lambda: len(agent.do(lambda client: client.inspect(name)).waiters) == count)


def listeners(node: Any) -> int:
    return len(node.call("CLIENT", "LIST", "TYPE", "pubsub").splitlines())


def test_a_waiter_is_woken_at_once_by_a_release(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    for _ in range(3):
        hold = mine.do(lambda client: client.lock(name).acquire())
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waiting(mine, name, 1)
        time.sleep(0.1)
        with took() as time_of:
            mine.do(lambda client: hold.release())  # noqa: B023
            later = waits.result(PATIENCE)
        assert time_of.unstalled < BY_WAKEUP
        other.do(lambda client: later.release())  # noqa: B023


def test_the_documented_rights_suffice_for_classic_pubsub(agent: Make, old: Any, name: str) -> None:
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
    assert time_of.unstalled < BY_WAKEUP
    other.do(lambda client: later.release())


def test_a_wakeup_is_published_once_by_the_matching_command(
    agent: Make, cluster: Any, name: str
) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    node = cluster.owner(slot(name))
    before = {command: calls(node, command) for command in ("publish", "spublish")}
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    time.sleep(0.2)
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    other.do(lambda client: later.release())
    after = {command: calls(node, command) - before[command] for command in before}
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
        time.sleep(0.3)  # its subscription is confirmed, and its claim carries the wake address
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waiting(mine, name, 2)
    finally:
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait(PATIENCE)
        dead.communicate()
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    # A dead waiter would stay queued for six seconds, and a grant to it would last five.
    assert time_of.unstalled < BY_WAKEUP
    other.do(lambda client: later.release())


def test_a_waiter_is_woken_by_the_new_node_after_a_move(
    agent: Make, cluster: Any, name: str
) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    cluster.move(slot(name), elsewhere(cluster, cluster.owner(slot(name))))
    # The waiter stays queued from the first moment: nobody listens at the new node yet, but no
    # waiter is taken for dead.
    assert len(mine.do(lambda client: client.inspect(name)).waiters) == 1
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    assert time_of.unstalled < 2.0 + BY_WAKEUP
    other.do(lambda client: later.release())


def test_a_client_that_waited_once_does_not_subscribe_again_the_next_time(
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


def test_a_name_without_waiters_is_unsubscribed_after_a_while(
    agent: Make, redis_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockfast.stores.redis_cluster.listeners.LINGER", 0.05)
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    node = redis_cluster.masters[0]
    names = names_at(redis_cluster, node, 2)

    def subscribed() -> list[str]:
        channels = b" ".join(node.call("PUBSUB", "SHARDCHANNELS")).decode()
        return [name for name in names if f"{name}}}" in channels]

    for name in names:
        hold = mine.do(lambda client: client.lock(name).acquire())  # noqa: B023
        waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))  # noqa: B023
        until(lambda: name in subscribed())  # noqa: B023
        mine.do(lambda client: hold.release())  # noqa: B023
        later = waits.result(PATIENCE)
        other.do(lambda client: later.release())  # noqa: B023
        time.sleep(0.1)
    assert subscribed() == names[1:]


def test_listeners_are_opened_only_at_nodes_with_waiters(agent: Make, redis_cluster: Any) -> None:
    mine, other = agent(redis_cluster.url), agent(redis_cluster.url)
    node, *rest = redis_cluster.masters
    name = names_at(redis_cluster, node, 1)[0]
    before = {one.port: listeners(one) for one in (node, *rest)}
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    until(lambda: listeners(node) == before[node.port] + 1)
    for one in rest:
        assert listeners(one) == before[one.port]
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    other.do(lambda client: later.release())


def test_a_killed_listener_is_opened_again(agent: Make, cluster: Any, name: str) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(mine, name, 1)
    node = cluster.owner(slot(name))
    until(lambda: node.call("CLIENT", "KILL", "TYPE", "pubsub"))
    until(lambda: listeners(node))
    time.sleep(0.1)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.unstalled < BY_WAKEUP
    other.do(lambda client: later.release())
