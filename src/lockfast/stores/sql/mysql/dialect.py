"""Requests to MariaDB and MySQL: the `Dialect` of these stores, and the mapping of their errors.

A request is one string of one or more statements. Values are formatted into it by `literal`, as
digits only. The most frequent requests are a `Call` instead, which a session prepares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import WAITER_LEASE
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim
from lockfast.stores.sql import book
from lockfast.stores.sql.mysql import schema
from lockfast.stores.sql.mysql.protocol import Call, Statement


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


_WAITER_LEASE = book.micros(WAITER_LEASE)
_BEGIN, _COMMIT = "BEGIN", "COMMIT"
CLAIM_UNCONTENDED = Statement(schema.CLAIM_UNCONTENDED)
CLAIM_AGAIN = Statement(schema.CLAIM_AGAIN)
RELEASE_UNCONTENDED = Statement(schema.RELEASE_UNCONTENDED)


class MySQLDialect(book.Dialect):
    def claim_uncontended(self, name_hash: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_UNCONTENDED, (name_hash, claim.name, *_inline_hold(claim, wake_address)))

    def claim_again(self, name_hash: bytes, claim: Claim, wake_address: str) -> Call:
        return Call(CLAIM_AGAIN, (*_inline_hold(claim, wake_address), name_hash))

    def decode_claim(self, reply: book.Reply) -> int:
        return reply[0].insert_id if reply[0].affected else 0

    def join(self, name_hash: bytes, claim: Claim, wake_address: str) -> str:
        begin, inline_hold, won, position, queued, answer, commit = schema.JOIN
        key = (name_hash, claim.id.encode())
        put = (*key, claim.who, claim.lease, _WAITER_LEASE, wake_address.encode(), *key)
        return ";".join(
            (
                begin,
                filled(inline_hold, *key),
                won,
                filled(position, *put),
                queued,
                filled(answer, *key, name_hash, name_hash),
                commit,
            )
        )

    def decode_join(self, reply: book.Reply) -> Busy | None:
        return book.busy_of(reply[-2].rows)  # the last result is the COMMIT

    def release_uncontended(self, name_hash: bytes, claim: Claim) -> Call:
        return Call(RELEASE_UNCONTENDED, (name_hash, claim.id.encode()))

    def extend(self, renewals: Sequence[book.Renewal]) -> str:
        """Renew inline holds. The others are renewed by a step of the law."""
        updates = [
            filled(schema.EXTEND, book.micros(claim.lease), name_hash, claim.id.encode(), fence)
            for name_hash, claim, fence in renewals
        ]
        return ";".join((_BEGIN, *updates, _COMMIT))

    def decode_extend(self, reply: book.Reply) -> set[int]:
        return {number for number, result in enumerate(reply[1:-1]) if result.affected}

    def read(self, name_hash: bytes, ids: Sequence[str], limit: int) -> str:
        values = (name_hash, name_hash, name_hash, limit, name_hash, limit, name_hash)
        head = schema.READ % (*map(literal, values), _listed([one.encode() for one in ids]))
        return f"{head};{schema.CLOCK}"

    def decode_read(self, reply: book.Reply, limit: int) -> book.NameState:
        return book.name_state(reply[1].rows[0][0], reply[0].rows, limit)

    def write(self, name_hash: bytes, name: str, change: book.Change, wake_address: str) -> str:
        # Without a hold, `ends` is 1970; `since` is now, from when the last fence is kept.
        nobody = (b"", "", 0, 0, 0.0, True, 0, book.micros(change.now), 0, b"")
        hold = change.inline_hold
        columns = nobody if hold is None else _columns(hold)
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

    def decode_write(self, reply: book.Reply) -> bool:
        return reply[1].affected == 1

    def names(self, prefix: str) -> str:
        return filled(schema.NAMES, prefix.encode(), prefix.encode())

    def sweep(self, after: bytes, count: int) -> str:
        scan, delete, scanned, names = schema.SWEEP
        return ";".join(
            (filled(scan, after, count), filled(delete, after), scanned, filled(names, after))
        )

    def decode_sweep(self, reply: book.Reply) -> tuple[int, bytes, list[str]]:
        scanned, last = reply[2].rows[0]
        names = [name.decode() for (name,) in reply[3].rows]
        return int(scanned or 0), bytes.fromhex((last or b"").decode()), names

    def poll_grants(self, waiting: Sequence[tuple[bytes, str]]) -> str:
        name_hashes = _listed(sorted({name_hash for name_hash, _ in waiting}))
        ids = _listed([claim_id.encode() for _, claim_id in waiting])
        tables = (schema.GRANTED_INLINE, schema.GRANTED_ROWS)
        return ";".join(statement % (name_hashes, ids) for statement in tables)


def _inline_hold(claim: Claim, wake_address: str) -> tuple[bytes | str | int | float, ...]:
    _, claim_id, who, lease, slots, take, fair, _, _ = claim
    size = (take, slots, lease, fair, book.micros(lease))
    return claim_id.encode(), who, *size, wake_address.encode()


def _columns(row: Any) -> tuple[Any, ...]:
    """Return the columns of a row, with its binary ones as bytes."""
    claim_id, *rest, wake_address = book.columns_of(row)
    return (claim_id.encode(), *rest, wake_address.encode())


def _listed(values: Sequence[bytes]) -> str:
    """Format the values of IN (…), which must not be empty; x'' matches no id."""
    return ",".join(map(literal, values)) or "x''"


# ---- errors: which are transient, and what an operator can do ------------------------------------

AGAIN = {
    1213: "a deadlock",
    1205: "a row stayed locked",
    1020: "a row was changed concurrently",
    1243: "a prepared statement was discarded",
    1615: "a prepared statement is older than the tables",
}
LEAST_RIGHTS = "a user without CREATE needs the tables that `lockfast schema` prints;"
# By error code: whether the error is transient, and what an operator can do.
_ERRORS = {
    1044: (False, "this user may not use the database"),
    1045: (False, "the user name or the password is wrong"),
    1049: (False, "there is no such database"),
    1142: (False, f"{LEAST_RIGHTS} docs/mysql.md lists the least rights"),
    1143: (False, f"{LEAST_RIGHTS} docs/mysql.md lists the least rights"),
    1054: (False, "its tables were created by another version of lockfast, or by another program"),
    1290: (False, "it is read-only, perhaps a replica: use the address of the primary"),
    1969: (True, "it took longer than its max_statement_time"),
    3024: (True, "it took longer than its max_execution_time"),
    1792: (False, "it is read-only: transaction_read_only is on"),
    1836: (False, "it is read-only, perhaps a replica: use the address of the primary"),
    1665: (False, "set its binlog_format to MIXED or ROW"),
    1040: (True, "it has no free connection: raise its max_connections"),
    1203: (True, "this user has too many connections: raise its max_user_connections"),
    1226: (True, "this user has too many connections"),
    1053: (True, "it is shutting down"),
    1317: (True, "the query was killed"),
    1927: (True, "the connection was killed"),
    2003: (True, ""),
    2006: (True, "it closed the connection"),
    2013: (True, "it closed the connection"),
    4031: (True, "the connection was idle for too long"),
}


def exception_for(code: int, message: str, where: str) -> Exception:
    """Map a server error to an exception."""
    if code == 1146:
        return book.NoTables()
    if code in AGAIN:
        return book.Retry(AGAIN[code])
    transient, hint = _ERRORS.get(code, (2000 <= code < 3000, ""))
    hint = f" ({hint})" if hint else ""
    return BackendError(f"{where} reported: {message}{hint}", transient=transient)


# The server became read-only after lockfast had connected: see `SqlEndpoint`.
READ_ONLY = (1290, 1792, 1836)


def refuse_unfit(variables: dict[str, str], where: str) -> None:
    """Refuse a server that cannot write locks, or where the next client might not see them."""
    on = {name for name, value in variables.items() if str(value).upper() in ("ON", "1")}
    read_only = {name for name in on if name.endswith("read_only")}
    if read_only:
        raise book.ReadOnly(
            f"{where} is read-only ({', '.join(sorted(read_only))}), and taking a lock is a write: "
            "use the address of the primary",
            transient=False,
        )
    if "wsrep_on" in on:
        raise BackendError(
            f"{where} is a node of a Galera cluster (wsrep_on), where another node may not know "
            "yet what was locked here: use a single primary, or another store",
            transient=False,
        )
    single = variables.get("group_replication_single_primary_mode", "ON")
    if str(single).upper() in ("OFF", "0"):
        raise BackendError(
            f"{where} is a node of a replication group with several primaries "
            "(group_replication_single_primary_mode is off), where another node may not know yet "
            "what was locked here: use a single primary, or another store",
            transient=False,
        )
