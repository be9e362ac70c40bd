"""Commands on keys of any type, on strings, and on the server."""

from __future__ import annotations

from lab.miniredis.keyspace import (
    LARGEST,
    OK,
    SYNTAX,
    Arguments,
    Keyspace,
    MiniError,
    Pattern,
    Reply,
    Status,
    integer,
)


def time(space: Keyspace, argv: Arguments) -> Reply:
    seconds, micros = divmod(space.now_us, 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


def ping(space: Keyspace, argv: Arguments) -> Reply:
    if len(argv) > 2:
        raise MiniError("ERR wrong number of arguments for 'ping' command")
    return argv[1] if len(argv) == 2 else Status(b"PONG")


def publish(space: Keyspace, argv: Arguments) -> Reply:
    return space.published(argv[1].decode("utf-8", "surrogateescape"), argv[2])


def pubsub(space: Keyspace, argv: Arguments) -> Reply:
    if argv[1].upper() != b"NUMSUB":
        raise NotImplementedError("miniredis has no PUBSUB but NUMSUB")
    counts: list[Reply] = []
    for channel in argv[2:]:
        counts += [channel, space.listening(channel.decode("utf-8", "surrogateescape"))]
    return counts


def dbsize(space: Keyspace, argv: Arguments) -> Reply:
    space.bury()
    return len(space.values)


def flushall(space: Keyspace, argv: Arguments) -> Reply:
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"SYNC", b"ASYNC")):
        raise MiniError(SYNTAX)
    space.values.clear()
    space.expiries.clear()
    return OK


def exists(space: Keyspace, argv: Arguments) -> Reply:
    return sum(space.find(key) is not None for key in argv[1:])


def delete(space: Keyspace, argv: Arguments) -> Reply:
    removed = 0
    for key in argv[1:]:
        if space.find(key) is not None:
            space.remove(key)
            removed += 1
    return removed


def type_(space: Keyspace, argv: Arguments) -> Reply:
    return Status(_type_of(space, argv[1]))


def scan(space: Keyspace, argv: Arguments) -> Reply:
    """Everything in the first page: a cursor that is not 0 has nothing more to see."""
    if not argv[1].lstrip(b"-").isdigit():
        raise MiniError("ERR invalid cursor")
    pattern, wanted = Pattern(b"*"), None
    options = iter(argv[2:])
    for option in options:
        name = next(options, None)
        match option.upper():
            case b"COUNT" if name is not None:
                if integer(name) < 1:
                    raise MiniError(SYNTAX)
            case b"MATCH" if name is not None:
                pattern = Pattern(name)
            case b"TYPE" if name is not None:
                wanted = name.lower()
            case _:
                raise MiniError(SYNTAX)
    if int(argv[1]) != 0:
        return [b"0", []]
    space.bury()
    found: list[Reply] = [
        key
        for key in space.values
        if pattern.matches(key) and wanted in (None, _type_of(space, key))
    ]
    return [b"0", found]


def _type_of(space: Keyspace, key: bytes) -> bytes:
    value = space.find(key)
    if value is None:
        return b"none"
    if type(value) is bytes:
        return b"string"
    return b"hash" if type(value) is dict else b"zset"


def pexpire(space: Keyspace, argv: Arguments) -> Reply:
    return _expire(space, argv, space.now_ms)


def pexpireat(space: Keyspace, argv: Arguments) -> Reply:
    return _expire(space, argv, 0)


def _expire(space: Keyspace, argv: Arguments, base: int) -> Reply:
    flags = _expiry_flags(argv[3:]) if len(argv) > 3 else ()
    when = integer(argv[2])
    if when > LARGEST - base:
        name = argv[0].decode().lower()
        raise MiniError(f"ERR invalid expire time in '{name}' command")
    when += base
    key = argv[1]
    if space.find(key) is None:
        return 0
    old = space.expiries.get(key)
    for flag in flags:
        match flag:
            case b"NX" if old is not None:
                return 0
            case b"XX" if old is None:
                return 0
            case b"GT" if old is None or when <= old:
                return 0
            case b"LT" if old is not None and when >= old:
                return 0
    if when <= space.now_ms:
        space.remove(key)
    else:
        space.expiries[key] = when
    return 1


def _expiry_flags(argv: Arguments) -> Arguments:
    flags = tuple(name.upper() for name in argv)
    for name, flag in zip(argv, flags, strict=True):
        if flag not in (b"NX", b"XX", b"GT", b"LT"):
            raise MiniError(f"ERR Unsupported option {name.decode('utf-8', 'replace')}")
    if b"NX" in flags and {b"XX", b"GT", b"LT"} & set(flags):
        raise MiniError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if b"GT" in flags and b"LT" in flags:
        raise MiniError("ERR GT and LT options at the same time are not compatible")
    return flags


def pttl(space: Keyspace, argv: Arguments) -> Reply:
    if space.find(argv[1]) is None:
        return -2
    when = space.expiries.get(argv[1])
    return -1 if when is None else when - space.now_ms


def persist(space: Keyspace, argv: Arguments) -> Reply:
    if space.find(argv[1]) is None:
        return 0
    return int(space.expiries.pop(argv[1], None) is not None)


def get(space: Keyspace, argv: Arguments) -> Reply:
    return space.find_as(bytes, argv[1])


def set_(space: Keyspace, argv: Arguments) -> Reply:
    key, value = argv[1], argv[2]
    flags, when = _set_options(space, argv[3:]) if len(argv) > 3 else (frozenset(), None)
    old: Reply = OK
    if b"GET" in flags:
        old = space.find_as(bytes, key)
    there = space.find(key) is not None
    if there if b"NX" in flags else b"XX" in flags and not there:
        return old if b"GET" in flags else None
    space.values[key] = value
    if when is not None:
        space.expiries[key] = when
    elif b"KEEPTTL" not in flags:
        space.expiries.pop(key, None)
    return old


def _set_options(space: Keyspace, argv: Arguments) -> tuple[frozenset[bytes], int | None]:
    flags: set[bytes] = set()
    ends: tuple[bytes, bytes] | None = None
    options = iter(argv)
    for name in options:
        option = name.upper()
        match option:
            case b"NX" | b"XX" | b"GET" | b"KEEPTTL":
                flags.add(option)
            case b"PX" | b"PXAT" | b"EX" | b"EXAT" if ends is None or ends[0] == option:
                number = next(options, None)
                if number is None:
                    raise MiniError(SYNTAX)
                ends = option, number
            case _:
                raise MiniError(SYNTAX)
    if {b"NX", b"XX"} <= flags or (b"KEEPTTL" in flags and ends is not None):
        raise MiniError(SYNTAX)
    return frozenset(flags), None if ends is None else _end(space, *ends)


def _end(space: Keyspace, option: bytes, name: bytes) -> int:
    number = integer(name)
    if option in (b"EX", b"EXAT"):
        number *= 1000
    base = space.now_ms if option in (b"PX", b"EX") else 0
    if number <= 0 or number > LARGEST - base:
        raise MiniError("ERR invalid expire time in 'set' command")
    return base + number


def incr(space: Keyspace, argv: Arguments) -> Reply:
    old = space.find_as(bytes, argv[1])
    number = 0 if old is None else integer(old)
    if number == LARGEST:
        raise MiniError("ERR increment or decrement would overflow")
    space.values[argv[1]] = b"%d" % (number + 1)
    return number + 1


# Name → implementation and number of arguments with the name: exact, or, if negative, at least.
COMMANDS = {
    b"TIME": (time, 1),
    b"PING": (ping, -1),
    b"PUBLISH": (publish, 3),
    b"PUBSUB": (pubsub, -2),
    b"DBSIZE": (dbsize, 1),
    b"FLUSHALL": (flushall, -1),
    b"EXISTS": (exists, -2),
    b"DEL": (delete, -2),
    b"TYPE": (type_, 2),
    b"SCAN": (scan, -2),
    b"PEXPIRE": (pexpire, -3),
    b"PEXPIREAT": (pexpireat, -3),
    b"PTTL": (pttl, 2),
    b"PERSIST": (persist, 2),
    b"GET": (get, 2),
    b"SET": (set_, -3),
    b"INCR": (incr, 2),
}
