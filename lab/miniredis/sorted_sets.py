"""Commands on sorted sets. A set without members is no key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

from lab.miniredis.keyspace import (
    SYNTAX,
    Keyspace,
    MiniError,
    Reply,
    SortedSet,
    Words,
    bound,
    integer,
    score,
    spelled,
)


def zadd(space: Keyspace, words: Words) -> Reply:
    first, only_new = 2, False
    while first < len(words):
        option = words[first].upper()
        if option in (b"XX", b"GT", b"LT", b"CH", b"INCR"):
            raise NotImplementedError(f"miniredis has no ZADD with {option.decode()}")
        if option != b"NX":
            break
        first, only_new = first + 1, True
    pairs = words[first:]
    if not pairs or len(pairs) % 2:
        raise MiniError(SYNTAX)
    scores = [score(word) for word in pairs[::2]]
    members = space.find_or_make(SortedSet, words[1])
    before = len(members.scores)
    for number, member in zip(scores, pairs[1::2], strict=True):
        if not (only_new and member in members.scores):
            members.put(member, number)
    return len(members.scores) - before


def zrem(space: Keyspace, words: Words) -> Reply:
    members = space.find_as(SortedSet, words[1])
    if members is None:
        return 0
    removed = sum(members.drop(word) for word in words[2:])
    if not members.order:
        space.remove(words[1])
    return removed


def zscore(space: Keyspace, words: Words) -> Reply:
    members = space.find_as(SortedSet, words[1])
    found = None if members is None else members.scores.get(words[2])
    return None if found is None else spelled(found)


def zcard(space: Keyspace, words: Words) -> Reply:
    members = space.find_as(SortedSet, words[1])
    return 0 if members is None else len(members.order)


def zcount(space: Keyspace, words: Words) -> Reply:
    low, high = bound(words[2]), bound(words[3])
    members = space.find_as(SortedSet, words[1])
    return 0 if members is None else len(_between(members, low, high))


@dataclass(slots=True)
class _Options:
    by_score: bool = False
    reverse: bool = False
    scores: bool = False
    offset: int = 0
    limit: int = -1  # negative: no limit


def zrange(space: Keyspace, words: Words) -> Reply:
    options = _options(words[4:])
    if options.by_score:
        return _by_score(space, words, options)
    if options.limit != -1:
        raise MiniError(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
        )
    start, stop = integer(words[2]), integer(words[3])
    members = space.find_as(SortedSet, words[1])
    if members is None:
        return []
    count = len(members.order)
    start = max(start + count, 0) if start < 0 else start
    stop = stop + count if stop < 0 else stop
    order = members.order[::-1] if options.reverse else members.order
    return _reply(order[start : max(stop + 1, 0)], options)


def zrangebyscore(space: Keyspace, words: Words) -> Reply:
    return _by_score(space, words, _options(words[4:], reverse=False))


def zrevrangebyscore(space: Keyspace, words: Words) -> Reply:
    return _by_score(space, words, _options(words[4:], reverse=True))


@lru_cache(1000)  # scripts say the same again and again
def _options(words: Words, reverse: bool | None = None) -> _Options:
    """What follows a range. ZRANGE alone may say by what and from where; the others know."""
    free = reverse is None
    options = _Options(by_score=not free, reverse=reverse or False)
    rest = iter(words)
    for word in rest:
        option = word.upper()
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


def _by_score(space: Keyspace, words: Words, options: _Options) -> Reply:
    first, second = bound(words[2]), bound(words[3])
    members = space.find_as(SortedSet, words[1])
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
    return [word for number, member in found for word in (member, spelled(number))]


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
