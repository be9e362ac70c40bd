"""Requests to PostgreSQL: the `Dialect` of this store, and the mapping of its errors.

A request is a statement and its parameters as they are sent: binary for hashes, text for the rest.
Lists are sent as JSON, so nothing is ever quoted here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from lockfast.core.law import WAITER_LEASE
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.sql import book
from lockfast.stores.sql.postgres import schema


class Statement:
    """A statement that a connection prepares once. ``formats`` marks binary parameters with 1."""

    __slots__ = ("formats", "name", "sql")

    def __init__(self, name: str, sql: str, parameters: int, *, hashed: bool = True) -> None:
        self.name = f"lockfast_{name}".encode()
        self.sql = sql.encode()
        self.formats = [1 if hashed and number == 0 else 0 for number in range(parameters)]


class Request(NamedTuple):
    statement: Statement
    parameters: Sequence[bytes]


CLAIM_UNCONTENDED = Statement("claim_uncontended", schema.CLAIM_UNCONTENDED, 9)
CLAIM_AGAIN = Statement("claim_again", schema.CLAIM_AGAIN, 8)
RELEASE_UNCONTENDED = Statement("release_uncontended", schema.RELEASE_UNCONTENDED, 2)
JOIN = Statement("join", schema.JOIN, 6)
EXTEND = Statement("extend", schema.EXTEND, 1, hashed=False)
READ = Statement("read", schema.READ, 3)
WRITE = Statement("write", schema.WRITE, 18)
WRITE_NEW = Statement("write_new", schema.WRITE_NEW, 18)
NAMES = Statement("names", schema.NAMES, 1, hashed=False)
SWEEP = Statement("sweep", schema.SWEEP, 2)
GRANTED = Statement("granted", schema.GRANTED, 1, hashed=False)

_WAITER_LEASE = str(WAITER_LEASE).encode()
_NAMES = (
    "kind", "queue_position", "id", "who", "take", "slots", "lease", "fair", "fence", "since",
    "ends", "wake_address",
)  # fmt: skip


class PostgresDialect(book.Dialect):
    def claim_uncontended(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        return Request(
            CLAIM_UNCONTENDED, (name_hash, claim.name.encode(), *_inline_hold(claim, wake_address))
        )

    def claim_again(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        return Request(CLAIM_AGAIN, (name_hash, *_inline_hold(claim, wake_address)))

    def decode_claim(self, reply: book.Reply) -> int:
        rows = reply[0].rows
        return int(rows[0][0]) if rows else 0

    def join(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        values = (claim.id, claim.who, claim.lease, wake_address)
        return Request(JOIN, (name_hash, *map(_text, values), _WAITER_LEASE))

    def decode_join(self, reply: book.Reply) -> Busy | None:
        return book.busy_of(reply[0].rows)

    def release_uncontended(self, name_hash: bytes, claim: Claim) -> Request:
        return Request(RELEASE_UNCONTENDED, (name_hash, claim.id.encode()))

    def extend(self, renewals: Sequence[book.Renewal]) -> Request:
        keys = ("number", "hash", "id", "fence", "lease")
        values = [
            (number, name_hash.hex(), claim.id, fence, claim.lease)
            for number, (name_hash, claim, fence) in enumerate(renewals)
        ]
        return Request(EXTEND, (_json([dict(zip(keys, each, strict=True)) for each in values]),))

    def decode_extend(self, reply: book.Reply) -> set[int]:
        return {int(number) for (number,) in reply[0].rows}

    def read(self, name_hash: bytes, ids: Sequence[str], limit: int) -> Request:
        return Request(READ, (name_hash, _json(ids), b"%d" % limit))

    def decode_read(self, reply: book.Reply, limit: int) -> book.NameState:
        rows = reply[0].rows
        return book.name_state(rows[0][13], rows, limit)

    def write(self, name_hash: bytes, name: str, change: book.Change, wake_address: str) -> Request:
        # Without a hold, `ends` is now, from when the last fence is kept.
        now = book.micros(change.now)
        nobody = ("", "", 0, 0, 0.0, True, 0, now, now, "")
        hold = change.inline_hold
        put = [
            dict(zip(_NAMES, (kind, position, *book.columns_of(row)), strict=True))
            for kind, position, row in change.upserts
        ]
        wakeups = [
            {"channel": channel_of(row.wake_address), "message": message_of(row.id, grant)}
            for row, grant in change.wakeups
            if row.wake_address != wake_address
        ]
        columns = nobody if hold is None else book.columns_of(hold)
        parameters = (
            name_hash,
            *map(_text, (change.version or name, change.new_version)),
            *map(_text, (change.contended, change.last_fence, *columns)),
            *map(_json, (put, change.deletes, wakeups)),
        )
        return Request(WRITE if change.version else WRITE_NEW, parameters)

    def decode_write(self, reply: book.Reply) -> bool:
        return bool(reply[0].rows[0][0] == b"1")

    def names(self, prefix: str) -> Request:
        return Request(NAMES, (prefix.encode(),))

    def sweep(self, after: bytes, count: int) -> Request:
        return Request(SWEEP, (after, b"%d" % count))

    def decode_sweep(self, reply: book.Reply) -> tuple[int, bytes, list[str]]:
        rows = reply[0].rows
        scanned, last, _ = rows[0]
        names = [name.decode() for _, _, name in rows if name is not None]
        return int(scanned), bytes.fromhex(last.decode()) if last else b"", names

    def poll_grants(self, waiting: Sequence[tuple[bytes, str]]) -> Request:
        asked = [{"hash": name_hash.hex(), "id": claim_id} for name_hash, claim_id in waiting]
        return Request(GRANTED, (_json(asked),))


def _inline_hold(claim: Claim, wake_address: str) -> tuple[bytes, ...]:
    _, claim_id, who, lease, slots, take, fair, _, _ = claim
    return (
        claim_id.encode(),
        who.encode(),
        b"%d" % take,
        b"%d" % slots,
        repr(lease).encode(),
        b"t" if fair else b"f",
        wake_address.encode(),
    )


def _text(value: object) -> bytes:
    """Encode a parameter; numbers as Python's repr, which loses no precision."""
    return value.encode() if isinstance(value, str) else repr(value).encode()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ---- notifications: one channel per client; a message is 'id' or 'id fence lease-in-µs' ---------


def channel_of(wake_address: str) -> str:
    return f"lockfast_{wake_address}"


def message_of(claim_id: str, grant: Granted | None) -> str:
    if grant is None:
        return claim_id
    return f"{claim_id} {grant.fence} {round(grant.lease * 1e6)}"


def decode_message(message: str) -> tuple[str, Granted | None] | None:
    """Decode a message; None if it is malformed, since any database user may write to a channel."""
    parts = message.split(" ")
    try:
        grant = Granted(int(parts[1]), int(parts[2]) / 1e6) if len(parts) == 3 else None
    except ValueError:
        return None
    return parts[0], grant


# ---- errors: which are transient, and what an operator can do ------------------------------------

AGAIN = {
    "40001": "a serialization failure",
    "40P01": "a deadlock",
    "55P03": "a row stayed locked",
    "26000": "a prepared statement is missing: a pooler switched the session",
    "42P05": "a prepared statement exists already: a pooler switched the session",
    "0A000": "a prepared statement is older than the tables",
}
LEAST_RIGHTS = "a user without CREATE needs the tables that `lockfast schema` prints;"
# By SQLSTATE: whether the error is transient, and what an operator can do.
_ERRORS = {
    "25006": (False, "it is read-only, perhaps a standby: use the address of the primary"),
    "42501": (False, f"{LEAST_RIGHTS} docs/postgresql.md lists the least rights"),
    "28P01": (False, "the user name or the password is wrong"),
    "28000": (False, "it rejects this user: see its pg_hba.conf"),
    "3D000": (False, "there is no such database"),
    "53300": (True, "it has no free connection: raise its max_connections"),
    "57P01": (True, "an administrator ended the connection, or it is shutting down"),
    "57P02": (True, "it has crashed and is recovering"),
    "57P03": (True, "it is starting up, or shutting down"),
    "57014": (True, "it was cancelled, or took longer than its statement_timeout"),
    "57P05": (True, "the connection was idle for too long"),
    "53100": (True, "its disk is full"),
    "53200": (True, "it is out of memory"),
    "23505": (True, "another client inserted the row first"),
}


def exception_for(code: str, message: str, where: str) -> Exception:
    """Map a server error to an exception."""
    if code == "42P01":
        return book.NoTables()
    if code in AGAIN:
        return book.Retry(AGAIN[code])
    transient, hint = _ERRORS.get(code, (code[:2] in ("08", "53", "57", "58"), ""))
    if code.startswith("42") and not hint:
        hint = "its tables were created by another version of lockfast, or by another program"
    message = message.strip().splitlines()[0] if message.strip() else f"SQLSTATE {code}"
    hint = f" ({hint})" if hint else ""
    return BackendError(f"{where} reported: {message}{hint}", transient=transient)


def not_connected(message: str, where: str) -> BackendError:
    """Map a failure to connect. libpq has no code for it; the server's reason is in the message."""
    text = re.sub(r"\s+", " ", message).strip()
    final = (
        "password authentication failed",
        "no password supplied",
        "no pg_hba.conf entry",
        "does not exist",
        "certificate",
        "does not support SSL",
        "authentication method",
        "session is read-only",
        "not permitted to log in",
    )
    passing = "starting up" in text or "shutting down" in text
    transient = passing or not any(phrase in text for phrase in final)
    if "session is read-only" in text:
        text += " (a standby: use the address of the primary)"
    if "too many clients" in text or "too many connections" in text:
        text += " (raise its max_connections)"
    return BackendError(f"{where} is out of reach: {text}", transient=transient)
