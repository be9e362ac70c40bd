"""Keys, their types and their expiry, and how Redis reads numbers: what all commands stand on.

Two rules of Redis that are easy to get wrong, both in milliseconds:

* A key that reaches its time is still there in that very millisecond: it is gone when now > when.
* A time to live that is set to end now or before deletes at once: when <= now.

An expired key is removed by whoever looks at it. There is no cycle that removes others.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TypeAlias, TypeVar

Argument: TypeAlias = "str | bytes | int"
# What hiredis makes of a reply: an error inside an array is a value, elsewhere it is raised.
Reply: TypeAlias = "int | bytes | list[Reply] | MiniError | None"
Arguments: TypeAlias = tuple[bytes, ...]  # a command, its name first

LARGEST = 2**63 - 1
SMALLEST = -(2**63)

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_FLOAT = re.compile(rb"[+-]?(inf|infinity|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", re.I)


class MiniError(Exception):
    """An error reply. Its text begins with the code: ``WRONGTYPE Operation against …``."""


class Status(bytes):
    """A reply such as ``+OK``: bytes to a client, a table with ``ok`` to a script."""


OK = Status(b"OK")
SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class SortedSet:
    """Members by score, then by bytes."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def put(self, member: bytes, score: float) -> None:
        old = self.scores.get(member)
        if old is not None:
            del self.order[bisect_left(self.order, (old, member))]
        self.scores[member] = score
        insort(self.order, (score, member))

    def remove_member(self, member: bytes) -> bool:
        old = self.scores.pop(member, None)
        if old is None:
            return False
        del self.order[bisect_left(self.order, (old, member))]
        return True


Value: TypeAlias = bytes | dict[bytes, bytes] | SortedSet
_Kind = TypeVar("_Kind", bytes, dict[bytes, bytes], SortedSet)


class Keyspace:
    """One database. ``now_ms`` is the time at which the present command or script began."""

    __slots__ = ("expiries", "listening", "now_us", "published", "time_us", "values")

    def __init__(
        self,
        time_us: Callable[[], int],
        published: Callable[[str, bytes], int],
        listening: Callable[[str], int] = lambda channel: 0,
    ) -> None:
        self.time_us = time_us
        self.published = published
        self.listening = listening
        self.now_us = 0
        self.values: dict[bytes, Value] = {}
        self.expiries: dict[bytes, int] = {}  # milliseconds since the epoch

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def find(self, key: bytes) -> Value | None:
        """Return the live value of ``key``. An expired key is removed and not found."""
        when = self.expiries.get(key)
        if when is not None and self.now_us // 1000 > when:
            self.remove(key)
            return None
        return self.values.get(key)

    def find_as(self, kind: type[_Kind], key: bytes) -> _Kind | None:
        """Return the live value of ``key``, which must be of this type."""
        value = self.find(key)
        if value is None or type(value) is kind:
            return value
        raise MiniError(WRONG_TYPE)

    def find_or_make(self, kind: type[_Kind], key: bytes) -> _Kind:
        value = self.find_as(kind, key)
        if value is None:
            value = self.values[key] = kind()
        return value

    def remove(self, key: bytes) -> None:
        del self.values[key]
        self.expiries.pop(key, None)

    def bury(self) -> None:
        """Remove all that has expired: for commands that look at the whole keyspace."""
        now = self.now_ms
        for key in [key for key, when in self.expiries.items() if now > when]:
            self.remove(key)


def integer(name: bytes, complaint: str = NOT_AN_INTEGER) -> int:
    """An integer as Redis reads it: no sign ``+``, no blanks, no leading zeros, 64 bits."""
    if _INTEGER.fullmatch(name):
        number = int(name)
        if SMALLEST <= number <= LARGEST:
            return number
    raise MiniError(complaint)


def score(name: bytes) -> float:
    """A score as ZADD reads it. Too large for a float is an error, and so is too small."""
    found = _FLOAT.fullmatch(name)
    if found is None:
        _refuse_hexadecimal(name)
        raise MiniError("ERR value is not a valid float")
    number = float(name)
    vanished = number == 0 and found[2] is not None and found[2].strip(b"0.") != b""
    if vanished or (math.isinf(number) and found[2] is not None):
        raise MiniError("ERR value is not a valid float")
    return number + 0.0  # of -0.0, Redis keeps no sign


def bound(name: bytes) -> tuple[float, bool]:
    """An end of a range of scores, and whether it is excluded. ``(5``, ``-inf``; nothing is 0."""
    excluded = name[:1] == b"("
    rest = name[excluded:].lstrip(b" \t\n\v\f\r")
    if not rest and len(name) == excluded:
        return 0.0, excluded
    if not _FLOAT.fullmatch(rest):
        _refuse_hexadecimal(rest)
        raise MiniError("ERR min or max is not a float")
    return float(rest), excluded


def _refuse_hexadecimal(name: bytes) -> None:
    if name[:3].lower().lstrip(b"+-").startswith(b"0x"):
        raise NotImplementedError(f"miniredis reads no hexadecimal numbers: {name!r}")


def spelled(number: float) -> bytes:
    """A number as Redis 7.0 writes it: scores in replies, Lua numbers in arguments."""
    return b"%.17g" % number


class Pattern:
    """Redis's glob: ``*``, ``?``, ``[a-z]``, ``[^a]``, and a backslash before what is literal."""

    __slots__ = ("_all", "_expression")

    def __init__(self, glob: bytes) -> None:
        self._all = glob == b"*"
        expression, at = b"", 0
        while at < len(glob):
            letter = glob[at : at + 1]
            if letter == b"*":
                expression += b".*"
            elif letter == b"?":
                expression += b"."
            elif letter == b"[":
                one_of, at = self._choice(glob, at + 1)
                expression += one_of
            else:
                if letter == b"\\" and at + 1 < len(glob):
                    at += 1
                expression += re.escape(glob[at : at + 1])
            at += 1
        self._expression = re.compile(expression, re.DOTALL)

    def matches(self, key: bytes) -> bool:
        if self._all or not key:  # the empty key has an exact rule: only * and the empty glob
            return self._all or not self._expression.pattern
        return self._expression.fullmatch(key) is not None

    @staticmethod
    def _choice(glob: bytes, at: int) -> tuple[bytes, int]:
        """A set of bytes that begins after ``[``, and where it ends. It may end with the glob."""
        excluded = glob[at : at + 1] == b"^"
        at += excluded
        chosen: set[int] = set()
        while at < len(glob) and glob[at : at + 1] != b"]":
            if glob[at : at + 1] == b"\\" and at + 1 < len(glob):
                at += 1
                chosen.add(glob[at])
            elif at + 2 < len(glob) and glob[at + 1 : at + 2] == b"-":
                low, high = sorted((glob[at], glob[at + 2]))
                chosen.update(range(low, high + 1))
                at += 2
            else:
                chosen.add(glob[at])
            at += 1
        if excluded:
            chosen = set(range(256)) - chosen
        if not chosen:
            return b"(?!)", at
        return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(chosen)) + b"]", at
