"""Is this MariaDB or MySQL fit for locks? What it says of itself, judged."""

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
from lockfast.stores.sql.mysql.connections import Address, Link, code_and_words, connect

BUDGET = 5.0
LEAST = {"MariaDB": (10, 6), "MySQL": (8,)}
VARIABLES = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format',
     'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')
"""
STATUS = "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'"
# Who reads the log is a replica. Without the right to see others' threads there seem to be none.
REPLICAS = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
UNWRITABLE = 3854
CHECK_FENCES = "and let everything that matters check fences"


def health_checks(address: Address) -> Iterator[HealthCheck]:
    link = connect(address, BUDGET)
    try:
        variables, status = link.ask(";".join((VARIABLES, STATUS)), BUDGET)
        replicas = _seen(link)
    finally:
        link.close()
    said = {str(name).lower(): str(value) for name, value in (*variables.rows, *status.rows)}
    yield _version(said.get("version", ""))
    yield from _persistence(said)
    yield _replicas(replicas, said)
    if said.get("log_bin") == "ON" and said.get("binlog_format") == "STATEMENT":
        yield bad(
            "binlog",
            "binlog_format is STATEMENT: it refuses what is read committed",
            "set binlog_format to MIXED or ROW",
        )
    yield room_for_connections(
        int(said.get("threads_connected", 0)),
        int(said.get("max_connections", 0)),
        "max_connections",
    )


def _version(version: str) -> HealthCheck:
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    number = version.split("-")[0]
    if version_of(number) < LEAST[kind]:
        least = ".".join(map(str, LEAST[kind]))
        return warn("version", f"{kind} {number}: not tested", f"update it: {least} or later")
    return ok("version", f"{kind} {number}")


def _persistence(said: dict[str, str]) -> Iterator[HealthCheck]:
    pace = said.get("innodb_flush_log_at_trx_commit", "1")
    if pace not in ("1", "3"):
        yield warn(
            "persistence",
            f"innodb_flush_log_at_trx_commit is {pace}: a crash of its host forgets the locks of "
            "the last second",
            f"set it to 1, {CHECK_FENCES}",
        )
    else:
        yield ok("persistence", f"innodb_flush_log_at_trx_commit is {pace}")


def _seen(link: Link) -> int | None:
    """How many read its log. None: MySQL 9 does not tell while anybody at all executes what cannot
    be written in three bytes a letter."""
    try:
        (found,) = link.ask(REPLICAS, BUDGET)
    except BackendError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception) or code_and_words(cause)[0] != UNWRITABLE:
            raise
        return None
    return int(found.rows[0][0])


def _replicas(count: int | None, said: dict[str, str]) -> HealthCheck:
    if count is None:
        return note("replicas", "unknown: it could not list its connections just now", "ask again")
    if not count:
        return note(
            "replicas", "none was seen: while this server is away nobody can take a lock", ""
        )
    waits = {said.get(f"rpl_semi_sync_{word}_enabled") for word in ("master", "source")}
    if "ON" not in waits:
        return warn(
            "replicas",
            f"{count}, and a commit does not wait for any: one that takes over may not know the "
            "last locks",
            f"use semi-synchronous replication, {CHECK_FENCES}",
        )
    return ok("replicas", f"{count}, semi-synchronous")
