"""What is said to MariaDB or MySQL and what its answers mean: `Speech` of the SQL stores.

A request is one string, of one statement or of several that travel together; the reply is a list of
results, one for each. Values are written into it by `literal`, as digits and nothing else. What is
asked for most often is a `Call` instead, which a session prepares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import REFRESH, WAITER_LEASE, Row
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.sql.book import FAIR, UNFAIR, Change, Seen
from lockfast.stores.sql.mysql import schema
from lockfast.stores.sql.mysql.prepared import Call, Result, Statement


def literal(value: object) -> str:
    """A value in SQL: digits, or hexadecimal digits. It needs no quoting, and no sql_mode, no
    character set and no trick of whoever chose a name can make anything else of it."""
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


def spoken(request: str | Call) -> str:
    """As text."""
    return request if isinstance(request, str) else filled(request.statement.text, *request.values)


def micros(seconds: float) -> int:
    return max(round(seconds * 1e6), 0)


_WAITER_LEASE = micros(WAITER_LEASE)
_BEGIN, _COMMIT = "BEGIN", "COMMIT"
CLAIM_UNCONTENDED = Statement(schema.CLAIM_UNCONTENDED)
CLAIM_AGAIN = Statement(schema.CLAIM_AGAIN)
RELEASE_UNCONTENDED = Statement(schema.RELEASE_UNCONTENDED)


class MySQLSpeech:
    """Replies are lists of `Result`."""

    def claim_uncontended(self, mark: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_UNCONTENDED, (mark, claim.name, *_inline_hold(claim, wake_address)))

    def claim_again(self, mark: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_AGAIN, (*_inline_hold(claim, wake_address), mark))

    def taken(self, reply: Sequence[Result]) -> int:
        return reply[0].insert_id if reply[0].affected else 0

    def join(self, mark: bytes, claim: Claim, wake_address: str) -> str:
        begin, inline_hold, won, waiter, queued, answer, commit = schema.JOIN
        mine = claim.id.encode()
        put = (mark, mine, claim.who, claim.lease, _WAITER_LEASE, wake_address.encode(), mark, mine)
        return ";".join(
            (
                begin,
                filled(inline_hold, mark, mine),
                won,
                filled(waiter, *put),
                queued,
                filled(answer, mark, mine, mark, mark),
                commit,
            )
        )

    def joined(self, reply: Sequence[Result]) -> Busy | None:
        found = reply[-2].rows  # the last is the end of the transaction
        if not found:
            return None
        rest, fence, others = found[0]
        return Busy(REFRESH if others else min(REFRESH, max(int(rest) / 1e6, 0.0)), int(fence))

    def release_uncontended(self, mark: bytes, claim: Claim) -> Call:
        return Call(RELEASE_UNCONTENDED, (mark, claim.id.encode()))

    def released(self, reply: Sequence[Result]) -> bool:
        return bool(reply[0].affected)

    def extend(
        self, marks: Sequence[bytes], claims: Sequence[Claim], fences: Sequence[int]
    ) -> tuple[list[int], str]:
        """Those in seats. The others are found by a step of the law."""
        order = sorted(range(len(claims)), key=marks.__getitem__)
        updates = [
            filled(
                schema.EXTEND,
                micros(claims[number].lease),
                marks[number],
                claims[number].id.encode(),
                fences[number],
            )
            for number in order
        ]
        return order, ";".join((_BEGIN, *updates, _COMMIT))

    def extended(self, reply: Any) -> set[int]:
        order, results = reply
        pairs = zip(order, results[1:-1], strict=True)
        return {number for number, result in pairs if result.affected}

    def read(self, mark: bytes, ids: Sequence[str], limit: int) -> str:
        said = (mark, mark, mark, limit, mark, limit, mark)
        head = schema.READ % (*map(literal, said), _listed([one.encode() for one in ids]))
        return f"{head};{schema.CLOCK}"

    def seen(self, reply: Sequence[Result], limit: int) -> Seen:
        now = int(reply[1].rows[0][0]) / 1e6
        version, last_fence, inline_hold = 0, 0, None
        rows = []
        known = set()
        counts = {FAIR: [0, 0], UNFAIR: [0, 0]}
        for columns in reply[0].rows:
            kind, waiter, row = int(columns[0]), int(columns[1]), _row(columns)
            if kind == -1:
                version, last_fence = waiter, int(columns[12])
                inline_hold = row if row.id else None
            elif row.id not in known:
                known.add(row.id)
                rows.append((kind % 10, waiter, row))
                if kind in counts:
                    counts[kind][0] += 1
                    counts[kind][1] = max(counts[kind][1], waiter)
        cut = {
            fair: counts[kind][1] if counts[kind][0] >= limit else 0
            for fair, kind in ((True, FAIR), (False, UNFAIR))
        }
        return Seen(now, version, last_fence, inline_hold, rows, cut)

    def write(self, mark: bytes, name: str, change: Change, wake_address: str) -> str:
        inline_hold = change.inline_hold
        # An empty seat ended long ago, whatever the clock says; its last fence is kept from now on.
        nobody = (b"", "", 0, 0, 0.0, True, 0, micros(change.now), 0, b"")
        columns = _columns(inline_hold) if inline_hold is not None else nobody
        values = (change.new_version, change.crowd, change.last_fence, *columns)
        parts = [_BEGIN]
        if change.version:
            parts.append(filled(schema.WRITE, *values, mark, change.version))
        else:
            parts.append(filled(schema.WRITE_NEW, mark, name, *values))
        parts.append(schema.WON)
        if change.put:
            head, one, tail = schema.PUT
            rows = []
            for kind, waiter, row in change.put:
                claim_id, *rest = _columns(row)
                rows.append(filled(one, mark, claim_id, kind, waiter, *rest))
            parts.append(head + " UNION ALL ".join(rows) + tail)
        if change.gone:
            gone = _listed([claim_id.encode() for claim_id in change.gone])
            parts.append(schema.GONE % (literal(mark), gone))
        return ";".join((*parts, _COMMIT))

    def written(self, reply: Sequence[Result]) -> bool:
        return reply[1].affected == 1

    def names(self, prefix: str) -> str:
        return filled(schema.NAMES, prefix.encode(), prefix.encode())

    def named(self, reply: Sequence[Result]) -> list[str]:
        return [name for (name,) in reply[0].rows]

    def sweep(self, after: bytes, lot: int) -> str:
        reach, gone, looked, crowds = schema.SWEEP
        parts = (filled(reach, after, lot), filled(gone, after), looked, filled(crowds, after))
        return ";".join(parts)

    def swept(self, reply: Sequence[Result]) -> tuple[int, bytes, list[str]]:
        looked, last = reply[2].rows[0]
        last = last.encode() if isinstance(last, str) else last
        return int(looked or 0), last or b"", [name for (name,) in reply[3].rows]

    def granted(self, waiting: Sequence[tuple[bytes, str]]) -> str:
        """Which of these were granted? For a paced ear."""
        marks = _listed(sorted({mark for mark, _ in waiting}))
        ids = _listed([claim_id.encode() for _, claim_id in waiting])
        return ";".join((schema.GRANTED_SEATS % (marks, ids), schema.GRANTED_ROWS % (marks, ids)))

    def grants(self, reply: Sequence[Result]) -> list[tuple[str, Granted]]:
        return [
            (claim_id.decode(), Granted(int(fence), int(lease) / 1e6))
            for result in reply
            for claim_id, fence, lease in result.rows
        ]


def _inline_hold(claim: Claim, wake_address: str) -> tuple[bytes | str | int | float, ...]:
    _, claim_id, who, lease, slots, take, fair, _, _ = claim
    return claim_id.encode(), who, take, slots, lease, fair, micros(lease), wake_address.encode()


def _listed(values: Sequence[bytes]) -> str:
    """For IN (…), which must not be empty; x'' is no id of anybody."""
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
