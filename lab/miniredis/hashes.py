"""Commands on hashes. A hash without fields is no key."""

from __future__ import annotations

from lab.miniredis.keyspace import (
    LARGEST,
    SMALLEST,
    Keyspace,
    MiniError,
    Reply,
    Words,
    integer,
)

_NOTHING: dict[bytes, bytes] = {}  # never written to


def _read(space: Keyspace, key: bytes) -> dict[bytes, bytes]:
    found = space.find_as(dict, key)
    return _NOTHING if found is None else found


def hget(space: Keyspace, words: Words) -> Reply:
    return _read(space, words[1]).get(words[2])


def hmget(space: Keyspace, words: Words) -> Reply:
    fields = _read(space, words[1])
    return [fields.get(word) for word in words[2:]]


def hset(space: Keyspace, words: Words) -> Reply:
    if len(words) % 2:
        raise MiniError("ERR wrong number of arguments for 'hset' command")
    fields = space.find_or_make(dict, words[1])
    before = len(fields)
    fields.update(zip(words[2::2], words[3::2], strict=True))
    return len(fields) - before


def hsetnx(space: Keyspace, words: Words) -> Reply:
    if words[2] in _read(space, words[1]):
        return 0
    space.find_or_make(dict, words[1])[words[2]] = words[3]
    return 1


def hgetall(space: Keyspace, words: Words) -> Reply:
    return [word for pair in _read(space, words[1]).items() for word in pair]


def hdel(space: Keyspace, words: Words) -> Reply:
    fields = space.find_as(dict, words[1])
    if fields is None:
        return 0
    removed = sum(fields.pop(word, None) is not None for word in words[2:])
    if not fields:
        space.remove(words[1])
    return removed


def hlen(space: Keyspace, words: Words) -> Reply:
    return len(_read(space, words[1]))


def hexists(space: Keyspace, words: Words) -> Reply:
    return int(words[2] in _read(space, words[1]))


def hkeys(space: Keyspace, words: Words) -> Reply:
    return list(_read(space, words[1]))


def hvals(space: Keyspace, words: Words) -> Reply:
    return list(_read(space, words[1]).values())


def hincrby(space: Keyspace, words: Words) -> Reply:
    by = integer(words[3])
    old = _read(space, words[1]).get(words[2])
    number = by if old is None else by + integer(old, "ERR hash value is not an integer")
    if not SMALLEST <= number <= LARGEST:
        raise MiniError("ERR increment or decrement would overflow")
    space.find_or_make(dict, words[1])[words[2]] = b"%d" % number
    return number


COMMANDS = {
    b"HGET": (hget, 3),
    b"HMGET": (hmget, -3),
    b"HSET": (hset, -4),
    b"HSETNX": (hsetnx, 4),
    b"HGETALL": (hgetall, 2),
    b"HDEL": (hdel, -3),
    b"HLEN": (hlen, 2),
    b"HEXISTS": (hexists, 3),
    b"HKEYS": (hkeys, 2),
    b"HVALS": (hvals, 2),
    b"HINCRBY": (hincrby, 4),
}
