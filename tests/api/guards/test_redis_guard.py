"""`RedisGuard` on a real Redis, with blocking and asyncio clients."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from typing import Any

import pytest
from databases import wait_until

import lockfast
from lockfast.guards import RedisGuard
from lockfast.guards.redis import mark_of


@pytest.fixture
def key() -> str:
    return f"key-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(redis_server: Any) -> Any:
    with redis_server.client() as client:
        yield client


@pytest.mark.parametrize(
    "older, newer", [(7, 9), (9, 10), (99, 100), (2**53, 2**53 + 1), (2**63 - 2, 2**63 - 1)]
)
def test_equal_and_higher_fences_write_and_a_lower_one_is_refused(client, key, older, newer):
    guard = RedisGuard(client)
    for fence in (older, older, newer, newer):
        assert guard.write(fence, "SET", key, f"of {fence}") == b"OK"
        assert client.get(key) == f"of {fence}".encode()
    with pytest.raises(lockfast.StaleFence) as caught:
        guard.write(older, "SET", key, "stale")
    error = caught.value
    assert (error.name, error.fence, error.seen) == (key, older, newer)
    assert client.get(key) == f"of {newer}".encode()
    with pytest.raises(lockfast.StaleFence):  # a refused write does not lower the mark
        guard.write(older, "DEL", key)
    assert client.exists(key)


def test_any_command_that_writes_one_key_can_be_guarded(client, key):
    guard = RedisGuard(client)
    assert guard.write(7, "HSET", key, "name", "Ann", "age", 30, "part", 0.5, "raw", b"\0\xff")
    assert client.hgetall(key)[b"raw"] == b"\0\xff"
    assert guard.write(7, "HDEL", key, "age") == 1
    assert guard.write(7, "DEL", key) == 1
    assert guard.write(7, "RPUSH", key, "a", "b") == 2
    assert guard.write(7, "LPOP", key) == b"a"
    assert guard.write(8, "SET", key, "x", "NX") is None  # the key exists: Redis replies nil
    with pytest.raises(lockfast.StaleFence):
        guard.write(7, "DEL", key)


def test_a_command_that_fails_writes_nothing_and_raises_its_error(client, key):
    import redis

    guard = RedisGuard(client)
    guard.write(7, "SET", key, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        guard.write(9, "HSET", key, "a", "b")
    assert client.get(key) == b"text"
    with pytest.raises(redis.ResponseError, match="nknown"):
        guard.write(9, "NOSUCHCOMMAND", key)


def test_a_server_that_forgot_the_script_gets_its_source(new_redis):
    server = new_redis()
    with server.client() as client:
        guard = RedisGuard(client)
        for fence in (7, 8):
            client.script_flush()
            guard.write(fence, "SET", "a", f"of {fence}")
            guard.write(fence, "SET", "a", f"of {fence}")
        client.script_flush()
        with pytest.raises(lockfast.StaleFence):
            guard.write(7, "SET", "a", "stale")
        assert client.get("a") == b"of 8"


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
def test_an_asyncio_client_awaits_the_result(new_redis, key, decode, protocol):
    from redis.asyncio import Redis

    server = new_redis()

    async def main() -> None:
        async with Redis(port=server.port, decode_responses=decode, protocol=protocol) as client:
            guard = RedisGuard(client)
            reply = await guard.write(9, "SET", key, "of 9")  # the script is new to the server
            assert reply == ("OK" if decode else b"OK")
            assert await guard.write(9, "APPEND", key, "!") == 5
            with pytest.raises(lockfast.StaleFence) as caught:
                await guard.write(7, "SET", key, "stale")
            assert caught.value.seen == 9
            await client.script_flush()
            with pytest.raises(lockfast.StaleFence):
                await guard.write(7, "SET", key, "stale")
            assert await client.get(key) == ("of 9!" if decode else b"of 9!")

    asyncio.run(main())


def test_a_mark_expires_only_if_keep_is_passed(client, key):
    mark = mark_of(key)
    RedisGuard(client).write(7, "SET", key, "x")
    assert client.ttl(mark) == -1
    RedisGuard(client, keep=3600).write(7, "SET", key, "x")
    assert 3590 < client.ttl(mark) <= 3600
    with pytest.raises(lockfast.StaleFence):
        RedisGuard(client, keep=1).write(6, "SET", key, "x")
    assert client.ttl(mark) > 3590, "a stale writer must not shorten it"
    RedisGuard(client, keep=3600).write(8, "EXPIRE", key, 60)
    assert client.ttl(key) <= 60 and client.ttl(mark) > 3590
    RedisGuard(client).write(8, "SET", key, "x")
    assert client.ttl(mark) == -1


def test_after_concurrent_writers_the_highest_fence_remains(redis_server, key):
    """Each value is its fence, so the last write must be the one with the highest."""
    fences = list(range(1, 201))
    random.Random(7).shuffle(fences)
    refused: list[int] = []

    def writer(own: list[int]) -> None:
        with redis_server.client() as client:
            for fence in own:
                try:
                    RedisGuard(client).write(fence, "SET", key, fence)
                except lockfast.StaleFence as error:
                    assert error.seen is not None and error.seen > fence
                    refused.append(fence)

    threads = [threading.Thread(target=writer, args=(fences[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with redis_server.client() as client:
        assert client.get(key) == client.get(mark_of(key)) == b"200"
    assert refused


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "it's",
        "100 %s",
        "☂ 🔒",
        "a b\r\n*1\r\n",
        "{tag}:a",
        "a{tag}b",
        "{{x}y",
        "a{b",
        "x" * 1000,
    ],
)
def test_on_a_cluster_key_and_mark_share_a_slot(cluster, name):
    guard = RedisGuard(cluster)
    guard.write(9, "SET", name, "x")  # or CROSSSLOT
    with pytest.raises(lockfast.StaleFence):
        guard.write(7, "SET", name, "y")
    assert cluster.get(name) == b"x"


@pytest.fixture(scope="module")
def cluster(redis_server: Any) -> Any:
    """A Cluster of one node, which owns all slots and refuses commands across slots."""
    from lab.servers.redis_server import RedisServer

    server = RedisServer().start("--cluster-enabled", "yes")
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield client
    server.stop()


@pytest.mark.parametrize("name", ["a}b", "{}a", "}{", "{}{a}"])
def test_a_key_whose_slot_no_mark_can_share_is_refused_without_an_explicit_mark(cluster, name):
    guard = RedisGuard(cluster)
    with pytest.raises(lockfast.ConfigurationError, match="hash tag"):
        guard.write(9, "SET", name, "x")


def test_marks_of_different_keys_are_different():
    keys = ["x", "{x}", "{{x}", "a{x}", "{x}a", "{x}:lf-fence", "{x}:lf-mark", "x:lf-fence"]
    assert len({mark_of(key) for key in keys}) == len(keys)


def test_keys_that_belong_together_share_a_mark(client, key):
    guard = RedisGuard(client)
    mark = f"{{{key}}}:fence"
    guard.write(9, "SET", f"{{{key}}}:a", "x", mark=mark)
    with pytest.raises(lockfast.StaleFence):  # though b was never written
        guard.write(7, "SET", f"{{{key}}}:b", "x", mark=mark)
    with pytest.raises(lockfast.ConfigurationError, match="key itself"):
        guard.write(9, "SET", key, "x", mark=key)


def test_foreign_data_under_the_name_of_a_mark_is_not_overwritten(client, key):
    import redis

    client.set(mark_of(key), "not a number")
    with pytest.raises(redis.ResponseError, match="FOREIGN"):
        RedisGuard(client).write(9, "SET", key, "x")
    client.delete(mark_of(key))
    client.rpush(mark_of(key), "a")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        RedisGuard(client).write(9, "SET", key, "x")
    assert client.get(key) is None


@pytest.mark.parametrize("wrong", [{"key": ""}, {"key": b"a"}, {"command": ""}, {"command": 7}])
def test_an_invalid_key_or_command_is_refused(client, wrong):
    arguments = {"command": "SET", "key": "a"} | wrong
    with pytest.raises(lockfast.ConfigurationError):
        RedisGuard(client).write(7, arguments["command"], arguments["key"], "x")


@pytest.mark.parametrize("keep", [0, -1, "5", True, float("inf")])
def test_an_invalid_keep_is_refused(client, keep):
    with pytest.raises(lockfast.ConfigurationError, match="keep"):
        RedisGuard(client, keep=keep)
