"""Random commands and scripts for `both_redises`: right and wrong, of all types, mixed."""

from __future__ import annotations

from both_redises import KEYS
from hypothesis import strategies as st

from lab.miniredis import Argument

Words = tuple[Argument, ...]

# One key of each type, so that few commands are wasted on nothing.
FURNISHED: list[Words] = [
    ("SET", "k1", "41"),
    ("HSET", "k2", "a", "1", "b", "x", "c", "-3"),
    ("ZADD", "k3", "0", "a", "1", "b", "1", "c", "2", "ä", "3", "\x00"),
]

AGES = 4_102_444_800_000  # the year 2100
FIELDS = [b"a", b"b", b"c", b"\x00", "ä".encode()]
INTEGERS = ["0", "0", "1", "1", "2", "3", "-1", "-2", "-3"]
INTEGERS += ["5", "-7", "42", "007", "-0", "+1", " 1", "1 ", "", "x", "1.5"]
INTEGERS += [str(2**63 - 1), str(-(2**63)), str(2**63), "1763258400123456", "9" * 30]
SCORES = ["0", "0", "1", "1", "1", "2", "2", "3", "3", "-1", "1.5", "0.1", ".5", "5."]
SCORES += ["1e3", "-2E-3", "+4", "-0"]
SCORES += ["inf", "-inf", "+inf", "Infinity", "nan", "x", "", " 1", "1 ", "1_0", "1e400", "1e-400"]
SCORES += ["1763258400123456", "1763258400123.456", "9007199254740993", "0e999", "0.0"]
BOUNDS = [*SCORES, "-inf", "+inf", "-inf", "+inf", "0", "1", "2", "3", "(0", "(1", "(2", "(3"]
BOUNDS += ["(", "(inf", "(-inf", "((1", "( 1", "[1"]
# Far from now, far from one another, and the same more than once.
RELATIVE = [str(n * 1_000_000) for n in (1, 2, 5)]
RELATIVE += ["0", "-1", "x", str(2**63 - 1), "-" + "9" * 18]
ABSOLUTE = [str(AGES + n * 1_000_000) for n in (1, 2, 2, 5)]
ABSOLUTE += ["0", "1", "-5", "1000000000000", "x", str(2**63 - 1), str(2**63)]
FLAGS = ["NX", "XX", "GT", "LT", "nx", "gt"]

key = st.sampled_from(KEYS[:3] * 3 + KEYS)
# Each type has a home, where its commands mostly meet their own kind: see `FURNISHED`.
string, hash_, zset = (st.sampled_from([wake_address] * 12 + KEYS) for wake_address in KEYS[:3])
field = st.sampled_from(FIELDS)
integer = st.sampled_from(INTEGERS)
small = st.sampled_from(["0", "1", "2", "3"])
score = st.sampled_from(SCORES)
bound = st.sampled_from(BOUNDS)
# One page holds everything here; the real one needs a large count for it.
counts = st.sampled_from(["99", "1000", "0", "-1", "x", ""])
value = st.one_of(integer, field, st.binary(max_size=8))


def words(*parts: str | st.SearchStrategy[object]) -> st.SearchStrategy[Words]:
    """A command of words and of strategies; what yields a tuple yields several words."""

    def flat(drawn: tuple[object, ...]) -> Words:
        out: list[Argument] = []
        for part in drawn:
            out.extend(part) if isinstance(part, tuple) else out.append(part)
        return tuple(out)

    asked = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*asked).map(flat)


def some(one: st.SearchStrategy[object], most: int = 3) -> st.SearchStrategy[Words]:
    """From none to ``most`` of these, flat."""

    def flat(drawn: list[object]) -> Words:
        return tuple(x for part in drawn for x in (part if isinstance(part, tuple) else (part,)))

    return st.lists(one, max_size=most).map(flat)


limit = (
    words("LIMIT", integer, integer)
    | words("LIMIT", small, small)
    | words("LIMIT", "1", "2")
    | words("limit", "0", "-1")
)
ranges = st.sampled_from(["WITHSCORES", "withscores", "REV", "BYSCORE", "FOO"]) | limit
ending = words("PX", st.sampled_from(RELATIVE)) | words("PXAT", st.sampled_from(ABSOLUTE))
setting = st.sampled_from(["NX", "XX", "GET", "KEEPTTL", "nx", "xx", "FOO", "PX"]) | ending

COMMANDS = st.one_of(
    words("PING", some(value, 2)),
    words("EXISTS", key, some(key)),
    words("DEL", key, some(key)),
    words("TYPE", key),
    words("PEXPIRE", key, st.sampled_from(RELATIVE), some(st.sampled_from(FLAGS), 2)),
    words("PEXPIREAT", key, st.sampled_from(ABSOLUTE), some(st.sampled_from(FLAGS), 2)),
    words("PEXPIREAT", key, st.sampled_from(ABSOLUTE[:4]), st.sampled_from(FLAGS)),
    words("PTTL", key),
    words("PERSIST", key),
    words("GET", string),
    words("SET", string, value, some(setting)),
    words("INCR", string),
    words("HGET", hash_, field),
    words("HSET", hash_, some(st.tuples(field, value))),
    words("HSET", hash_, field, value),
    words("HSETNX", hash_, field, value),
    words("HMGET", hash_, some(field)),
    words("HGETALL", hash_),
    words("HDEL", hash_, field, some(field)),
    words("HLEN", hash_),
    words("HEXISTS", hash_, field),
    words("HINCRBY", hash_, field, integer),
    words("HKEYS", hash_),
    words("HVALS", hash_),
    words("ZADD", zset, some(st.sampled_from(["NX", "nx"]), 1), some(st.tuples(score, field))),
    words("ZADD", zset, score, field),
    words("ZREM", zset, field, some(field)),
    words("ZSCORE", zset, field),
    words("ZCARD", zset),
    words("ZRANGE", zset, integer, integer, some(ranges)),
    words("ZRANGE", zset, bound, bound, "BYSCORE", some(ranges)),
    words("ZRANGEBYSCORE", zset, bound, bound, some(ranges, 2)),
    words("ZREVRANGEBYSCORE", zset, bound, bound, some(ranges, 2)),
    words("ZCOUNT", zset, bound, bound),
    words("SCAN", "0", "TYPE", st.sampled_from(["hash", "string", "ZSET", "foo"]), "COUNT", "99"),
    words("SCAN", "0", some(words("COUNT", counts), 1), "MATCH", st.sampled_from(["k?", "*", "["])),
    words("PUBLISH", key, value),
    words("PUBSUB", "NUMSUB", some(key)),
    words("FLUSHALL", some(st.sampled_from(["SYNC", "async", "x"]), 2)),
)


def torn(command: Words, at: int) -> Words:
    """Sometimes a command with too few words."""
    return command[: max(1, at)] if at < 5 else command


MANGLED = st.builds(torn, COMMANDS, st.integers(0, 60))
CASED = st.builds(lambda c, low: (str(c[0]).lower(), *c[1:]) if low else c, MANGLED, st.booleans())


def lua(word: Argument) -> str:
    """A word as Lua writes it: some numbers as numbers, all else as a string, byte by byte."""
    if isinstance(word, str) and word in ("0", "1", "-1", "2", "-0", "1.5", "1763258400123456"):
        return word
    raw = word if isinstance(word, bytes) else str(word).encode()
    return '"' + "".join(f"\\{byte:03d}" for byte in raw) + '"'


SHAPES = [
    "out[#out + 1] = redis.pcall({})",
    "out[#out + 1] = redis.call({})",
    "out[#out + 1] = {{pcall(redis.call, {})}}",
    "out[#out + 1] = type(redis.pcall({}))",
    "local r = redis.pcall({}); out[#out + 1] = type(r) == 'table' and (r.ok or r.err) or 'none'",
    "local r = redis.pcall({}); out[#out + 1] = type(r) == 'table' and #r or tostring(r)",
    "redis.call('SET', KEYS[1], ARGV[1]); out[#out + 1] = redis.pcall({})",
]
