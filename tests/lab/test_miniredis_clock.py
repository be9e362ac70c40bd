"""MiniRedis on a clock of its own, and its own features: shared Lua, refused commands."""

from __future__ import annotations

import sys

import pytest
from both_redises import Both

from lab.miniredis import MiniError, MiniRedis
from lab.miniredis.scripts import Engine


@pytest.fixture
def clock() -> list[int]:
    return [1_763_258_400_123_456]


@pytest.fixture
def mini(clock: list[int]) -> MiniRedis:
    return MiniRedis(lambda: clock[0], lambda channel, message: 3)


AT_THE_EDGE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('SET', KEYS[1], 'x', 'PXAT', now)
local ends_now = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], 'x', 'PXAT', now - 1)
local ended = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], 'x')
local a, b = redis.call('PEXPIREAT', KEYS[1], now), redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], 'x')
local c, d = redis.call('PEXPIREAT', KEYS[1], now + 1), redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], 'x')
local e, f = redis.call('PEXPIRE', KEYS[1], 0), redis.call('EXISTS', KEYS[1])
return {ends_now, ended, a, b, c, d, e, f}
"""


def test_keys_expire_at_the_same_millisecond_as_in_redis(both: Both) -> None:
    ours = both.mini.eval(AT_THE_EDGE, ["k"], [])
    # The millisecond may end while the real script runs: the most frequent reply counts.
    theirs = [tuple(both.real.call("EVAL", AT_THE_EDGE, 1, "k")) for _ in range(99)]
    assert tuple(ours) == max(set(theirs), key=theirs.count) == (1, 0, 1, 0, 1, 1, 1, 0)


def test_a_key_lives_through_its_last_millisecond(mini: MiniRedis, clock: list[int]) -> None:
    mini.call("SET", "k", "x", "PX", 10)
    assert mini.call("PTTL", "k") == 10
    clock[0] += 10_000
    assert (mini.call("PTTL", "k"), mini.call("EXISTS", "k")) == (0, 1)
    clock[0] += 543  # the last microsecond of that millisecond
    assert mini.call("GET", "k") == b"x"
    clock[0] += 1
    assert (mini.call("PTTL", "k"), mini.call("GET", "k")) == (-2, None)


@pytest.mark.parametrize("look", ["EXISTS k", "TYPE k", "HLEN k", "DBSIZE", "SCAN 0", "HGET k f"])
def test_no_command_finds_an_expired_key(mini: MiniRedis, clock: list[int], look: str) -> None:
    empty = mini.call(*look.split())
    mini.call("HSET", "k", "f", "v")
    mini.call("PEXPIRE", "k", 5)
    clock[0] += 6_000
    assert mini.call(*look.split()) == empty


def test_a_new_value_does_not_inherit_the_old_expiry(mini: MiniRedis, clock: list[int]) -> None:
    mini.call("HSET", "k", "f", "v")
    mini.call("PEXPIRE", "k", 5)
    clock[0] += 6_000
    assert mini.call("HSET", "k", "g", "v") == 1
    assert (mini.call("HLEN", "k"), mini.call("PTTL", "k")) == (1, -1)


def test_time_stands_still_in_a_script(clock: list[int]) -> None:
    def tick() -> int:
        clock[0] += 7_000
        return clock[0]

    mini = MiniRedis(tick, lambda channel, message: 0)
    source = """
    redis.call('SET', 'k', 'x', 'PX', 1)
    local a, b = redis.call('TIME'), redis.call('TIME')
    return {a[1] == b[1] and a[2] == b[2], redis.call('EXISTS', 'k'), redis.call('PTTL', 'k')}
    """
    assert mini.eval(source, [], []) == [1, 1, 1]
    assert mini.call("EXISTS", "k") == 0


def test_a_published_message_is_passed_on_with_its_channel_and_bytes(clock: list[int]) -> None:
    messages: list[tuple[str, bytes]] = []

    def published(channel: str, message: bytes) -> int:
        messages.append((channel, message))
        return len(messages)

    mini = MiniRedis(lambda: clock[0], published)
    assert mini.call("PUBLISH", "wakeup:ä", b"\x00\xff") == 1
    assert mini.eval("return redis.call('PUBLISH', 'c', ARGV[1])", [], [b"\xfe"]) == 2
    assert messages == [("wakeup:ä", b"\x00\xff"), ("c", b"\xfe")]


def test_stores_share_lua_and_nothing_else(clock: list[int]) -> None:
    one, two = (MiniRedis(lambda: clock[0], lambda c, m: 0) for _ in range(2))
    sha = one.script_load("return redis.call('INCR', KEYS[1])")
    assert one.evalsha(sha, ["k"], []) == 1
    with pytest.raises(MiniError, match="NOSCRIPT"):
        two.evalsha(sha, ["k"], [])
    two.script_load("return redis.call('INCR', KEYS[1])")
    assert (two.evalsha(sha, ["k"], []), one.evalsha(sha, ["k"], [])) == (1, 2)
    one.flushall()
    assert (one.call("DBSIZE"), two.call("DBSIZE")) == (0, 1)


@pytest.mark.parametrize(
    "source",
    [
        "return redis.call('GEOADD', 'k')",
        "return redis.pcall('GEOADD', 'k')",
        "return {pcall(redis.call, 'GEOADD', 'k')}",
        "return redis.pcall('ZADD', 'k', 'XX', 1, 'm')",
        "return redis.pcall('ZRANGE', 'k', '[a', '[b', 'BYLEX')",
        "return redis.pcall('ZADD', 'k', '0x10', 'm')",
    ],
)
def test_an_unknown_command_is_an_error_that_no_script_can_catch(
    mini: MiniRedis, source: str
) -> None:
    with pytest.raises(NotImplementedError, match="miniredis"):
        mini.eval(source, [], [])
    assert mini.eval("return 1", [], []) == 1  # and the next script runs
    for command in (["GEOADD", "k"], ["SCRIPT", "KILL"], ["ZRANGE", "k", "[a", "[b", "BYLEX"]):
        with pytest.raises(NotImplementedError, match="miniredis"):
            mini.call(*command)


def test_a_script_cannot_begin_inside_a_script(clock: list[int]) -> None:
    mini = MiniRedis(lambda: clock[0], lambda c, m: other.eval("return 5", [], []))
    other = MiniRedis(lambda: clock[0], lambda c, m: 0)
    with pytest.raises(RuntimeError, match="inside a script"):
        mini.eval("return redis.call('PUBLISH', 'c', 'm')", [], [])
    assert mini.call("PUBLISH", "c", "m") == 5


def test_without_lupa_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    with pytest.raises(ImportError, match="pip install lupa"):
        Engine({}, frozenset())


def test_a_float_is_refused_as_an_argument_of_a_command(mini: MiniRedis) -> None:
    with pytest.raises(TypeError, match=r"1\.5"):
        mini.call("SET", "k", 1.5)
