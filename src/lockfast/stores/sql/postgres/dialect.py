"""Requests to PostgreSQL and their replies: the `Dialect` of this store.

A request is a statement and its parameters as they are sent: binary for hashes, text for the rest.
Lists are sent as JSON, so nothing is ever quoted here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockfast.core.law import REFRESH, WAITER_LEASE, Row
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.sql.book import FAIR, UNFAIR, Change, NameState
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
_NOBODY = ("", "", 0, 0, 0.0, True, 0)


class PostgresDialect:
    """`Dialect` whose replies are libpq's results: text, or None."""

    def claim_uncontended(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        return Request(
            CLAIM_UNCONTENDED, (name_hash, claim.name.encode(), *_inline_hold(claim, wake_address))
        )

    def claim_again(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        return Request(CLAIM_AGAIN, (name_hash, *_inline_hold(claim, wake_address)))

    def decode_claim(self, reply: Any) -> int:
        return int(reply.get_value(0, 0)) if reply.ntuples else 0

    def join(self, name_hash: bytes, claim: Claim, wake_address: str) -> Request:
        parameters = (
            name_hash,
            claim.id.encode(),
            claim.who.encode(),
            repr(claim.lease).encode(),
            wake_address.encode(),
            _WAITER_LEASE,
        )
        return Request(JOIN, parameters)

    def decode_join(self, reply: Any) -> Busy | None:
        if not reply.ntuples:
            return None
        rest, fence, others = (reply.get_value(0, column) for column in range(3))
        after = REFRESH if others == b"t" else min(REFRESH, max(float(rest), 0.0))
        return Busy(after, int(fence))

    def release_uncontended(self, name_hash: bytes, claim: Claim) -> Request:
        return Request(RELEASE_UNCONTENDED, (name_hash, claim.id.encode()))

    def decode_release(self, reply: Any) -> bool:
        return bool(reply.command_tuples)

    def extend(
        self, name_hashes: Sequence[bytes], claims: Sequence[Claim], fences: Sequence[int]
    ) -> Request:
        renewals = [
            {"number": number, "hash": name_hash.hex(), "id": claim.id, "fence": fence,
             "lease": claim.lease}
            for number, (name_hash, claim, fence) in enumerate(
                zip(name_hashes, claims, fences, strict=True)
            )
        ]  # fmt: skip
        return Request(EXTEND, (_json(renewals),))

    def decode_extend(self, reply: Any) -> set[int]:
        return {int(reply.get_value(row, 0)) for row in range(reply.ntuples)}

    def read(self, name_hash: bytes, ids: Sequence[str], limit: int) -> Request:
        return Request(READ, (name_hash, _json(ids), b"%d" % limit))

    def decode_read(self, reply: Any, limit: int) -> NameState:
        value = reply.get_value
        inline_hold = None if not value(0, 2) else _row(value, 0)
        rows = []
        known = set()
        counts = {FAIR: [0, 0], UNFAIR: [0, 0]}
        for number in range(1, reply.ntuples):
            kind, position, row = int(value(number, 0)), int(value(number, 1)), _row(value, number)
            if row.id in known:
                continue
            known.add(row.id)
            rows.append((kind % 10, position, row))
            if kind in counts:
                counts[kind][0] += 1
                counts[kind][1] = position
        cut = {
            fair: counts[kind][1] if counts[kind][0] >= limit else 0
            for fair, kind in ((True, FAIR), (False, UNFAIR))
        }
        return NameState(
            float(value(0, 12)), int(value(0, 1)), int(value(0, 13)), inline_hold, rows, cut
        )

    def write(self, name_hash: bytes, name: str, change: Change, wake_address: str) -> Request:
        inline_hold = change.inline_hold
        # Without a hold, `ends` is now, from when the last fence is kept.
        nobody = (*_NOBODY, change.now, change.now, "")
        columns = _columns(inline_hold) if inline_hold is not None else nobody
        put = [
            dict(zip(_NAMES, (kind, position, *_columns(row)), strict=True))
            for kind, position, row in change.upserts
        ]
        wakeups = [
            {"channel": channel_of(row.wake_address), "message": message_of(row.id, grant)}
            for row, grant in change.wakeups
            if row.wake_address != wake_address
        ]
        parameters = (
            name_hash,
            b"%d" % change.version if change.version else name.encode(),
            b"%d" % change.new_version,
            *map(_text, (change.contended, change.last_fence, *columns)),
            _json(put),
            _json(change.deletes),
            _json(wakeups),
        )
        return Request(WRITE if change.version else WRITE_NEW, parameters)

    def decode_write(self, reply: Any) -> bool:
        return bool(reply.get_value(0, 0) == b"1")

    def names(self, prefix: str) -> Request:
        return Request(NAMES, (prefix.encode(),))

    def decode_names(self, reply: Any) -> list[str]:
        return [reply.get_value(row, 0).decode() for row in range(reply.ntuples)]

    def sweep(self, after: bytes, count: int) -> Request:
        return Request(SWEEP, (after, b"%d" % count))

    def decode_sweep(self, reply: Any) -> tuple[int, bytes, list[str]]:
        value = reply.get_value
        last = value(0, 1)
        names = [value(row, 2) for row in range(reply.ntuples)]
        return (
            int(value(0, 0)),
            bytes.fromhex(last.decode()) if last else b"",
            [name.decode() for name in names if name is not None],
        )

    def poll_grants(self, waiting: Sequence[tuple[bytes, str]]) -> Request:
        """Ask which of these claims were granted, for a `PollingListener`."""
        return Request(
            GRANTED, (_json([{"hash": name_hash.hex(), "id": one} for name_hash, one in waiting]),)
        )

    def decode_grants(self, reply: Any) -> list[tuple[str, Granted]]:
        value = reply.get_value
        return [
            (value(row, 0).decode(), Granted(int(value(row, 1)), float(value(row, 2))))
            for row in range(reply.ntuples)
        ]


_NAMES = (
    "kind", "queue_position", "id", "who", "take", "slots", "lease", "fair", "fence", "since",
    "ends", "wake_address",
)  # fmt: skip


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


def _row(value: Any, number: int) -> Row:
    return Row(
        value(number, 2).decode(),
        value(number, 3).decode(),
        int(value(number, 4)),
        int(value(number, 5)),
        float(value(number, 6)),
        value(number, 7) == b"t",
        int(value(number, 8)),
        float(value(number, 9)),
        float(value(number, 10)),
        value(number, 11).decode(),
    )


def _columns(row: Row) -> tuple[Any, ...]:
    return (
        row.id,
        row.who,
        row.take,
        row.slots,
        row.lease,
        row.fair,
        row.fence,
        row.since,
        row.ends,
        row.wake_address,
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
