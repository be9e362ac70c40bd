"""Requests to MariaDB and MySQL and their replies: the `Dialect` of these stores.

A request is one string of one or more statements; the reply is a list of results, one per
statement. Values are formatted into it by `literal`, as digits only. The most frequent requests are
a `Call` instead, which a session prepares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import REFRESH, WAITER_LEASE, Row
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.sql.book import FAIR, UNFAIR, Change, NameState
from lockfast.stores.sql.mysql import schema
from lockfast.stores.sql.mysql.prepared import Call, Result, Statement


def literal(value: object) -> str:
    """Format a value in SQL, as digits or hexadecimal digits. It needs no quoting, so neither the
    sql_mode nor the character set nor a malicious name can turn it into SQL."""
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return f"_utf8mb4 x'{value.encode().hex()}'"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.17e}"
    raise TypeError(f"no literal for {type(value).__name__}")


def filled(statement: str, *values: object) -> str:
    return statement % tuple(map(literal, values))


def as_text(request: str | Call) -> str:
    """Return a request as SQL text."""
    return request if isinstance(request, str) else filled(request.statement.text, *request.values)


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 0)


_WAITER_LEASE = micros(WAITER_LEASE)
_BEGIN, _COMMIT = "BEGIN", "COMMIT"
CLAIM_UNCONTENDED = Statement(schema.CLAIM_UNCONTENDED)
CLAIM_AGAIN = Statement(schema.CLAIM_AGAIN)
RELEASE_UNCONTENDED = Statement(schema.RELEASE_UNCONTENDED)


class MySQLDialect:
    """`Dialect` whose replies are lists of `Result`."""

    def claim_uncontended(self, name_hash: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_UNCONTENDED, (name_hash, claim.name, *_inline_hold(claim, wake_address)))

    def claim_again(self, name_hash: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_AGAIN, (*_inline_hold(claim, wake_address), name_hash))

    def decode_claim(self, reply: Sequence[Result]) -> int:
        return reply[0].insert_id if reply[0].affected else 0

    def join(self, name_hash: bytes, claim: Claim, wake_address: str) -> str:
        begin, inline_hold, won, position, queued, answer, commit = schema.JOIN
        mine = claim.id.encode()
        put = (
            name_hash,
            mine,
            claim.who,
            claim.lease,
            _WAITER_LEASE,
            wake_address.encode(),
            name_hash,
            mine,
        )
        return ";".join(
            (
                begin,
                filled(inline_hold, name_hash, mine),
                won,
                filled(position, *put),
                queued,
                filled(answer, name_hash, mine, name_hash, name_hash),
                commit,
            )
        )

    def decode_join(self, reply: Sequence[Result]) -> Busy | None:
        found = reply[-2].rows  # the last result is the COMMIT
        if not found:
            return None
        rest, fence, others = found[0]
        return Busy(REFRESH if others else min(REFRESH, max(int(rest) / 1e6, 0.0)), int(fence))

    def release_uncontended(self, name_hash: bytes, claim: Claim) -> Call:
        return Call(RELEASE_UNCONTENDED, (name_hash, claim.id.encode()))

    def decode_release(self, reply: Sequence[Result]) -> bool:
        return bool(reply[0].affected)

    def extend(
        self, name_hashes: Sequence[bytes], claims: Sequence[Claim], fences: Sequence[int]
    ) -> tuple[list[int], str]:
        """Renew inline holds. The others are renewed by a step of the law."""
        order = sorted(range(len(claims)), key=name_hashes.__getitem__)
        updates = [
            filled(
                schema.EXTEND,
                micros(claims[number].lease),
                name_hashes[number],
                claims[number].id.encode(),
                fences[number],
            )
            for number in order
        ]
        return order, ";".join((_BEGIN, *updates, _COMMIT))

    def decode_extend(self, reply: Any) -> set[int]:
        order, results = reply
        pairs = zip(order, results[1:-1], strict=True)
        return {number for number, result in pairs if result.affected}

    def read(self, name_hash: bytes, ids: Sequence[str], limit: int) -> str:
        values = (name_hash, name_hash, name_hash, limit, name_hash, limit, name_hash)
        head = schema.READ % (*map(literal, values), _listed([one.encode() for one in ids]))
        return f"{head};{schema.CLOCK}"

    def decode_read(self, reply: Sequence[Result], limit: int) -> NameState:
        now = int(reply[1].rows[0][0]) / 1e6
        version, last_fence, inline_hold = 0, 0, None
        rows = []
        known = set()
        counts = {FAIR: [0, 0], UNFAIR: [0, 0]}
        for columns in reply[0].rows:
            kind, position, row = int(columns[0]), int(columns[1]), _row(columns)
            if kind == -1:
                version, last_fence = position, int(columns[12])
                inline_hold = row if row.id else None
            elif row.id not in known:
                known.add(row.id)
                rows.append((kind % 10, position, row))
                if kind in counts:
                    counts[kind][0] += 1
                    counts[kind][1] = max(counts[kind][1], position)
        cut = {
            fair: counts[kind][1] if counts[kind][0] >= limit else 0
            for fair, kind in ((True, FAIR), (False, UNFAIR))
        }
        return NameState(now, version, last_fence, inline_hold, rows, cut)

    def write(self, name_hash: bytes, name: str, change: Change, wake_address: str) -> str:
        inline_hold = change.inline_hold
        # Without a hold, `ends` is 1970; `since` is now, from when the last fence is kept.
        nobody = (b"", "", 0, 0, 0.0, True, 0, micros(change.now), 0, b"")
        columns = _columns(inline_hold) if inline_hold is not None else nobody
        values = (change.new_version, change.contended, change.last_fence, *columns)
        parts = [_BEGIN]
        if change.version:
            parts.append(filled(schema.WRITE, *values, name_hash, change.version))
        else:
            parts.append(filled(schema.WRITE_NEW, name_hash, name, *values))
        parts.append(schema.WRITTEN)
        if change.upserts:
            head, one, tail = schema.UPSERT
            rows = []
            for kind, position, row in change.upserts:
                claim_id, *rest = _columns(row)
                rows.append(filled(one, name_hash, claim_id, kind, position, *rest))
            parts.append(head + " UNION ALL ".join(rows) + tail)
        if change.deletes:
            delete = _listed([claim_id.encode() for claim_id in change.deletes])
            parts.append(schema.DELETE % (literal(name_hash), delete))
        return ";".join((*parts, _COMMIT))

    def decode_write(self, reply: Sequence[Result]) -> bool:
        return reply[1].affected == 1

    def names(self, prefix: str) -> str:
        return filled(schema.NAMES, prefix.encode(), prefix.encode())

    def decode_names(self, reply: Sequence[Result]) -> list[str]:
        return [name for (name,) in reply[0].rows]

    def sweep(self, after: bytes, count: int) -> str:
        scan, delete, scanned, contended_names = schema.SWEEP
        parts = (
            filled(scan, after, count),
            filled(delete, after),
            scanned,
            filled(contended_names, after),
        )
        return ";".join(parts)

    def decode_sweep(self, reply: Sequence[Result]) -> tuple[int, bytes, list[str]]:
        scanned, last = reply[2].rows[0]
        last = last.encode() if isinstance(last, str) else last
        return int(scanned or 0), last or b"", [name for (name,) in reply[3].rows]

    def poll_grants(self, waiting: Sequence[tuple[bytes, str]]) -> str:
        """Ask which of these claims were granted, for a `PollingListener`."""
        name_hashes = _listed(sorted({name_hash for name_hash, _ in waiting}))
        ids = _listed([claim_id.encode() for _, claim_id in waiting])
        return ";".join(
            (schema.GRANTED_INLINE % (name_hashes, ids), schema.GRANTED_ROWS % (name_hashes, ids))
        )

    def decode_grants(self, reply: Sequence[Result]) -> list[tuple[str, Granted]]:
        return [
            (claim_id.decode(), Granted(int(fence), int(lease) / 1e6))
            for result in reply
            for claim_id, fence, lease in result.rows
        ]


def _inline_hold(claim: Claim, wake_address: str) -> tuple[bytes | str | int | float, ...]:
    _, claim_id, who, lease, slots, take, fair, _, _ = claim
    return claim_id.encode(), who, take, slots, lease, fair, micros(lease), wake_address.encode()


def _listed(values: Sequence[bytes]) -> str:
    """Format the values of IN (…), which must not be empty; x'' matches no id."""
    return ",".join(map(literal, values)) or "x''"


def _row(columns: Sequence[Any]) -> Row:
    claim_id, who, take, slots, lease, fair, fence, since, ends, wake_address = columns[2:12]
    return Row(
        claim_id.decode(),
        who if isinstance(who, str) else who.decode(),
        int(take),
        int(slots),
        float(lease),
        bool(fair),
        int(fence),
        int(since) / 1e6,
        int(ends) / 1e6,
        wake_address.decode(),
    )


def _columns(row: Row) -> tuple[Any, ...]:
    return (
        row.id.encode(),
        row.who,
        row.take,
        row.slots,
        row.lease,
        row.fair,
        row.fence,
        micros(row.since),
        micros(row.ends),
        row.wake_address.encode(),
    )
