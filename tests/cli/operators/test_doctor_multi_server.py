"""`lockfast doctor` on groups of Redis servers: Sentinel, Cluster and Redlock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctor_reports import Verdict
from operator_commands import Command


def test_reachable_sentinels_are_ok_and_so_are_replicas_that_claims_wait_for(
    command: Command, redis_sentinels: Any
) -> None:
    found = Verdict(command, redis_sentinels.url)
    assert (found.code, found.levels("sentinels")) == (0, {"ok"}), found.health_checks
    assert found.levels("replicas") == {"warn"}
    counted = Verdict(command, f"{redis_sentinels.url}?replicas=1")
    assert (counted.code, counted.levels("replicas")) == (0, {"ok"}), counted.health_checks
    assert "replicas=1" in counted.text("replicas")


def test_too_few_sentinels_to_replace_a_master_are_bad(
    command: Command, new_sentinels: Callable[..., Any]
) -> None:
    group = new_sentinels()
    group.sentinels[0].kill()
    found = Verdict(command, group.url)
    assert (found.code, found.levels("sentinels")) == (0, {"warn"}), found.health_checks
    assert str(group.sentinels[0].port) in found.text("sentinels")
    group.sentinels[1].kill()
    until_it_knows = 40
    for _ in range(until_it_knows):
        found = Verdict(command, group.url)
        if "bad" in found.levels("sentinels"):
            break
    assert found.code == 1 and "NOQUORUM" in found.text("sentinels")


def test_a_cluster_is_checked_node_by_node(command: Command, redis_cluster: Any) -> None:
    found = Verdict(command, redis_cluster.url)
    assert found.code == 0 and "role" not in str(found.health_checks), found.health_checks
    assert found.levels("masters") == {"ok"} and found.levels("rights") == {"ok"}
    assert "all masters: " in found.text("persistence")
    master = redis_cluster.masters[0]
    try:
        master.call("CONFIG", "SET", "maxmemory", "500mb")
        master.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found = Verdict(command, redis_cluster.url)
        assert (found.code, found.levels("eviction")) == (1, {"bad"})
        assert f"127.0.0.1:{master.port}: " in found.text("eviction")
    finally:
        master.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        master.call("CONFIG", "SET", "maxmemory", "0")


def test_every_verb_is_tried_on_a_quorum(command: Command, redlock_servers: Any) -> None:
    found = Verdict(command, redlock_servers.url)
    assert found.code == 0 and found.levels("rights") == {"ok"}, found.health_checks


def test_a_quorum_is_checked_node_by_node(command: Command, redlock_servers: Any) -> None:
    found = Verdict(command, redlock_servers.url)
    assert found.levels("nodes") == {"ok"} and found.levels("votes") == set()
    assert "all nodes: " in found.text("persistence")
    node = redlock_servers.nodes[1]
    try:
        node.call("CONFIG", "SET", "maxmemory", "500mb")
        node.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found = Verdict(command, redlock_servers.url)
        assert (found.code, found.levels("eviction")) == (1, {"bad"})
        assert f"127.0.0.1:{node.port}: " in found.text("eviction")
    finally:
        node.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        node.call("CONFIG", "SET", "maxmemory", "0")


def test_one_server_under_two_addresses_is_detected(command: Command, redlock_servers: Any) -> None:
    assert Verdict(command, redlock_servers.url).code == 0  # and all are founded
    first, second, _ = redlock_servers.ports
    url = f"redlock://127.0.0.1:{first},127.0.0.1:{second},localhost:{first}"
    found = Verdict(command, url)
    assert (found.code, found.levels("votes")) == (1, {"bad"})
    assert f"the same server as 127.0.0.1:{first}" in found.text("votes")


def test_an_unreachable_node_is_named(command: Command, redlock_servers: Any) -> None:
    assert Verdict(command, redlock_servers.url).code == 0  # and all are founded
    first, second, _ = redlock_servers.ports
    found = Verdict(command, f"redlock://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:1")
    assert found.code == 1 and "bad" in found.levels("contact")
    assert "127.0.0.1:1" in found.text("contact") and "cannot vote" in found.text("contact")
