"""Health checks of a MariaDB or MySQL server: is it fit for locks?"""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.errors import BackendError
from lockfast.stores.health_checks import (
    HealthCheck,
    bad,
    note,
    ok,
    room_for_connections,
    version_of,
    warn,
)
from lockfast.stores.sql.mysql.connections import Address, Connection, code_and_message, connect

BUDGET = 5.0
LEAST = {"MariaDB": (10, 6), "MySQL": (8,)}
VARIABLES = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format',
     'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')
"""
STATUS = "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'"
# A client that reads the binlog is a replica. Without the PROCESS privilege none are visible.
REPLICAS = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
UNPRINTABLE = 3854  # error code: a statement in the list cannot be converted to utf8mb3
CHECK_FENCES = "and check fences wherever it matters"


def health_checks(address: Address) -> Iterator[HealthCheck]:
    connection = connect(address, BUDGET)
    try:
        shown, status = connection.execute(";".join((VARIABLES, STATUS)), BUDGET)
        replicas = _count_replicas(connection)
    finally:
        connection.close()
    variables = {str(name).lower(): str(value) for name, value in (*shown.rows, *status.rows)}
    yield _version(variables.get("version", ""))
    yield from _persistence(variables)
    yield _replicas(replicas, variables)
    if variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT":
        yield bad(
            "binlog",
            "binlog_format is STATEMENT: the server refuses writes of READ COMMITTED transactions",
            "set binlog_format to MIXED or ROW",
        )
    yield room_for_connections(
        int(variables.get("threads_connected", 0)),
        int(variables.get("max_connections", 0)),
        "max_connections",
    )


def _version(version: str) -> HealthCheck:
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    number = version.split("-")[0]
    if version_of(number) < LEAST[kind]:
        least = ".".join(map(str, LEAST[kind]))
        return warn("version", f"{kind} {number}: not tested", f"update it: {least} or later")
    return ok("version", f"{kind} {number}")


def _persistence(variables: dict[str, str]) -> Iterator[HealthCheck]:
    flush = variables.get("innodb_flush_log_at_trx_commit", "1")
    if flush not in ("1", "3"):
        yield warn(
            "persistence",
            f"innodb_flush_log_at_trx_commit is {flush}: a crash of its host loses the locks of "
            "the last second",
            f"set it to 1, {CHECK_FENCES}",
        )
    else:
        yield ok("persistence", f"innodb_flush_log_at_trx_commit is {flush}")


def _count_replicas(connection: Connection) -> int | None:
    """Return how many replicas read the binlog. None: MySQL 9 cannot list its connections while any
    of them executes text that does not fit into three-byte UTF-8."""
    try:
        (found,) = connection.execute(REPLICAS, BUDGET)
    except BackendError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception) or code_and_message(cause)[0] != UNPRINTABLE:
            raise
        return None
    return int(found.rows[0][0])


def _replicas(count: int | None, variables: dict[str, str]) -> HealthCheck:
    if count is None:
        return note("replicas", "unknown: the server could not list its connections", "try again")
    if not count:
        return note(
            "replicas", "none visible: while this server is down nobody can take a lock", ""
        )
    waits = {variables.get(f"rpl_semi_sync_{role}_enabled") for role in ("master", "source")}
    if "ON" not in waits:
        return warn(
            "replicas",
            f"{count}, and a commit waits for none of them: after a failover the latest locks may "
            "be missing",
            f"use semi-synchronous replication, {CHECK_FENCES}",
        )
    return ok("replicas", f"{count}, semi-synchronous")
