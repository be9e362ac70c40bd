"""The tables, and the statements on two of them (`transactions` has the third): one constant per
purpose, with its parameters in the comment above it.

A parameter (%s) is filled by `dialect.literal`, with digits or with hexadecimal digits in x'…'. So
no input is ever quoted, whatever the server's sql_mode.

The clock is UTC_TIMESTAMP(6), which is independent of the time zone and constant within a
statement: the time at which the statement started. If the statement waits for a row, this errs on
the safe side (a lease that began a little early, a hold that counts as alive a little longer).

Every statement that writes to a name locks the name's row first, by its primary key, and INSERT …
ON DUPLICATE KEY UPDATE locks it exclusively at once. So no two statements wait for each other, as
they do if they first lock a gap (INSERT IGNORE or SELECT … FOR UPDATE of a missing row) and then
fill it.
"""

from __future__ import annotations

TABLES = (
    """
CREATE TABLE IF NOT EXISTS lockfast_names (
    hash BINARY(32) NOT NULL PRIMARY KEY,
    name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version BIGINT NOT NULL,
    contended BOOLEAN NOT NULL,
    last_fence BIGINT NOT NULL,
    id VARBINARY(64) NOT NULL,
    who TEXT CHARACTER SET utf8mb4 NOT NULL,
    take BIGINT NOT NULL,
    slots BIGINT NOT NULL,
    lease DOUBLE NOT NULL,
    fair BOOLEAN NOT NULL,
    fence BIGINT NOT NULL,
    since DATETIME(6) NOT NULL,
    ends DATETIME(6) NOT NULL,
    wake_address VARBINARY(32) NOT NULL
) ENGINE = InnoDB
""",
    """
CREATE TABLE IF NOT EXISTS lockfast_rows (
    hash BINARY(32) NOT NULL,
    id VARBINARY(64) NOT NULL,
    kind TINYINT NOT NULL,
    queue_position BIGINT NOT NULL,
    who TEXT CHARACTER SET utf8mb4 NOT NULL,
    take BIGINT NOT NULL,
    slots BIGINT NOT NULL,
    lease DOUBLE NOT NULL,
    fair BOOLEAN NOT NULL,
    fence BIGINT NOT NULL,
    since DATETIME(6) NOT NULL,
    ends DATETIME(6) NOT NULL,
    wake_address VARBINARY(32) NOT NULL,
    PRIMARY KEY (hash, id),
    KEY lockfast_rows_queue (hash, kind, queue_position)
) ENGINE = InnoDB
""",
    """
CREATE TABLE IF NOT EXISTS lockfast_transactions (
    hash BINARY(32) NOT NULL PRIMARY KEY,
    name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fence BIGINT NOT NULL,
    used DATETIME(6) NOT NULL
) ENGINE = InnoDB
""",
)

CHECK = """
SHOW VARIABLES WHERE Variable_name IN
    ('read_only', 'super_read_only', 'innodb_read_only', 'transaction_read_only', 'tx_read_only',
     'wsrep_on', 'group_replication_single_primary_mode')
"""
# Statements must mean the same whatever the server's defaults are: sql_mode decides the syntax and
# the order of assignments, sql_select_limit hides rows of a name from the law, and with
# completion_type CHAIN a COMMIT begins a transaction that nobody commits. Then: no gap locks, and
# no wait for a row that outlasts every budget.
SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', completion_type = 0, "
    "sql_select_limit = 18446744073709551615, autocommit = 1, timestamp = DEFAULT, "
    "sql_safe_updates = 0, sql_big_selects = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION innodb_lock_wait_timeout = 6",
)

_NOW = "UTC_TIMESTAMP(6)"
_EPOCH = "TIMESTAMP'1970-01-01 00:00:00'"
_US = f"TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, {_NOW})"
_FREE = f"contended = 0 AND ends <= {_NOW}"
_COLUMNS = "who, take, slots, lease, fair, fence, since, ends, wake_address"

# hash, name, id, who, take, slots, lease, fair, lease in µs, wake address. Granted if there is no
# live inline hold and the name is not contended. Assignments are made from left to right, so
# `ends`, which decides whether the name was free, comes last. The fence is returned in the reply as
# the "last insert id". Rows affected: 1 new name, 2 granted, 0 not free.
CLAIM_UNCONTENDED = f"""
INSERT INTO lockfast_names
    (hash, name, version, contended, last_fence, id, {_COLUMNS})
VALUES (%s, %s, {_US}, 0, LAST_INSERT_ID({_US}), %s, %s, %s, %s, %s, %s, {_US}, {_NOW},
    {_NOW} + INTERVAL %s MICROSECOND, %s)
ON DUPLICATE KEY UPDATE
    version = IF({_FREE}, version + 1, version),
    last_fence = IF({_FREE}, LAST_INSERT_ID(GREATEST(last_fence + 1, {_US})), last_fence),
    fence = IF({_FREE}, last_fence, fence),
    id = IF({_FREE}, VALUES(id), id),
    who = IF({_FREE}, VALUES(who), who),
    take = IF({_FREE}, VALUES(take), take),
    slots = IF({_FREE}, VALUES(slots), slots),
    lease = IF({_FREE}, VALUES(lease), lease),
    fair = IF({_FREE}, VALUES(fair), fair),
    since = IF({_FREE}, VALUES(since), since),
    wake_address = IF({_FREE}, VALUES(wake_address), wake_address),
    ends = IF({_FREE}, VALUES(ends), ends)
"""

# id, who, take, slots, lease, fair, lease in µs, wake address, hash. The same for a name whose row
# exists. Does not depend on the order of assignments (sql_mode may make them simultaneous).
CLAIM_AGAIN = f"""
UPDATE lockfast_names SET
    version = version + 1,
    fence = GREATEST(last_fence + 1, {_US}),
    last_fence = LAST_INSERT_ID(GREATEST(last_fence + 1, {_US})),
    id = %s, who = %s, take = %s, slots = %s, lease = %s, fair = %s,
    since = {_NOW}, ends = {_NOW} + INTERVAL %s MICROSECOND, wake_address = %s
WHERE hash = %s AND {_FREE}
"""

# hash, id. The row is kept for its last fence, from `since` on; the claim id, a secret, is not.
RELEASE_UNCONTENDED = f"""
UPDATE lockfast_names SET version = version + 1, id = '', since = {_NOW}, ends = {_EPOCH}
WHERE hash = %s AND id = %s AND contended = 0 AND ends > {_NOW}
"""

# Enqueue a waiter for a plain lock that another claim holds: the inline hold is alive, so no waiter
# can be served, and the law would do no more than this. In one transaction: update the name (hash,
# id), which locks it; insert the waiter (hash, id, who, lease, lease of a waiter in µs, wake
# address, hash, id), unless the claim has a row of another kind; read the reply (hash, id, hash,
# hash). The reply is read before the COMMIT, while the name is still locked: a moment later the
# last fence may be that of this claim's own grant, and the waiter would take its grant for an old
# one.
JOIN = (
    "BEGIN",
    f"""
UPDATE lockfast_names SET version = LAST_INSERT_ID(version + 1), contended = 1
WHERE hash = %s AND id NOT IN ('', %s) AND slots = 1 AND ends > {_NOW}
""",
    "SET @lockfast_written = ROW_COUNT(), @lockfast_position = LAST_INSERT_ID()",
    f"""
INSERT INTO lockfast_rows (hash, id, kind, queue_position, {_COLUMNS})
SELECT * FROM (
    SELECT %s AS hash, %s AS id, 1 AS kind, @lockfast_position AS queue_position, %s AS who,
        1 AS take, 1 AS slots, %s AS lease, 1 AS fair, 0 AS fence, {_NOW} AS since,
        {_NOW} + INTERVAL %s MICROSECOND AS ends, %s AS wake_address
) AS put
WHERE @lockfast_written = 1 AND NOT EXISTS (
    SELECT 1 FROM lockfast_rows AS other
    WHERE other.hash = %s AND other.id = %s AND other.kind <> 1)
ON DUPLICATE KEY UPDATE
    queue_position = IF(lockfast_rows.ends > {_NOW},
        lockfast_rows.queue_position, VALUES(queue_position)),
    ends = VALUES(ends), wake_address = VALUES(wake_address)
""",
    "SET @lockfast_written = @lockfast_written = 1 AND ROW_COUNT() > 0",
    f"""
SELECT TIMESTAMPDIFF(MICROSECOND, {_NOW}, ends), last_fence,
    EXISTS (SELECT 1 FROM lockfast_rows AS r JOIN lockfast_rows AS mine
            ON mine.hash = %s AND mine.id = %s
            WHERE r.hash = %s AND r.kind = 1 AND r.queue_position < mine.queue_position
              AND r.ends > {_NOW})
FROM lockfast_names WHERE hash = %s AND @lockfast_written = 1
""",
    "COMMIT",
)

# lease in µs, hash, id, fence. A batch is one transaction, in the order of the hashes, so that no
# two batches wait for each other.
EXTEND = f"""
UPDATE lockfast_names SET version = version + 1, ends = {_NOW} + INTERVAL %s MICROSECOND
WHERE hash = %s AND id = %s AND fence = %s AND ends > {_NOW}
"""

_ROW = f"""id, who, take, slots, CAST(ROUND(lease * 1000000) AS SIGNED), fair, fence,
    TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, since), TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, ends),
    wake_address"""
# hash, hash, hash, limit, hash, limit, hash, ids. One statement reads one snapshot; the clock is
# read by the next statement, so it is not before that snapshot.
READ = f"""
SELECT -1, version, {_ROW}, last_fence FROM lockfast_names WHERE hash = %s
UNION ALL
SELECT kind, queue_position, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 0
UNION ALL
(SELECT kind, queue_position, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 1
 ORDER BY queue_position LIMIT %s)
UNION ALL
(SELECT kind, queue_position, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 2
 ORDER BY queue_position LIMIT %s)
UNION ALL
SELECT kind + 10, queue_position, {_ROW}, 0 FROM lockfast_rows
WHERE hash = %s AND id IN (%s) AND kind > 0
"""
CLOCK = f"SELECT {_US}"

# A step is written in one transaction, if the version is still the one that was read. Its parts:
# the name (new version, contended, last fence, id, who, take, slots, lease, fair, fence, since and
# ends in µs, wake address, hash, version that was read);
WRITE = f"""
UPDATE lockfast_names SET version = %s, contended = %s, last_fence = %s, id = %s, who = %s,
    take = %s, slots = %s, lease = %s, fair = %s, fence = %s,
    since = {_EPOCH} + INTERVAL %s MICROSECOND, ends = {_EPOCH} + INTERVAL %s MICROSECOND,
    wake_address = %s
WHERE hash = %s AND version = %s
"""
# or a name without a row (hash, name, and the same from the new version to the wake address; a row
# inserted meanwhile is left as it is, and counts as 0 rows affected);
WRITE_NEW = f"""
INSERT INTO lockfast_names (hash, name, version, contended, last_fence, id, {_COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    {_EPOCH} + INTERVAL %s MICROSECOND, {_EPOCH} + INTERVAL %s MICROSECOND, %s)
ON DUPLICATE KEY UPDATE version = version
"""
WRITTEN = "SET @lockfast_written = ROW_COUNT()"
# the rows to upsert, joined by UNION ALL;
UPSERT = (
    f"INSERT INTO lockfast_rows (hash, id, kind, queue_position, {_COLUMNS}) SELECT * FROM (",
    f"""
SELECT %s AS hash, %s AS id, %s AS kind, %s AS queue_position, %s AS who, %s AS take, %s AS slots,
    %s AS lease, %s AS fair, %s AS fence, {_EPOCH} + INTERVAL %s MICROSECOND AS since,
    {_EPOCH} + INTERVAL %s MICROSECOND AS ends, %s AS wake_address
""",
    """ ) AS put WHERE @lockfast_written = 1 ON DUPLICATE KEY UPDATE kind = VALUES(kind),
    queue_position = VALUES(queue_position), who = VALUES(who), take = VALUES(take), slots =
    VALUES(slots), lease = VALUES(lease), fair = VALUES(fair), fence = VALUES(fence), since =
    VALUES(since), ends = VALUES(ends), wake_address = VALUES(wake_address) """,
)
# the rows to delete (hash, ids).
DELETE = "DELETE FROM lockfast_rows WHERE hash = %s AND id IN (%s) AND @lockfast_written = 1"

# prefix, prefix.
NAMES = f"""
SELECT name FROM lockfast_names AS n
WHERE LEFT(CAST(name AS BINARY), LENGTH(%s)) = %s
  AND (ends > {_NOW} OR (contended AND EXISTS (
    SELECT 1 FROM lockfast_rows AS r WHERE r.hash = n.hash AND r.ends > {_NOW})))
"""

# In this order: find the range to scan (hash to start after, limit); delete old, uncontended names
# in it (the hash again); return the range; return contended names whose inline hold ended long ago
# (the hash again). The last fence is kept for 90 s: the clock may be set back by that much without
# a fence going back.
_OLD = f"ends < {_NOW} - INTERVAL 90 SECOND AND since < {_NOW} - INTERVAL 90 SECOND"
SWEEP = (
    """
SELECT COUNT(*), MAX(hash) INTO @lockfast_scanned, @lockfast_last FROM (
    SELECT hash FROM lockfast_names WHERE hash > %s ORDER BY hash LIMIT %s) AS scanned
""",
    f"""
DELETE FROM lockfast_names
WHERE hash > %s AND hash <= @lockfast_last AND contended = 0 AND {_OLD}
""",
    "SELECT @lockfast_scanned, HEX(@lockfast_last)",
    f"""
SELECT name FROM lockfast_names
WHERE hash > %s AND hash <= @lockfast_last AND contended = 1 AND {_OLD}
""",
)

# hashes, ids. Those that were granted, for a `Listener` that polls.
GRANTED_INLINE = f"""
SELECT id, fence, TIMESTAMPDIFF(MICROSECOND, since, ends) FROM lockfast_names
WHERE hash IN (%s) AND id IN (%s) AND ends > {_NOW}
"""
GRANTED_ROWS = f"""
SELECT id, fence, TIMESTAMPDIFF(MICROSECOND, since, ends) FROM lockfast_rows
WHERE hash IN (%s) AND id IN (%s) AND kind = 0 AND ends > {_NOW}
"""
