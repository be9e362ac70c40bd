"""What MariaDB and MySQL say when they will not: which of it passes by itself, and what to do."""

from __future__ import annotations

from lockfast.errors import BackendError
from lockfast.stores.sql.errors import Again, NoTables

AGAIN = {
    1213: "a deadlock",
    1205: "a row stayed locked",
    1020: "a row has changed meanwhile",
    1243: "a prepared statement is gone",
    1615: "a prepared statement is of older tables",
}
LEAST_RIGHTS = "who may not create tables needs those that `lockfast schema` prints;"
# Whether it is worth asking again, and what an operator can do.
_CONDITIONS = {
    1044: (False, "this user may not use the database"),
    1045: (False, "the user name or the password is wrong"),
    1049: (False, "there is no such database"),
    1142: (False, f"{LEAST_RIGHTS} docs/mysql.md lists the least rights"),
    1143: (False, f"{LEAST_RIGHTS} docs/mysql.md lists the least rights"),
    1054: (False, "its tables were made by another version of lockfast, or by somebody else"),
    1290: (False, "it is read-only, a replica perhaps: give the address of the primary"),
    1792: (False, "it is read-only: transaction_read_only is on"),
    1836: (False, "it is read-only, a replica perhaps: give the address of the primary"),
    1665: (False, "set its binlog_format to MIXED or ROW"),
    1040: (True, "it has no free connection: raise its max_connections"),
    1203: (True, "this user has too many connections: raise its max_user_connections"),
    1226: (True, "this user has too many connections"),
    1053: (True, "it is shutting down"),
    1317: (True, "somebody stopped the query"),
    1927: (True, "somebody ended the connection"),
    2003: (True, ""),
    2006: (True, "it closed the connection"),
    2013: (True, "it closed the connection"),
    4031: (True, "the connection was idle for too long"),
}


def explained(code: int, said: str, where: str) -> Exception:
    """An error with this number, as an exception."""
    if code == 1146:
        return NoTables()
    if code in AGAIN:
        return Again(AGAIN[code])
    transient, hint = _CONDITIONS.get(code, (2000 <= code < 3000, ""))
    return BackendError(f"{where} said: {said}{f' ({hint})' if hint else ''}", transient=transient)


def refuse_unfit(variables: dict[str, str], where: str) -> None:
    """A lock must be written down, and seen by whoever asks next."""
    on = {name for name, value in variables.items() if str(value).upper() in ("ON", "1")}
    read_only = {name for name in on if name.endswith("read_only")}
    if read_only:
        raise BackendError(
            f"{where} is read-only ({', '.join(sorted(read_only))}), and a lock must be written "
            "down: give the address of the primary",
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
