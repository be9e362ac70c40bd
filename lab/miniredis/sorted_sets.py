"""Commands on sorted sets. A set without members is no key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

from lab.miniredis.keyspace import (
    SYNTAX,
    Arguments,
    Keyspace,
    MiniError,
    Reply,
    SortedSet,
    bound,
    integer,
    score,
    spelled,
)


def zadd(space: Keyspace, argv: Arguments) -> Reply:
    first, only_new = 2, False
    while first < len(argv):
        option = argv[first].upper()
        if option in (b"XX", b"GT", b"LT", b"CH", b"INCR"):
            raise NotImplementedError(f"miniredis has no ZADD with {option.decode()}")
        if option != b"NX":
            break
        first, only_new = first + 1, True
    pairs = argv[first:]
    if not pairs or len(pairs) % 2:
        raise MiniError(SYNTAX)
    scores = [score(name) for name in pairs[::2]]
    members = space.find_or_make(SortedSet, argv[1])
    before = len(members.scores)
    for number, member in zip(scores, pairs[1::2], strict=True):
        if not (only_new and member in members.scores):
            members.put(member, number)
    return len(members.scores) - before


def zrem(space: Keyspace, argv: Arguments) -> Reply:
    members = space.find_as(SortedSet, argv[1])
    if members is None:
        return 0
    removed = sum(members.remove_member(name) for name in argv[2:])
    if not members.order:
        space.remove(argv[1])
    return removed


def zscore(space: Keyspace, argv: Arguments) -> Reply:
    members = space.find_as(SortedSet, argv[1])
    found = None if members is None else members.scores.get(argv[2])
    return None if found is None else spelled(found)


def zcard(space: Keyspace, argv: Arguments) -> Reply:
    members = space.find_as(SortedSet, argv[1])
    return 0 if members is None else len(members.order)


def zcount(space: Keyspace, argv: Arguments) -> Reply:
    low, high = bound(argv[2]), bound(argv[3])
    members = space.find_as(SortedSet, argv[1])
    return 0 if members is None else len(_between(members, low, high))


@dataclass(slots=True)
class _Options:
    by_score: bool = False
    reverse: bool = False
    scores: bool = False
    offset: int = 0
    limit: int = -1  # negative: no limit


def zrange(space: Keyspace, argv: Arguments) -> Reply:
    options = _options(argv[4:])
    if options.by_score:
        return _by_score(space, argv, options)
    if options.limit != -1:
        raise MiniError(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
        )
    start, stop = integer(argv[2]), integer(argv[3])
    members = space.find_as(SortedSet, argv[1])
    if members is None:
        return []
    count = len(members.order)
    start = max(start + count, 0) if start < 0 else start
    stop = stop + count if stop < 0 else stop
    order = members.order[::-1] if options.reverse else members.order
    return _reply(order[start : max(stop + 1, 0)], options)


def zrangebyscore(space: Keyspace, argv: Arguments) -> Reply:
    return _by_score(space, argv, _options(argv[4:], reverse=False))


def zrevrangebyscore(space: Keyspace, argv: Arguments) -> Reply:
    return _by_score(space, argv, _options(argv[4:], reverse=True))


@lru_cache(1000)  # scripts repeat the same options
def _options(argv: Arguments, reverse: bool | None = None) -> _Options:
    """Parse the options after a range. Only ZRANGE may choose the order and the direction."""
    free = reverse is None
    options = _Options(by_score=not free, reverse=reverse or False)
    rest = iter(argv)
    for name in rest:
        option = name.upper()
        match option:
            case b"WITHSCORES":
                options.scores = True
            case b"LIMIT":
                offset, limit = next(rest, None), next(rest, None)
                if offset is None or limit is None:
                    raise MiniError(SYNTAX)
                options.offset, options.limit = integer(offset), integer(limit)
            case b"BYSCORE" if free and not options.by_score:
                options.by_score = True
            case b"REV" if free and not options.reverse:
                options.reverse = True
            case b"BYLEX" if free:
                raise NotImplementedError("miniredis has no ZRANGE with BYLEX")
            case _:
                raise MiniError(SYNTAX)
    return options


def _by_score(space: Keyspace, argv: Arguments, options: _Options) -> Reply:
    first, second = bound(argv[2]), bound(argv[3])
    members = space.find_as(SortedSet, argv[1])
    if members is None or options.offset < 0:
        return []
    if options.reverse:
        found = _between(members, second, first)[::-1]
    else:
        found = _between(members, first, second)
    end = None if options.limit < 0 else options.offset + options.limit
    return _reply(found[options.offset : end], options)


def _between(
    members: SortedSet, low: tuple[float, bool], high: tuple[float, bool]
) -> list[tuple[float, bytes]]:
    order = members.order
    start = (bisect_right if low[1] else bisect_left)(order, low[0], key=_score_of)
    stop = (bisect_left if high[1] else bisect_right)(order, high[0], key=_score_of)
    return order[start:stop]


def _score_of(entry: tuple[float, bytes]) -> float:
    return entry[0]


def _reply(found: list[tuple[float, bytes]], options: _Options) -> Reply:
    if not options.scores:
        return [member for _, member in found]
    return [name for number, member in found for name in (member, spelled(number))]


COMMANDS = {
    b"ZADD": (zadd, -4),
    b"ZREM": (zrem, -3),
    b"ZSCORE": (zscore, 3),
    b"ZCARD": (zcard, 2),
    b"ZCOUNT": (zcount, 4),
    b"ZRANGE": (zrange, -4),
    b"ZRANGEBYSCORE": (zrangebyscore, -4),
    b"ZREVRANGEBYSCORE": (zrevrangebyscore, -4),
}
