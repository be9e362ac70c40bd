"""The protocol of MariaDB and MySQL after the authentication, as bytes: no I/O here.

A command is sent as a packet; its reply is packets, each with its length and a number in front.
Text results are decoded to the bytes of their values: the dialect knows their types. Claim and
release of an uncontended lock are prepared once per session, since parsing takes the server as long
as executing, and their values are sent in the binary protocol, which PyMySQL does not have. Their
replies are OK packets.

A reply that breaks the protocol is `Malformed`, whatever is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lockfast.stores.sql.book import Cells


class Malformed(Exception):
    """The server's reply breaks the protocol."""


class ServerError(Exception):
    """An error packet: its code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


QUERY, PREPARE, EXECUTE, SET_OPTION = 0x03, 0x16, 0x17, 0x1B
LARGEST = 0xFFFFFF  # bytes of a packet; a longer command is sent in several
MORE_RESULTS = 0x0008  # server status: another result follows
# The server has too many prepared statements, or cannot prepare this one: it is sent as text.
REFUSED = (1461, 1295)
# The server no longer knows the prepared statement.
FORGOTTEN = (1243, 1615)

# Packet length with number 0, command, statement id, no cursor flag, one iteration.
_EXECUTE = struct.Struct("<IBIBI").pack
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


_FROM_HEX: dict[type, str] = {bytes: "UNHEX(%s)", str: "CONVERT(UNHEX(%s) USING utf8mb4)"}


def in_hex(call: Call) -> Call:
    """Return the call with its bytes and texts as hexadecimal digits, for MySQL.

    MySQL shows a statement with its values in the process list and the list of transactions. Bytes
    that are not text corrupt that list, and MySQL 9 then shows none at all. MariaDB shows the
    statement as it was prepared, and would take a tenth longer.
    """
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
    """Return the packet that executes a prepared statement."""
    kinds = [_TYPES[type(value)] for value in values]
    encoded = [_PACKED[type(value)](value) for value in values]
    nulls = bytes((len(values) + 7) // 8)  # none
    body = b"".join((nulls, b"\1", *kinds, *encoded))
    return _EXECUTE(len(body) + 10, EXECUTE, number, 0, 1) + body


def command_packets(command: int, parameters: bytes) -> bytes:
    """Return a command as the packets to send. A packet of `LARGEST` bytes is followed by another
    one."""
    body = bytes([command]) + parameters
    if len(body) < LARGEST:
        return len(body).to_bytes(4, "little") + body
    parts = [body[at : at + LARGEST] for at in range(0, len(body) + 1, LARGEST)]
    return b"".join(
        len(part).to_bytes(3, "little") + bytes([number % 256]) + part
        for number, part in enumerate(parts)
    )


# ---- replies -----------------------------------------------------------------------------------


def decode_ok(packet: bytes) -> tuple[int, int, int]:
    """Return the rows affected, the last insert id, and where the server's status stands."""
    if packet[0] != 0:
        raise Malformed("no OK packet")
    affected, at = _integer(packet, 1)
    insert_id, at = _integer(packet, at)
    return affected, insert_id, at


def status_of(packet: bytes, at: int) -> int:
    return _fixed(packet, at, 2)


def decode_error(packet: bytes) -> ServerError:
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]  # without the SQLSTATE
    return ServerError(_fixed(packet, 1, 2), text.decode(errors="replace"))


def decode_prepared(packet: bytes) -> tuple[int, int]:
    """Return the statement's id, and how many packets of descriptions follow, which are skipped."""
    if packet[:1] != b"\0":
        raise Malformed("an unexpected reply to a statement that was to be prepared")
    columns, parameters = _fixed(packet, 5, 2), _fixed(packet, 7, 2)
    return _fixed(packet, 1, 4), sum(count + 1 for count in (columns, parameters) if count)


def decode_columns(packet: bytes) -> int:
    """Return the number of columns with which a text result begins."""
    count, at = _integer(packet, 0)
    if at != len(packet) or not 0 < count <= 4096:
        raise Malformed("an unexpected reply")
    return count


def end_of_rows(packet: bytes) -> int | None:
    """Return the server status if this is the packet behind the last row, or description."""
    return _fixed(packet, 3, 2) if packet[:1] == b"\xfe" and len(packet) < 9 else None


def decode_row(packet: bytes, columns: int) -> Cells:
    cells: list[bytes | None] = []
    at = 0
    for _ in range(columns):
        if packet[at : at + 1] == b"\xfb":
            cells.append(None)
            at += 1
            continue
        length, at = _integer(packet, at)
        cells.append(packet[at : at + length])
        at += length
    if at != len(packet):
        raise Malformed("a row of another length than its values")
    return cells


_TRUNCATED = 0xFF  # no integer begins with this byte


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Decode an integer of one to nine bytes; return also where it ends."""
    first = data[at] if at < len(data) else _TRUNCATED
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise Malformed("no integer, or a truncated one")
    return _fixed(data, at + 1, size), at + 1 + size


def _fixed(data: bytes, at: int, size: int) -> int:
    part = data[at : at + size]
    if len(part) != size:
        raise Malformed("a truncated packet")
    return int.from_bytes(part, "little")


# ---- values ------------------------------------------------------------------------------------


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
