"""Random commands and scripts for `both_redises`: valid and invalid, of all types, mixed."""

from __future__ import annotations

from both_redises import KEYS
from hypothesis import strategies as st

from lab.miniredis import Argument

Command = tuple[Argument, ...]

# One key of each type, so that few commands find no key.
INITIAL: list[Command] = [
    ("SET", "k1", "41"),
    ("HSET", "k2", "a", "1", "b", "x", "c", "-3"),
    ("ZADD", "k3", "0", "a", "1", "b", "1", "c", "2", "ä", "3", "\x00"),
]

FUTURE = 4_102_444_800_000  # the year 2100
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
# Far from now and from one another, with repetitions.
RELATIVE = [str(n * 1_000_000) for n in (1, 2, 5)]
RELATIVE += ["0", "-1", "x", str(2**63 - 1), "-" + "9" * 18]
ABSOLUTE = [str(FUTURE + n * 1_000_000) for n in (1, 2, 2, 5)]
ABSOLUTE += ["0", "1", "-5", "1000000000000", "x", str(2**63 - 1), str(2**63)]
FLAGS = ["NX", "XX", "GT", "LT", "nx", "gt"]

key = st.sampled_from(KEYS[:3] * 3 + KEYS)
# Commands of a type mostly use the key that has this type: see `INITIAL`.
string, hash_, zset = (st.sampled_from([usual] * 12 + KEYS) for usual in KEYS[:3])
field = st.sampled_from(FIELDS)
integer = st.sampled_from(INTEGERS)
small = st.sampled_from(["0", "1", "2", "3"])
score = st.sampled_from(SCORES)
bound = st.sampled_from(BOUNDS)
# SCAN returns one page: the real server needs a large COUNT for that.
counts = st.sampled_from(["99", "1000", "0", "-1", "x", ""])
value = st.one_of(integer, field, st.binary(max_size=8))


def command(*parts: str | st.SearchStrategy[object]) -> st.SearchStrategy[Command]:
    """Build commands from strings and strategies; a tuple that is drawn adds all its items."""

    def flat(drawn: tuple[object, ...]) -> Command:
        out: list[Argument] = []
        for part in drawn:
            out.extend(part) if isinstance(part, tuple) else out.append(part)
        return tuple(out)

    asked = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*asked).map(flat)


def some(one: st.SearchStrategy[object], most: int = 3) -> st.SearchStrategy[Command]:
    """Draw from none to ``most`` of these, as a flat tuple."""

    def flat(drawn: list[object]) -> Command:
        return tuple(x for part in drawn for x in (part if isinstance(part, tuple) else (part,)))

    return st.lists(one, max_size=most).map(flat)


limit = (
    command("LIMIT", integer, integer)
    | command("LIMIT", small, small)
    | command("LIMIT", "1", "2")
    | command("limit", "0", "-1")
)
ranges = st.sampled_from(["WITHSCORES", "withscores", "REV", "BYSCORE", "FOO"]) | limit
ending = command("PX", st.sampled_from(RELATIVE)) | command("PXAT", st.sampled_from(ABSOLUTE))
setting = st.sampled_from(["NX", "XX", "GET", "KEEPTTL", "nx", "xx", "FOO", "PX"]) | ending

COMMANDS = st.one_of(
    command("PING", some(value, 2)),
    command("EXISTS", key, some(key)),
    command("DEL", key, some(key)),
    command("TYPE", key),
    command("PEXPIRE", key, st.sampled_from(RELATIVE), some(st.sampled_from(FLAGS), 2)),
    command("PEXPIREAT", key, st.sampled_from(ABSOLUTE), some(st.sampled_from(FLAGS), 2)),
    command("PEXPIREAT", key, st.sampled_from(ABSOLUTE[:4]), st.sampled_from(FLAGS)),
    command("PTTL", key),
    command("PERSIST", key),
    command("GET", string),
    command("SET", string, value, some(setting)),
    command("INCR", string),
    command("HGET", hash_, field),
    command("HSET", hash_, some(st.tuples(field, value))),
    command("HSET", hash_, field, value),
    command("HSETNX", hash_, field, value),
    command("HMGET", hash_, some(field)),
    command("HGETALL", hash_),
    command("HDEL", hash_, field, some(field)),
    command("HLEN", hash_),
    command("HEXISTS", hash_, field),
    command("HINCRBY", hash_, field, integer),
    command("HKEYS", hash_),
    command("HVALS", hash_),
    command("ZADD", zset, some(st.sampled_from(["NX", "nx"]), 1), some(st.tuples(score, field))),
    command("ZADD", zset, score, field),
    command("ZREM", zset, field, some(field)),
    command("ZSCORE", zset, field),
    command("ZCARD", zset),
    command("ZRANGE", zset, integer, integer, some(ranges)),
    command("ZRANGE", zset, bound, bound, "BYSCORE", some(ranges)),
    command("ZRANGEBYSCORE", zset, bound, bound, some(ranges, 2)),
    command("ZREVRANGEBYSCORE", zset, bound, bound, some(ranges, 2)),
    command("ZCOUNT", zset, bound, bound),
    command("SCAN", "0", "TYPE", st.sampled_from(["hash", "string", "ZSET", "foo"]), "COUNT", "99"),
    command(
        "SCAN", "0", some(command("COUNT", counts), 1), "MATCH", st.sampled_from(["k?", "*", "["])
    ),
    command("PUBLISH", key, value),
    command("PUBSUB", "NUMSUB", some(key)),
    command("FLUSHALL", some(st.sampled_from(["SYNC", "async", "x"]), 2)),
)


def torn(command: Command, at: int) -> Command:
    """Cut a command short, sometimes."""
    return command[: max(1, at)] if at < 5 else command


MANGLED = st.builds(torn, COMMANDS, st.integers(0, 60))
CASED = st.builds(lambda c, low: (str(c[0]).lower(), *c[1:]) if low else c, MANGLED, st.booleans())


def lua(part: Argument) -> str:
    """Return an argument as a Lua literal: some numbers as numbers, the rest as escaped strings."""
    if isinstance(part, str) and part in ("0", "1", "-1", "2", "-0", "1.5", "1763258400123456"):
        return part
    raw = part if isinstance(part, bytes) else str(part).encode()
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
