"""Is this PostgreSQL fit for locks? What it says of itself, judged."""

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
CHECK_FENCES = "and let everything that matters check fences"


def health_checks(address: Address) -> Iterator[HealthCheck]:
    link = connect(address, BUDGET)
    try:
        pooled = link.pooled
        result = link.run(link.saying(ASK), BUDGET)
    finally:
        link.close()
    said = [(result.get_value(0, at) or b"").decode() for at in range(result.nfields)]
    version, fsync, pages, commit, standbys, vacuum, most, used, replicas, unlogged = said
    if version_of(version) < LEAST_VERSION:
        yield warn("version", f"PostgreSQL {version}: not tested", "update it: 12 or later")
    else:
        yield ok("version", f"PostgreSQL {version}")
    yield from _persistence(fsync, pages, commit, unlogged)
    yield _replicas(int(replicas), standbys, commit)
    if pooled:
        yield note(
            "pooler",
            "a pooler in transaction mode (PgBouncer) stands between: locks are safe, but bells "
            "cannot be pushed through it, so who waits looks several times a second",
            "give the database's own address for locks, or a pool in session mode",
        )
    if vacuum != "on":
        yield warn(
            "autovacuum",
            "it is off: rows that change with every lock are never cleaned up, and steps get slow",
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
            f"{off} is off: a crash of its host may forget locks and break the database",
            f"set {off} on",
        )
    if commit == "off":
        fine = False
        yield warn(
            "persistence",
            "synchronous_commit is off: a crash forgets the locks of the last moments",
            f"set it on for the user that takes locks, {CHECK_FENCES}",
        )
    if unlogged:
        fine = False
        yield warn(
            "persistence",
            f"{unlogged}: made unlogged, and emptied by a crash",
            "ALTER TABLE … SET LOGGED",
        )
    if fine:
        yield ok("persistence", "fsync, full_page_writes and synchronous_commit are on")


def _replicas(count: int, standbys: str, commit: str) -> HealthCheck:
    if not count:
        return note(
            "replicas", "none: while this server is away nobody can take a lock", "add a standby"
        )
    if not standbys or commit in ("local", "off"):
        return warn(
            "replicas",
            f"{count}, and a commit does not wait for any: one that takes over may not know the "
            "last locks",
            f"set synchronous_standby_names, {CHECK_FENCES}",
        )
    return ok("replicas", f"{count}, commits wait for {standbys}")
