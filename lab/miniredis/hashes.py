"""Commands on hashes. A hash without fields is no key."""

from __future__ import annotations

from lab.miniredis.keyspace import (
    LARGEST,
    SMALLEST,
    Arguments,
    Keyspace,
    MiniError,
    Reply,
    integer,
)

_NOTHING: dict[bytes, bytes] = {}  # never written to


def _read(space: Keyspace, key: bytes) -> dict[bytes, bytes]:
    found = space.find_as(dict, key)
    return _NOTHING if found is None else found


def hget(space: Keyspace, argv: Arguments) -> Reply:
    return _read(space, argv[1]).get(argv[2])


def hmget(space: Keyspace, argv: Arguments) -> Reply:
    fields = _read(space, argv[1])
    return [fields.get(name) for name in argv[2:]]


def hset(space: Keyspace, argv: Arguments) -> Reply:
    if len(argv) % 2:
        raise MiniError("ERR wrong number of arguments for 'hset' command")
    fields = space.find_or_make(dict, argv[1])
    before = len(fields)
    fields.update(zip(argv[2::2], argv[3::2], strict=True))
    return len(fields) - before


def hsetnx(space: Keyspace, argv: Arguments) -> Reply:
    if argv[2] in _read(space, argv[1]):
        return 0
    space.find_or_make(dict, argv[1])[argv[2]] = argv[3]
    return 1


def hgetall(space: Keyspace, argv: Arguments) -> Reply:
    return [name for pair in _read(space, argv[1]).items() for name in pair]


def hdel(space: Keyspace, argv: Arguments) -> Reply:
    fields = space.find_as(dict, argv[1])
    if fields is None:
        return 0
    removed = sum(fields.pop(name, None) is not None for name in argv[2:])
    if not fields:
        space.remove(argv[1])
    return removed


def hlen(space: Keyspace, argv: Arguments) -> Reply:
    return len(_read(space, argv[1]))


def hexists(space: Keyspace, argv: Arguments) -> Reply:
    return int(argv[2] in _read(space, argv[1]))


def hkeys(space: Keyspace, argv: Arguments) -> Reply:
    return list(_read(space, argv[1]))


def hvals(space: Keyspace, argv: Arguments) -> Reply:
    return list(_read(space, argv[1]).values())


def hincrby(space: Keyspace, argv: Arguments) -> Reply:
    by = integer(argv[3])
    old = _read(space, argv[1]).get(argv[2])
    number = by if old is None else by + integer(old, "ERR hash value is not an integer")
    if not SMALLEST <= number <= LARGEST:
        raise MiniError("ERR increment or decrement would overflow")
    space.find_or_make(dict, argv[1])[argv[2]] = b"%d" % number
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
