"""`holdfast doctor` before Redises that belong together: Sentinel and Cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctor_words import Verdict
from operator_words import Operator


def test_sentinels_that_answer_are_fit_and_replicas_that_are_counted_are_fine(
    say: Operator, redis_sentinels: Any
) -> None:
    found = Verdict(say, redis_sentinels.url)
    assert (found.code, found.levels("sentinels")) == (0, {"ok"}), found.findings
    assert found.levels("replicas") == {"warn"}
    counted = Verdict(say, f"{redis_sentinels.url}?replicas=1")
    assert (counted.code, counted.levels("replicas")) == (0, {"ok"}), counted.findings
    assert "replicas=1" in counted.text("replicas")


def test_too_few_sentinels_to_replace_a_master_are_bad(
    say: Operator, new_sentinels: Callable[..., Any]
) -> None:
    group = new_sentinels()
    group.sentinels[0].kill()
    found = Verdict(say, group.url)
    assert (found.code, found.levels("sentinels")) == (0, {"warn"}), found.findings
    assert str(group.sentinels[0].port) in found.text("sentinels")
    group.sentinels[1].kill()
    until_it_knows = 40
    for _ in range(until_it_knows):
        found = Verdict(say, group.url)
        if "bad" in found.levels("sentinels"):
            break
    assert found.code == 1 and "NOQUORUM" in found.text("sentinels")


def test_a_cluster_is_examined_node_by_node(say: Operator, redis_cluster: Any) -> None:
    found = Verdict(say, redis_cluster.url)
    assert found.code == 0 and "role" not in str(found.findings), found.findings
    assert found.levels("masters") == {"ok"} and found.levels("rights") == {"ok"}
    assert "all masters: " in found.text("persistence")
    master = redis_cluster.masters[0]
    try:
        master.call("CONFIG", "SET", "maxmemory", "500mb")
        master.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found = Verdict(say, redis_cluster.url)
        assert (found.code, found.levels("eviction")) == (1, {"bad"})
        assert f"127.0.0.1:{master.port}: " in found.text("eviction")
    finally:
        master.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        master.call("CONFIG", "SET", "maxmemory", "0")


def test_a_quorum_is_tried_through_every_verb(say: Operator, redlock_servers: Any) -> None:
    found = Verdict(say, redlock_servers.url)
    assert (found.code, found.faults) == (0, []), found.findings
    assert found.levels("rights") == {"ok"}
