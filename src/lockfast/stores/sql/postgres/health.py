"""Health checks of a PostgreSQL server: is it fit for locks?"""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.stores.health_checks import (
    HealthCheck,
    bad,
    note,
    ok,
    room_for_connections,
    version_of,
    warn,
)
from lockfast.stores.sql.postgres.connections import Address, connect

BUDGET = 5.0
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
CHECK_FENCES = "and check fences wherever it matters"


def health_checks(address: Address) -> Iterator[HealthCheck]:
    connection = connect(address, BUDGET)
    try:
        pooled = connection.pooled
        result = connection.run(connection.executing_script(ASK), BUDGET)
    finally:
        connection.close()
    values = [(result.get_value(0, at) or b"").decode() for at in range(result.nfields)]
    version, fsync, pages, commit, standbys, vacuum, most, used, replicas, unlogged = values
    if version_of(version) < LEAST_VERSION:
        yield warn("version", f"PostgreSQL {version}: not tested", "update it: 12 or later")
    else:
        yield ok("version", f"PostgreSQL {version}")
    yield from _persistence(fsync, pages, commit, unlogged)
    yield _replicas(int(replicas), standbys, commit)
    if pooled:
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


def _persistence(fsync: str, pages: str, commit: str, unlogged: str) -> Iterator[HealthCheck]:
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


def _replicas(count: int, standbys: str, commit: str) -> HealthCheck:
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
