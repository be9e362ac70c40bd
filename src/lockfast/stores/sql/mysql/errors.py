"""Error mapping of MariaDB and MySQL: which errors are transient, and what an operator can do."""

from __future__ import annotations

from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry

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
        return NoTables()
    if code in AGAIN:
        return Retry(AGAIN[code])
    transient, hint = _ERRORS.get(code, (2000 <= code < 3000, ""))
    hint = f" ({hint})" if hint else ""
    return BackendError(f"{where} reported: {message}{hint}", transient=transient)


def refuse_unfit(variables: dict[str, str], where: str) -> None:
    """Refuse a server that cannot write locks, or where the next client might not see them."""
    on = {name for name, value in variables.items() if str(value).upper() in ("ON", "1")}
    read_only = {name for name in on if name.endswith("read_only")}
    if read_only:
        raise BackendError(
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
