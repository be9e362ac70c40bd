"""Prepared statements, for claim and release of an uncontended lock only.

Parsing the claim takes the server as long as executing it. So it is prepared once per session, and
its values are sent in the binary protocol (COM_STMT_EXECUTE), which neither PyMySQL nor an older
asyncmy supports. The reply is an OK packet, never rows: nothing else is decoded here. Less frequent
requests are sent as text (`dialect.filled`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PREPARE, EXECUTE = 0x16, 0x17
HEAD = 5  # bytes of a packet up to and including its command
# The server has too many prepared statements, or cannot prepare this one: it is sent as text.
REFUSED = (1461, 1295)
# The server no longer knows the prepared statement.
FORGOTTEN = (1243, 1615)

# Packet length with sequence number 0, command, statement id, no cursor flag, one iteration.
_HEAD = struct.Struct("<IBIBI").pack
_TYPES = {bytes: b"\xfc\0", str: b"\xfd\0", int: b"\x08\0", bool: b"\x08\0", float: b"\x05\0"}
_BYTES = [bytes([number]) for number in range(251)]


class Statement:
    """A statement; ``text`` has %s for each value."""

    __slots__ = ("in_hex", "sql", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sql = text.replace("%s", "?").encode()
        self.in_hex: Statement | None = None


class Call(NamedTuple):
    """A request of one statement that may be prepared, and its values, whose types never vary."""

    statement: Statement
    values: Sequence[bytes | str | int | float]


class Result(NamedTuple):
    """Result of one statement."""

    affected: int
    insert_id: int
    rows: Sequence[Sequence[Any]]


_FROM_HEX: dict[type, str] = {bytes: "UNHEX(%s)", str: "CONVERT(UNHEX(%s) USING utf8mb4)"}


def in_hex(call: Call, version: str) -> Call:
    """Return the call with its bytes and texts as hexadecimal digits, unless the server is MariaDB.

    MySQL shows a statement with its values in the process list and the list of transactions. Bytes
    that are not text corrupt that list, and MySQL 9 then shows none at all. MariaDB shows the
    statement as it was prepared, and would take a tenth longer.
    """
    if "MariaDB" in version:
        return call
    statement, values = call
    if statement.in_hex is None:
        kinds = tuple(_FROM_HEX.get(type(value), "%s") for value in values)
        statement.in_hex = Statement(statement.text % kinds)
    return Call(statement.in_hex, [_hex(value) for value in values])


def _hex(value: bytes | str | int | float) -> str | int | float:
    if isinstance(value, str):
        value = value.encode()
    return value.hex() if isinstance(value, bytes) else value


def execute_packet(number: int, values: Sequence[bytes | str | int | float]) -> bytes:
    """Return the complete packet that executes a prepared statement."""
    kinds = [_TYPES[type(value)] for value in values]
    encoded = [_PACKED[type(value)](value) for value in values]
    nulls = bytes((len(values) + 7) // 8)  # none
    body = b"".join((nulls, b"\1", *kinds, *encoded))
    return _HEAD(len(body) + 10, EXECUTE, number, 0, 1) + body


def decode_prepared(packet: bytes) -> tuple[int, int]:
    """Return the statement's id, and how many parameter descriptions follow, which are skipped."""
    number, _columns, parameters = struct.unpack_from("<IHH", packet, 1)
    return number, parameters


def decode_ok(packet: bytes) -> Result:
    """Decode an OK packet. (An error packet has been raised already.)"""
    if packet[0] != 0:
        raise ValueError("the statement returned rows instead of an OK packet")
    affected, after = _integer(packet, 1)
    insert_id, _ = _integer(packet, after)
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
