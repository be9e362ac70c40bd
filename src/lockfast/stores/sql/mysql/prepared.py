"""Statements that a session's server parses once: what a lock that is alone needs, and no more.

Parsing the claim takes the server as long as executing it. So it is prepared, once for each
session, and its values travel as the binary protocol has them (COM_STMT_EXECUTE), to which neither
PyMySQL nor an older asyncmy has a way of its own. Their answer is an OK packet, never rows: that is
all that is understood here. What is not asked for so often is said as text (`words.filled`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PREPARE, EXECUTE = 0x16, 0x17
HEAD = 5  # bytes of a packet before what follows its command
# The server has too many of them, or does not take this one: it is said as text then.
REFUSED = (1461, 1295)
# It does not know ours any more.
FORGOTTEN = (1243, 1615)

# Its length, and 0, as the first packet; its number, no cursor, once.
_HEAD = struct.Struct("<IBIBI").pack
_TYPES = {bytes: b"\xfc\0", str: b"\xfd\0", int: b"\x08\0", bool: b"\x08\0", float: b"\x05\0"}
_BYTES = [bytes([number]) for number in range(251)]


class Statement:
    """``text`` has %s for each value."""

    __slots__ = ("in_digits", "sql", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sql = text.replace("%s", "?").encode()
        self.in_digits: Statement | None = None


class Call(NamedTuple):
    """A request: one statement that may be prepared, and its values, in the types that they have
    each time."""

    statement: Statement
    values: Sequence[bytes | str | int | float]


class Result(NamedTuple):
    """What one statement did."""

    affected: int
    insert_id: int
    rows: Sequence[Sequence[Any]]


_FROM_DIGITS: dict[type, str] = {bytes: "UNHEX(%s)", str: "CONVERT(UNHEX(%s) USING utf8mb4)"}


def in_digits(call: Call, version: str) -> Call:
    """The same, its bytes and texts in hexadecimal digits, for a server that is not MariaDB.

    MySQL writes the values into what it shows of a statement to who asks for its process list or
    its transactions. Bytes that are no text spoil that list, and MySQL 9 then shows none at all.
    MariaDB shows it as it was prepared, and would take a tenth longer.
    """
    if "MariaDB" in version:
        return call
    statement, values = call
    if statement.in_digits is None:
        kinds = tuple(_FROM_DIGITS.get(type(value), "%s") for value in values)
        statement.in_digits = Statement(statement.text % kinds)
    return Call(statement.in_digits, [_digits(value) for value in values])


def _digits(value: bytes | str | int | float) -> str | int | float:
    if isinstance(value, str):
        value = value.encode()
    return value.hex() if isinstance(value, bytes) else value


def packed(number: int, values: Sequence[bytes | str | int | float]) -> bytes:
    """The whole packet that executes it."""
    kinds = [_TYPES[type(value)] for value in values]
    said = [_PACKED[type(value)](value) for value in values]
    nulls = bytes((len(values) + 7) // 8)  # none
    body = b"".join((nulls, b"\1", *kinds, *said))
    return _HEAD(len(body) + 10, EXECUTE, number, 0, 1) + body


def numbered(answer: bytes) -> tuple[int, int]:
    """The number of what was prepared, and how many descriptions follow, which nobody needs."""
    number, _columns, parameters = struct.unpack_from("<IHH", answer, 1)
    return number, parameters


def done(answer: bytes) -> Result:
    """What an OK packet says. (One of an error was an exception already.)"""
    if answer[0] != 0:
        raise ValueError("rows, where none were asked for")
    affected, after = _integer(answer, 1)
    insert_id, _ = _integer(answer, after)
    return Result(affected, insert_id, ())


def _counted(data: bytes) -> bytes:
    if len(data) < 251:
        return _BYTES[len(data)] + data
    if len(data) < 65536:
        return b"\xfc" + len(data).to_bytes(2, "little") + data
    return b"\xfd" + len(data).to_bytes(3, "little") + data


_PACKED: dict[type, Callable[[Any], bytes]] = {
    bytes: _counted,
    str: lambda text: _counted(text.encode()),
    int: struct.Struct("<q").pack,
    bool: struct.Struct("<q").pack,
    float: struct.Struct("<d").pack,
}


def _integer(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
