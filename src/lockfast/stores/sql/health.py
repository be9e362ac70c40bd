"""Health checks of a database server: is it fit for locks?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from lockfast.stores.sql.mysql.endpoint import MySQLEndpoint
    from lockfast.stores.sql.postgres.endpoint import PostgresEndpoint

BUDGET = 5.0
CHECK_FENCES = "and check fences wherever it matters"

# ---- PostgreSQL --------------------------------------------------------------------------------

LEAST_VERSION = (12,)
ASK = """
SELECT current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), current_setting('autovacuum'),
    current_setting('max_connections'),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT count(*) FROM pg_stat_replication),
    (SELECT string_agg(relname, ', ') FROM pg_class
     WHERE relname IN ('lockfast_names', 'lockfast_rows') AND relpersistence = 'u')
"""


def postgres_checks(endpoint: PostgresEndpoint) -> Iterator[HealthCheck]:
    connection: Any = endpoint.connect(BUDGET)
    try:
        (values,) = connection.run(connection.executing_script(ASK), BUDGET).rows
    finally:
        connection.close()
    texts = [(value or b"").decode() for value in values]
    version, fsync, pages, commit, standbys, vacuum, most, used, replicas, unlogged = texts
    if version_of(version) < LEAST_VERSION:
        yield warn("version", f"PostgreSQL {version}: not tested", "update it: 12 or later")
    else:
        yield ok("version", f"PostgreSQL {version}")
    yield from _postgres_persistence(fsync, pages, commit, unlogged)
    yield _standbys(int(replicas), standbys, commit)
    if connection.pooled:
        yield note(
            "pooler",
            "a pooler in transaction mode (PgBouncer) is in between: locks are safe, but wake-ups "
            "cannot be pushed through it, so waiters poll several times a second",
            "use the database's own address for locks, or a pool in session mode",
        )
    if vacuum != "on":
        yield warn(
            "autovacuum",
            "it is off: rows that change with every lock are never vacuumed, and requests get slow",
            "set autovacuum on",
        )
    yield room_for_connections(int(used), int(most), "max_connections")


def _postgres_persistence(
    fsync: str, pages: str, commit: str, unlogged: str
) -> Iterator[HealthCheck]:
    fine = True
    if fsync != "on" or pages != "on":
        fine = False
        off = "fsync" if fsync != "on" else "full_page_writes"
        yield bad(
            "persistence",
            f"{off} is off: a crash of its host may lose locks and corrupt the database",
            f"set {off} on",
        )
    if commit == "off":
        fine = False
        yield warn(
            "persistence",
            "synchronous_commit is off: a crash loses the latest locks",
            f"set it on for the user that takes locks, {CHECK_FENCES}",
        )
    if unlogged:
        fine = False
        yield warn(
            "persistence",
            f"{unlogged}: an UNLOGGED table, which a crash empties",
            "ALTER TABLE … SET LOGGED",
        )
    if fine:
        yield ok("persistence", "fsync, full_page_writes and synchronous_commit are on")


def _standbys(count: int, standbys: str, commit: str) -> HealthCheck:
    if not count:
        return note(
            "replicas", "none: while this server is down nobody can take a lock", "add a standby"
        )
    if not standbys or commit in ("local", "off"):
        return warn(
            "replicas",
            f"{count}, and a commit waits for none of them: after a failover the latest locks may "
            "be missing",
            f"set synchronous_standby_names, {CHECK_FENCES}",
        )
    return ok("replicas", f"{count}, commits wait for {standbys}")


# ---- MariaDB and MySQL -------------------------------------------------------------------------

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


def mysql_checks(endpoint: MySQLEndpoint) -> Iterator[HealthCheck]:
    connection = endpoint.connect(BUDGET)
    try:
        request = ";".join((VARIABLES, STATUS))
        shown, status = connection.run(connection.executing(request), BUDGET)
        replicas = _count_replicas(connection)
    finally:
        connection.close()
    rows = (*shown.rows, *status.rows)
    variables = {name.decode().lower(): value.decode() for name, value in rows}
    yield _version(variables.get("version", ""))
    yield from _mysql_persistence(variables)
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


def _mysql_persistence(variables: dict[str, str]) -> Iterator[HealthCheck]:
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


def _count_replicas(connection: Any) -> int | None:
    """Return how many replicas read the binlog. None: MySQL 9 cannot list its connections while any
    of them executes text that does not fit into three-byte UTF-8."""
    try:
        (found,) = connection.run(connection.executing(REPLICAS), BUDGET)
    except BackendError as error:
        cause = error.__cause__
        if getattr(cause, "code", None) != UNPRINTABLE:
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
