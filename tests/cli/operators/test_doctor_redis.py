"""`lockfast doctor` before real Redises, each in the state that is to be found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_reports import Verdict
from operator_commands import Operator

from lockfast.stores.redis.health import judged

Setting = Callable[..., None]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "redis.md").read_text()
LEAST = " ".join(PAGE.split("user lockfast on >password ")[1].split("```")[0].split())


@pytest.fixture
def server(redis_server: Any) -> Any:
    return redis_server


@pytest.fixture
def setting(server: Any) -> Iterator[Setting]:
    """CONFIG SET, and as it was afterwards."""
    before: dict[str, Any] = {}

    def setting(**settings: object) -> None:
        for name, value in settings.items():
            word = name.replace("_", "-")
            before.setdefault(word, *server.call("CONFIG", "GET", word).values())
            server.call("CONFIG", "SET", word, str(value))

    yield setting
    for word, value in reversed(before.items()):
        server.call("CONFIG", "SET", word, value)


def test_a_redis_that_keeps_what_it_is_told_is_fit(
    say: Operator, server: Any, setting: Setting
) -> None:
    setting(appendonly="yes", appendfsync="always")
    found = Verdict(say, server.url)
    assert (found.code, found.faults) == (0, [])
    assert found.levels("eviction") == found.levels("rights") == found.levels("version") == {"ok"}
    assert found.levels("persistence") == {"ok"} and found.levels("clock") == {"ok"}
    (latency,) = [one for one in found.health_checks if one["about"] == "latency"]
    assert 0 < latency["facts"]["p50_ms"] <= latency["facts"]["p99_ms"]
    plain = say("doctor", server.url)
    assert plain.code == 0, plain.out
    assert max(map(len, plain.out.splitlines())) <= 80 and "\x1b" not in plain.out


def test_what_is_on_no_disk_is_a_warning_which_counts_if_one_is_strict(
    say: Operator, server: Any, setting: Setting
) -> None:
    found = Verdict(say, server.url)
    assert (found.code, found.levels("persistence")) == (0, {"warn"})
    assert "nothing is written to disk" in found.text("persistence")
    assert Verdict(say, "--strict", server.url).code == 1
    setting(save="3600 1")
    assert "since the last one" in Verdict(say, server.url).text("persistence")
    setting(appendonly="yes", appendfsync="everysec")
    assert Verdict(say, server.url).levels("persistence") == {"note"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_policy_that_may_evict_locks_is_bad(
    say: Operator, server: Any, setting: Setting, policy: str
) -> None:
    setting(maxmemory_policy=policy)
    assert Verdict(say, server.url).levels("eviction") == {"ok"}  # without a limit it never does
    setting(maxmemory="200mb")
    found = Verdict(say, server.url)
    assert (found.code, found.levels("eviction")) == (1, {"bad"})
    assert policy in found.text("eviction") and "noeviction" in found.text("eviction")


def test_a_memory_that_is_nearly_full_is_a_warning(
    say: Operator, server: Any, setting: Setting
) -> None:
    used = int(server.client().info("memory")["used_memory"])
    setting(maxmemory=int(used * 1.06))
    assert Verdict(say, server.url).levels("eviction") == {"warn"}


def test_few_connections_left_are_a_warning(say: Operator, server: Any, setting: Setting) -> None:
    setting(maxclients=5)
    with server.client() as one, server.client() as two:
        one.ping(), two.ping()
        assert Verdict(say, server.url).levels("connections") == {"warn"}


def test_a_right_that_is_missing_is_named(say: Operator, server: Any) -> None:
    server.call("ACL", "SETUSER", "half", "on", ">sesame", *LEAST.replace("+publish ", "").split())
    found = Verdict(say, f"redis://half:sesame@127.0.0.1:{server.port}")
    assert found.code == 1 and "bad" in found.levels("rights")
    assert "who waits cannot be rung" in found.text("rights")
    assert "+publish" in found.text("rights") and "sesame" not in str(found.document)


def test_the_least_rights_suffice_and_what_may_not_be_asked_is_said(
    say: Operator, server: Any
) -> None:
    server.call("ACL", "SETUSER", "least", "on", ">sesame", *LEAST.split())
    found = Verdict(say, f"redis://least:sesame@127.0.0.1:{server.port}")
    assert (found.faults, found.levels("rights")) == ([], {"ok", "note"})
    assert "+info" in found.text("rights")


def test_a_wrong_password_is_bad_and_not_shown(say: Operator, server: Any) -> None:
    found = Verdict(say, f"redis://nobody:sesame@127.0.0.1:{server.port}")
    assert (found.code, found.levels("contact")) == (1, {"bad"})
    assert "password is wrong" in found.text("contact") and "sesame" not in str(found.document)


def test_a_replica_is_bad_and_replicas_that_nobody_waits_for_are_a_warning(
    say: Operator, new_redis: Callable[..., Any]
) -> None:
    master = new_redis()
    replica = new_redis("--replicaof", f"127.0.0.1 {master.port}")
    until = time.monotonic() + 20
    while master.client().info("replication")["connected_slaves"] < 1 or (
        replica.client().info("replication")["master_link_status"] != "up"
    ):
        assert time.monotonic() < until
        time.sleep(0.05)
    found = Verdict(say, replica.url)
    assert (found.code, found.levels("role")) == (1, {"bad"})
    assert f"127.0.0.1:{master.port}" in found.text("role") and "bad" in found.levels("rights")
    assert Verdict(say, master.url).levels("replicas") == {"warn"}
    master.call("CONFIG", "SET", "min-replicas-to-write", "1")
    assert Verdict(say, master.url).levels("replicas") == {"ok"}
    master.call("CONFIG", "SET", "min-replicas-to-write", "2")
    found = Verdict(say, master.url)
    assert (found.code, found.levels("replicas")) == (1, {"bad"})


def test_a_node_of_a_cluster_is_bad(say: Operator, new_redis: Callable[..., Any]) -> None:
    node = new_redis("--cluster-enabled", "yes", "--cluster-port", "0")
    found = Verdict(say, node.url)  # it says that the cluster is down, which may pass
    assert (found.code, found.levels("role")) == (69, {"bad"})


def test_a_disk_that_cannot_be_written_to_is_bad(
    say: Operator, new_redis: Callable[..., Any]
) -> None:
    server = new_redis("--save", "3600 1000000")
    (server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
    server.call("SET", "x", "1")
    server.call("BGSAVE")
    until = time.monotonic() + 20
    while server.client().info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < until
        time.sleep(0.05)
    found = Verdict(say, server.url)
    assert found.code == 1 and "bad" in found.levels("persistence")


def test_an_old_version_is_bad() -> None:
    first = next(iter(judged({"redis_version": "6.0.16", "role": "master"}, {})))
    assert first.level.name == "BAD" and "6.2" in first.do
    assert next(iter(judged({"valkey_version": "8.0.1"}, {}))).level.name == "OK"


def test_a_clock_that_differs_is_a_warning(
    say: Operator, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockfast.clock.wall", lambda: time.time() - 90.0)
    found = Verdict(say, server.url)
    assert found.levels("clock") == {"warn"} and "90." in found.text("clock")


def test_a_server_that_is_away_is_69_and_one_finding(say: Operator) -> None:
    found = Verdict(say, "redis://:sesame@127.0.0.1:1/0")
    assert (found.code, len(found.health_checks)) == (69, 1)
    assert "sesame" not in str(found.document)
