"""`lockfast doctor` on real Redis servers, each in the state to be detected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_reports import Verdict
from operator_commands import Command

from lockfast.stores.redis.health import judged

Setting = Callable[..., None]
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "redis.md").read_text()
LEAST = " ".join(PAGE.split("user lockfast on >password ")[1].split("```")[0].split())


@pytest.fixture
def server(redis_server: Any) -> Any:
    return redis_server


@pytest.fixture
def setting(server: Any) -> Iterator[Setting]:
    """CONFIG SET; the previous values are restored at the end."""
    before: dict[str, Any] = {}

    def setting(**settings: object) -> None:
        for name, value in settings.items():
            parameter = name.replace("_", "-")
            before.setdefault(parameter, *server.call("CONFIG", "GET", parameter).values())
            server.call("CONFIG", "SET", parameter, str(value))

    yield setting
    for parameter, value in reversed(before.items()):
        server.call("CONFIG", "SET", parameter, value)


def test_a_durable_redis_is_fit(command: Command, server: Any, setting: Setting) -> None:
    setting(appendonly="yes", appendfsync="always")
    found = Verdict(command, server.url)
    assert (found.code, found.faults) == (0, [])
    assert found.levels("eviction") == found.levels("rights") == found.levels("version") == {"ok"}
    assert found.levels("persistence") == {"ok"} and found.levels("clock") == {"ok"}
    (latency,) = [one for one in found.health_checks if one["about"] == "latency"]
    assert 0 < latency["facts"]["p50_ms"] <= latency["facts"]["p99_ms"]
    plain = command("doctor", server.url)
    assert plain.code == 0, plain.out
    assert max(map(len, plain.out.splitlines())) <= 80 and "\x1b" not in plain.out


def test_missing_persistence_is_a_warning_and_fails_with_strict(
    command: Command, server: Any, setting: Setting
) -> None:
    found = Verdict(command, server.url)
    assert (found.code, found.levels("persistence")) == (0, {"warn"})
    assert "nothing is written to disk" in found.text("persistence")
    assert Verdict(command, "--strict", server.url).code == 1
    setting(save="3600 1")
    assert "since the last one" in Verdict(command, server.url).text("persistence")
    setting(appendonly="yes", appendfsync="everysec")
    assert Verdict(command, server.url).levels("persistence") == {"note"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_policy_that_may_evict_locks_is_bad(
    command: Command, server: Any, setting: Setting, policy: str
) -> None:
    setting(maxmemory_policy=policy)
    assert Verdict(command, server.url).levels("eviction") == {
        "ok"
    }  # without a limit it never does
    setting(maxmemory="200mb")
    found = Verdict(command, server.url)
    assert (found.code, found.levels("eviction")) == (1, {"bad"})
    assert policy in found.text("eviction") and "noeviction" in found.text("eviction")


def test_nearly_full_memory_is_a_warning(command: Command, server: Any, setting: Setting) -> None:
    used = int(server.client().info("memory")["used_memory"])
    setting(maxmemory=int(used * 1.06))
    assert Verdict(command, server.url).levels("eviction") == {"warn"}


def test_few_connections_left_are_a_warning(
    command: Command, server: Any, setting: Setting
) -> None:
    setting(maxclients=5)
    with server.client() as one, server.client() as two:
        one.ping(), two.ping()
        assert Verdict(command, server.url).levels("connections") == {"warn"}


def test_a_missing_permission_is_named(command: Command, server: Any) -> None:
    server.call("ACL", "SETUSER", "half", "on", ">sesame", *LEAST.replace("+publish ", "").split())
    found = Verdict(command, f"redis://half:sesame@127.0.0.1:{server.port}")
    assert found.code == 1 and "bad" in found.levels("rights")
    assert "waiters cannot be woken" in found.text("rights")
    assert "+publish" in found.text("rights") and "sesame" not in str(found.document)


def test_the_documented_permissions_suffice_and_unreadable_settings_are_noted(
    command: Command, server: Any
) -> None:
    server.call("ACL", "SETUSER", "least", "on", ">sesame", *LEAST.split())
    found = Verdict(command, f"redis://least:sesame@127.0.0.1:{server.port}")
    assert (found.faults, found.levels("rights")) == ([], {"ok", "note"})
    assert "+info" in found.text("rights")


def test_a_wrong_password_is_bad_and_not_shown(command: Command, server: Any) -> None:
    found = Verdict(command, f"redis://nobody:sesame@127.0.0.1:{server.port}")
    assert (found.code, found.levels("contact")) == (1, {"bad"})
    assert "password is wrong" in found.text("contact") and "sesame" not in str(found.document)


def test_a_replica_is_bad_and_asynchronous_replicas_are_a_warning(
    command: Command, new_redis: Callable[..., Any]
) -> None:
    master = new_redis()
    replica = new_redis("--replicaof", f"127.0.0.1 {master.port}")
    until = time.monotonic() + 20
    while master.client().info("replication")["connected_slaves"] < 1 or (
        replica.client().info("replication")["master_link_status"] != "up"
    ):
        assert time.monotonic() < until
        time.sleep(0.05)
    found = Verdict(command, replica.url)
    assert (found.code, found.levels("role")) == (1, {"bad"})
    assert f"127.0.0.1:{master.port}" in found.text("role") and "bad" in found.levels("rights")
    assert Verdict(command, master.url).levels("replicas") == {"warn"}
    master.call("CONFIG", "SET", "min-replicas-to-write", "1")
    assert Verdict(command, master.url).levels("replicas") == {"ok"}
    master.call("CONFIG", "SET", "min-replicas-to-write", "2")
    found = Verdict(command, master.url)
    assert (found.code, found.levels("replicas")) == (1, {"bad"})


def test_a_node_of_a_cluster_is_bad(command: Command, new_redis: Callable[..., Any]) -> None:
    node = new_redis("--cluster-enabled", "yes", "--cluster-port", "0")
    found = Verdict(command, node.url)  # "cluster is down" is a transient error
    assert (found.code, found.levels("role")) == (69, {"bad"})


def test_a_disk_that_cannot_be_written_to_is_bad(
    command: Command, new_redis: Callable[..., Any]
) -> None:
    server = new_redis("--save", "3600 1000000")
    (server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
    server.call("SET", "x", "1")
    server.call("BGSAVE")
    until = time.monotonic() + 20
    while server.client().info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < until
        time.sleep(0.05)
    found = Verdict(command, server.url)
    assert found.code == 1 and "bad" in found.levels("persistence")


def test_an_old_version_is_bad() -> None:
    first = next(iter(judged({"redis_version": "6.0.16", "role": "master"}, {})))
    assert first.level.name == "BAD" and "6.2" in first.do
    assert next(iter(judged({"valkey_version": "8.0.1"}, {}))).level.name == "OK"


def test_a_clock_that_differs_is_a_warning(
    command: Command, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockfast.clock.wall", lambda: time.time() - 90.0)
    found = Verdict(command, server.url)
    assert found.levels("clock") == {"warn"} and "90." in found.text("clock")


def test_an_unreachable_server_gives_69_and_one_check(command: Command) -> None:
    found = Verdict(command, "redis://:sesame@127.0.0.1:1/0")
    assert (found.code, len(found.health_checks)) == (69, 1)
    assert "sesame" not in str(found.document)
