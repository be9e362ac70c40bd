"""The protocol of MariaDB and MySQL as bytes: whatever a server sends, one kind of error."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.constants import CLIENT

from lockfast.errors import BackendError
from lockfast.stores.sql.book import busy_of, name_state
from lockfast.stores.sql.mysql import protocol
from lockfast.stores.sql.mysql.connections import MySQLConnection
from lockfast.stores.sql.mysql.dialect import CLAIM_UNCONTENDED, MySQLDialect
from lockfast.stores.sql.mysql.protocol import Call, Malformed, ServerError

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "ok": protocol.decode_ok,
    "prepared": protocol.decode_prepared,
    "columns": protocol.decode_columns,
    "row": lambda packet: protocol.decode_row(packet, 3),
    "end": protocol.end_of_rows,
}
OK = b"\0\1\xfd\1\2\3\2\0\0\0"


@pytest.mark.parametrize("decoder", DECODERS)
@given(packet=st.binary(min_size=1, max_size=40))
def test_a_decoder_knows_one_error(decoder, packet):
    with contextlib.suppress(Malformed):
        DECODERS[decoder](packet)


@given(packet=st.binary(max_size=40))
def test_any_error_packet_is_decoded(packet):
    try:
        assert isinstance(protocol.decode_error(b"\xff" + packet), ServerError)
    except Malformed:
        assert len(packet) < 2


@pytest.mark.parametrize("length", range(1, 8))
def test_a_truncated_integer_is_an_error(length):
    affected, insert_id, at = protocol.decode_ok(OK)
    assert (affected, insert_id, protocol.status_of(OK, at)) == (1, 0x030201, 2)
    with pytest.raises(Malformed):
        protocol.status_of(OK[:length], protocol.decode_ok(OK[:length])[2])


def test_a_long_command_is_sent_as_several_packets():
    packets = protocol.command_packets(protocol.QUERY, b"x" * protocol.LARGEST)
    first = protocol.LARGEST
    assert packets[:5] == b"\xff\xff\xff\0\3"
    assert packets[4 + first : 8 + first] == b"\1\0\0\1" and packets[8 + first :] == b"x"


class Driver:
    """A connection of PyMySQL, as far as `MySQLConnection` uses it."""

    server_version = "5.5.5-10.11.6-MariaDB"
    client_flag = CLIENT.MULTI_STATEMENTS

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def close(self) -> None:
        self._sock.close()


@settings(deadline=None, max_examples=300)
@given(reply=st.binary(min_size=1, max_size=60), prepared=st.booleans(), framed=st.booleans())
def test_any_reply_is_decoded_or_a_backend_error(reply, prepared, framed):
    ours, theirs = socket.socketpair()
    connection = MySQLConnection(Driver(ours), "here")
    connection._prepared[CLAIM_UNCONTENDED] = 1
    theirs.sendall(struct.pack("<I", len(reply)) + reply if framed else reply)
    theirs.shutdown(socket.SHUT_WR)
    try:
        request = Call(CLAIM_UNCONTENDED, (b"", 1)) if prepared else "SELECT 1"
        connection.run(connection.executing(request), 1.0)
    except BackendError:
        pass
    except Exception as error:
        assert type(error).__name__ in ("Retry", "NoTables"), error
    finally:
        connection.close()
        theirs.close()


values = st.one_of(st.none(), st.binary(max_size=6), st.integers(0, 99).map(lambda n: b"%d" % n))


@given(rows=st.lists(st.lists(values, max_size=14), max_size=3), now=values)
def test_rows_of_other_values_are_a_backend_error(rows, now):
    for decode in (
        lambda: name_state(now, rows, 16),  # type: ignore[arg-type]
        lambda: busy_of(rows),
        lambda: MySQLDialect().decode_names([(0, 0, rows)]),  # type: ignore[list-item]
    ):
        with contextlib.suppress(BackendError):
            decode()
