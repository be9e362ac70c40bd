"""MiniRedis answers as a real Redis does: random commands and scripts, globs, edge cases."""

from __future__ import annotations

import random

import pytest
from both_redises import KEYS, Both
from hypothesis import given, settings
from hypothesis import strategies as st
from random_commands import CASED, INITIAL, SHAPES, Command, lua

from lab.miniredis import MiniError


def test_random_commands_get_the_same_replies_as_from_redis(redis_port: int) -> None:
    @settings(max_examples=400, deadline=None)
    @given(st.lists(CASED, min_size=5, max_size=40))
    def run(commands: list[Command]) -> None:
        pair = Both(redis_port)
        try:
            pair.agree(*INITIAL, *commands)
            pair.agree_on_all()
        finally:
            pair.real.close()

    run()


def test_random_scripts_get_the_same_replies_as_from_redis(redis_port: int) -> None:
    # SCAN has no order, and FLUSHALL removes the keys of the script itself.
    calm = CASED.filter(lambda c: str(c[0]).upper() not in ("SCAN", "FLUSHALL"))
    lines = st.lists(st.tuples(st.sampled_from(SHAPES), calm), min_size=1, max_size=5)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(lines, min_size=1, max_size=6), st.sampled_from(["out", "out[1]", "#out"]))
    def run(scripts: list[list[tuple[str, Command]]], result: str) -> None:
        pair = Both(redis_port)
        try:
            pair.agree(*INITIAL)
            for script in scripts:
                body = [
                    "do " + shape.format(", ".join(map(lua, command))) + " end"
                    for shape, command in script
                    if "PTTL" not in str(command[0]).upper()
                ]
                source = "\n".join(["local out = {}", *body, f"return {result}"])
                pair.agree(("EVAL", source, 1, KEYS[0], "x"))
                pair.agree_on_all()
        finally:
            pair.real.close()

    run()


EDGES = """
SET k 1 PX 5000000 / SET k 2 KEEPTTL / PTTL k / SET k 3 / PTTL k / SET k 4 XX GET / SET k 5 NX GET
SET k 1 NX / SET k 2 NX / SET k 3 XX / SET new 1 XX / GET new / SET new 1 NX GET / GET new
SET k v PX 5000000 GET / PTTL k / SET k v NX PX 9000000 / PTTL k / SET k v PX 0 / SET k v PX -1
SET k v PXAT 1 / EXISTS k / GET k / SET k v NX / SET k v EX 5000 / PTTL k / SET k v EXAT 4102444800
SET k v PX 1 PXAT 1 / SET k v PX / SET k v NX XX / SET k v KEEPTTL PX 1
  / SET k v EX 9223372036854775
SET k v PX 5000000 PX 9000000 / PTTL k / SET k v KEEPTTL KEEPTTL / PTTL k / SET k v GET GET / SET k
SET k 9223372036854775806 / INCR k / INCR k / GET k / SET k -9223372036854775808 / INCR k
SET k 9223372036854775808 / INCR k / SET k 01 / INCR k / SET k -0 / INCR k / SET k 1.0 / INCR k
INCR k / PEXPIRE k 5000000 / INCR k / PTTL k / HSET h f 1 / INCR h / GET h / SET h 1 GET / SET h x
SET k v / PEXPIREAT k 4102444800000 GT / PTTL k / PEXPIREAT k 4102444800000 LT / PTTL k
SET k v / PEXPIREAT k 4102444800000 / PEXPIREAT k 4102444800000 GT / PEXPIREAT k 4102444800000 LT
SET k v / PEXPIREAT k 4102444800000 NX / PEXPIREAT k 4202444800000 NX / PTTL k / PEXPIREAT k 1 GT
SET k v PX 5000000 / PEXPIRE k 9000000 GT / PTTL k / PEXPIRE k 9000 XX LT / PTTL k / PEXPIRE k -1 LT
SET k v / PEXPIRE k 1000 XX / PEXPIRE k 1000 GT XX / PEXPIRE k 5000000 LT XX / PERSIST k / PERSIST k
PEXPIRE none 1 / PEXPIRE none x / PEXPIRE none 1 FOO / PEXPIRE k 1 NX LT / PEXPIRE k 1 GT LT
  / PERSIST none
SET k v / PEXPIRE k 9223372036854775807 / PEXPIREAT k 9223372036854775807 / PEXPIREAT k -9
  / EXISTS k
HSET h a 1 b 2 a 3 / HGETALL h / HSET h b 9 c 1 / HGETALL h / HDEL h a / HSET h a 0 / HKEYS h
  / HVALS h
HSET h a 1 / HDEL h a a b / EXISTS h / TYPE h / HDEL h a / HSET h a 1 PX / HSET h / HLEN h
  / HMGET h a z
HSETNX h a 1 / HSETNX h a 2 / HSETNX h b 3 / HGETALL h / SET k v / HSETNX k a 1 / HSETNX h a
HSET h a 1 / PEXPIRE h 5000000 / HSET h b 2 / PTTL h / HDEL h a b / HSET h c 1 / PTTL h
HINCRBY h f 9223372036854775807 / HINCRBY h f 1 / HINCRBY h f -9223372036854775808 / HGET h f
HINCRBY h f -9223372036854775808 / HINCRBY h f -1 / HSET h s x / HINCRBY h s 1 / HINCRBY h n x
  / HLEN h
HINCRBY none f x / EXISTS none / SET k v / HINCRBY k f 1 / HINCRBY k f x / HEXISTS k f / HMGET k f
  / HLEN k
ZADD z 1 a 1 b 2 c 0 d / ZRANGE z 0 -1 WITHSCORES / ZADD z 5 a / ZADD z NX 9 b 9 e
  / ZRANGE z 0 -1 WITHSCORES
ZADD z 1 a x b / EXISTS z / ZADD z 1 a 2 / ZADD z nan a / ZADD z NX / ZADD z NX NX 1 a
  / ZADD z 1 a 1 a 2 a
ZADD z 1 a / ZREM z b / ZREM z a a / EXISTS z / ZREM z a / ZCARD z / ZSCORE z a / ZRANGE z 0 -1
  / TYPE z
ZADD z -inf a inf b 0 c / ZRANGEBYSCORE z -inf inf / ZRANGEBYSCORE z (-inf (inf
  / ZCOUNT z -inf (inf / ZSCORE z b
ZADD z 1 a 2 b 3 c 4 d / ZRANGEBYSCORE z 1 4 LIMIT 1 2 / ZRANGEBYSCORE z (1 (4 LIMIT 1 1
  / ZRANGEBYSCORE z 4 1
ZADD z 1 a 2 b 3 c 4 d / ZREVRANGEBYSCORE z 4 1 LIMIT 1 2 / ZREVRANGEBYSCORE z (4 (1
  / ZREVRANGEBYSCORE z 1 4
ZADD z 1 a 2 b 3 c 4 d / ZRANGE z 1 4 BYSCORE LIMIT 2 9
  / ZRANGE z 4 1 BYSCORE REV LIMIT 1 2 WITHSCORES
ZADD z 1 a 2 b 3 c 4 d / ZRANGE z 1 2 / ZRANGE z -2 -1 / ZRANGE z -9 9 / ZRANGE z 3 1
  / ZRANGE z -1 -9 / ZRANGE z 9 9
ZADD z 1 a 2 b 3 c 4 d / ZRANGE z 1 2 REV / ZRANGE z 0 0 REV WITHSCORES / ZRANGE z 0 1 LIMIT 0 1
  / ZRANGE z 0 1 LIMIT 1 -1
ZADD z 1 a 2 b / ZRANGEBYSCORE z 1 2 LIMIT -1 5 / ZRANGEBYSCORE z 1 2 LIMIT 0 -5
  / ZRANGEBYSCORE z 1 2 LIMIT 0 0
ZADD z 1763258400123456 a 0.1 b 1e-7 c 1e22 d / ZRANGE z 0 -1 WITHSCORES / ZCOUNT z 0.1 0.1
  / ZCOUNT z x 1
SET k v / ZADD k 1 a / ZADD k x a / ZREM k a / ZSCORE k a / ZCARD k / ZCOUNT k 0 1 / ZRANGE k 0 1
  / ZRANGE k x 1
TYPE none / SET k v / HSET h a 1 / ZADD z 1 a / TYPE k / TYPE h / TYPE z / EXISTS k k h none
  / DEL k k none / DBSIZE
PING / PING a / PING a b / DBSIZE x / TIME x / PTTL / GET k x / EXISTS / DEL / HGET h / ZCARD
  / SCAN / PUBLISH c / PUBSUB / PUBSUB NUMSUB / PUBSUB numsub a b / INCR
SCAN 0 / SCAN x / SCAN 0 COUNT / SCAN 0 COUNT 0 / SCAN 0 FOO 1 / SCAN 0 COUNT x / SCAN 0 MATCH
  / SCAN 0 TYPE
SET k v / FLUSHALL x / EXISTS k / FLUSHALL SYNC / EXISTS k / FLUSHALL ASYNC x / EVAL / EVALSHA x
  / SCRIPT
"""


@pytest.mark.parametrize("line", EDGES.strip().replace("\n  / ", " / ").split("\n"))
def test_edge_cases_of_commands_get_the_same_replies_as_from_redis(both: Both, line: str) -> None:
    both.agree(*[tuple(command.split()) for command in line.split(" / ")])


def test_globs_match_the_same_keys_as_in_redis(redis_port: int) -> None:
    letters = st.text("ab-]^\\*?[c", max_size=7)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(letters, max_size=8), st.lists(letters, min_size=1, max_size=12))
    def run(keys: list[str], globs: list[str]) -> None:
        pair = Both(redis_port)
        try:
            every = [*keys, *globs, "", "a", "ab", "b\n", "é"]
            pair.agree(*[("SET", name, 1) for name in every])
            pair.agree(*[("SCAN", 0, "COUNT", 1000, "MATCH", glob) for glob in [*globs, *keys]])
        finally:
            pair.real.close()

    run()


def test_a_large_sorted_set_keeps_its_order(both: Both) -> None:
    dice = random.Random(7)
    for _ in range(600):
        number = dice.choice([str(dice.randrange(30)), f"{dice.random():.3f}", "inf", "-inf"])
        both.agree(
            ("ZADD", "k1", number, f"m{dice.randrange(300)}"),
            ("ZREM", "k1", f"m{dice.randrange(300)}"),
        )
    both.agree(
        ("ZRANGE", "k1", 0, -1, "WITHSCORES"),
        ("ZRANGE", "k1", 3, -4, "REV"),
        ("ZRANGEBYSCORE", "k1", "(3", 20, "LIMIT", 2, 50),
        ("ZREVRANGEBYSCORE", "k1", "inf", "(1", "WITHSCORES", "LIMIT", 1, 70),
        ("ZCOUNT", "k1", "(0.5", "(25"),
    )


def test_a_script_is_known_by_its_sha_until_scripts_are_flushed(both: Both) -> None:
    source = "return {KEYS[1], ARGV[1], #KEYS, #ARGV}"
    [sha] = both.agree(("SCRIPT", "LOAD", source))
    both.agree(
        ("EVALSHA", sha, 1, "k", "a"),
        ("EVALSHA", sha.upper(), 1, "k", "a"),
        ("SCRIPT", "EXISTS", sha, sha.upper(), "0" * 40),
        ("EVALSHA", "0" * 40, 0),
        ("EVAL", "return 2", 0),
        ("EVALSHA", "7f923f79fe76194c868d7e1d0820de36700eb649", 0),
        ("FLUSHALL",),
        ("EVALSHA", sha, 0),
        ("EVALSHA", sha, 2, "k"),
        ("EVALSHA", sha, -1, "k"),
        ("EVALSHA", sha, "x"),
        ("EVALSHA", sha),
        ("SCRIPT", "LOAD", "return +"),
        ("SCRIPT", "LOAD"),
        ("SCRIPT", "LOAD", "return 1", "x"),
        ("SCRIPT", "EXISTS"),
        ("SCRIPT", "FLUSH", "x"),
        ("SCRIPT", "EXISTS", sha),
        ("SCRIPT", "FLUSH", "async"),
        ("SCRIPT", "EXISTS", sha),
        ("EVALSHA", sha, 0),
    )
    both.agree(("SCRIPT", "LOAD", source), ("SCRIPT", "FLUSH"), ("SCRIPT", "EXISTS", sha))
    assert both.mini.script_load(source) == sha.decode()
    assert both.mini.evalsha(sha.decode(), ["k"], ["a"]) == [b"k", b"a", 1, 1]
    both.mini.script_flush()
    with pytest.raises(MiniError, match=r"^NOSCRIPT "):
        both.mini.evalsha(sha.decode(), [], [])


def test_any_number_of_keys_and_arguments_reaches_a_script(both: Both) -> None:
    for count in (0, 1, 4, 5, 499, 500, 501, 2000):
        names = [f"k{n}" for n in range(count)]
        source = "return {#KEYS, #ARGV, KEYS[#KEYS], ARGV[#ARGV], KEYS, ARGV}"
        both.agree(("EVAL", source, count, *names, *names), ("EVAL", source, 0, *names))


def test_long_replies_reach_a_script(both: Both) -> None:
    pairs = [str(n % 7) for n in range(1400)]
    both.agree(
        ("ZADD", "k1", *[w for n in range(700) for w in (n, f"m{n}")]),
        ("EVAL", "local all = redis.call('ZRANGE','k1','0','-1') return {#all, all[700], all}", 0),
        ("EVAL", "return redis.call('HMGET', 'k2', unpack(ARGV))", 0, *pairs),
    )
