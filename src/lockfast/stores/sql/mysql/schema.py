"""The tables, and the statements on two of them (`transactions` has the third); one
constant per purpose, each with its parameters.

A parameter (%s) is filled with what `words.literal` writes: digits, or hexadecimal digits in x'…'.
So nothing that anybody said is ever quoted, whatever the server's sql_mode.

The clock is UTC_TIMESTAMP(6), which knows no time zone and stands still within a statement: it is
when the statement started. Waiting for a row makes it err on the safe side (a lease that began a
little early, a hold that is taken for alive a little longer).

Who touches a name locks its row first, by its primary key, and an INSERT … ON DUPLICATE KEY UPDATE
locks it exclusively at once: no two can wait for each other, as those do who read a gap first
(INSERT IGNORE or SELECT … FOR UPDATE of a row that is not there) and fill it then.
"""

from __future__ import annotations

TABLES = (
    """
CREATE TABLE IF NOT EXISTS lockfast_names (
    hash BINARY(32) NOT NULL PRIMARY KEY,
    name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version BIGINT NOT NULL,
    crowd BOOLEAN NOT NULL,
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
    home VARBINARY(32) NOT NULL
) ENGINE = InnoDB
""",
    """
CREATE TABLE IF NOT EXISTS lockfast_rows (
    hash BINARY(32) NOT NULL,
    id VARBINARY(64) NOT NULL,
    kind TINYINT NOT NULL,
    place BIGINT NOT NULL,
    who TEXT CHARACTER SET utf8mb4 NOT NULL,
    take BIGINT NOT NULL,
    slots BIGINT NOT NULL,
    lease DOUBLE NOT NULL,
    fair BOOLEAN NOT NULL,
    fence BIGINT NOT NULL,
    since DATETIME(6) NOT NULL,
    ends DATETIME(6) NOT NULL,
    home VARBINARY(32) NOT NULL,
    PRIMARY KEY (hash, id),
    KEY lockfast_rows_queue (hash, kind, place)
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
# No locks on gaps; a row that stays locked for longer than any budget is waited for by nobody.
SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION innodb_lock_wait_timeout = 6",
)

_NOW = "UTC_TIMESTAMP(6)"
_EPOCH = "TIMESTAMP'1970-01-01 00:00:00'"
_US = f"TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, {_NOW})"
_FREE = f"crowd = 0 AND ends <= {_NOW}"
_COLUMNS = "who, take, slots, lease, fair, fence, since, ends, home"

# hash, name, id, who, take, slots, lease, fair, lease in µs, home.
# Taken if the seat is free and there is no crowd. Assignments are made from left to right, so
# `ends`, which tells whether it was free, comes last. The fence travels in the answer itself as
# the "last insert id". Rows affected: 1 a new name, 2 taken, 0 not free.
CLAIM_UNCONTENDED = f"""
INSERT INTO lockfast_names
    (hash, name, version, crowd, last_fence, id, {_COLUMNS})
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
    home = IF({_FREE}, VALUES(home), home),
    ends = IF({_FREE}, VALUES(ends), ends)
"""

# id, who, take, slots, lease, fair, lease in µs, home, hash. The same for a name that is there. It
# does not matter whether assignments are made one after the other (sql_mode may say otherwise).
CLAIM_AGAIN = f"""
UPDATE lockfast_names SET
    version = version + 1,
    fence = GREATEST(last_fence + 1, {_US}),
    last_fence = LAST_INSERT_ID(GREATEST(last_fence + 1, {_US})),
    id = %s, who = %s, take = %s, slots = %s, lease = %s, fair = %s,
    since = {_NOW}, ends = {_NOW} + INTERVAL %s MICROSECOND, home = %s
WHERE hash = %s AND {_FREE}
"""

# hash, id. The row stays for its last fence, from `since` on; the secret does not.
RELEASE_UNCONTENDED = f"""
UPDATE lockfast_names SET version = version + 1, id = '', since = {_NOW}, ends = {_EPOCH}
WHERE hash = %s AND id = %s AND crowd = 0 AND ends > {_NOW}
"""

# For a plain lock that somebody else holds: the seat lives, so nobody can be served, and the law
# would do no more than this. In one transaction: the name first (hash, id), which locks it; then
# the place (hash, id, who, lease, lease of a place in µs, home, hash, id), unless something else of
# this claim is there; the answer (hash, id, hash, hash). The answer comes before the end, while the
# name is still ours: a moment later its last fence may be the one that this very claim was granted
# under, and who is told of that takes its own grant for an old one.
JOIN = (
    "BEGIN",
    f"""
UPDATE lockfast_names SET version = LAST_INSERT_ID(version + 1), crowd = 1
WHERE hash = %s AND id NOT IN ('', %s) AND slots = 1 AND ends > {_NOW}
""",
    "SET @lockfast_won = ROW_COUNT(), @lockfast_place = LAST_INSERT_ID()",
    f"""
INSERT INTO lockfast_rows (hash, id, kind, place, {_COLUMNS})
SELECT * FROM (
    SELECT %s AS hash, %s AS id, 1 AS kind, @lockfast_place AS place, %s AS who, 1 AS take,
        1 AS slots, %s AS lease, 1 AS fair, 0 AS fence, {_NOW} AS since,
        {_NOW} + INTERVAL %s MICROSECOND AS ends, %s AS home
) AS put
WHERE @lockfast_won = 1 AND NOT EXISTS (
    SELECT 1 FROM lockfast_rows AS other
    WHERE other.hash = %s AND other.id = %s AND other.kind <> 1)
ON DUPLICATE KEY UPDATE
    place = IF(lockfast_rows.ends > {_NOW}, lockfast_rows.place, VALUES(place)),
    ends = VALUES(ends), home = VALUES(home)
""",
    "SET @lockfast_won = @lockfast_won = 1 AND ROW_COUNT() > 0",
    f"""
SELECT TIMESTAMPDIFF(MICROSECOND, {_NOW}, ends), last_fence,
    EXISTS (SELECT 1 FROM lockfast_rows AS r JOIN lockfast_rows AS mine
            ON mine.hash = %s AND mine.id = %s
            WHERE r.hash = %s AND r.kind = 1 AND r.place < mine.place AND r.ends > {_NOW})
FROM lockfast_names WHERE hash = %s AND @lockfast_won = 1
""",
    "COMMIT",
)

# lease in µs, hash, id, fence. Many of these are one transaction, in the order of their hashes, so
# that no two of them wait for each other.
EXTEND = f"""
UPDATE lockfast_names SET version = version + 1, ends = {_NOW} + INTERVAL %s MICROSECOND
WHERE hash = %s AND id = %s AND fence = %s AND ends > {_NOW}
"""

_ROW = f"""id, who, take, slots, lease, fair, fence,
    TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, since), TIMESTAMPDIFF(MICROSECOND, {_EPOCH}, ends), home"""
# hash, hash, hash, limit, hash, limit, hash, ids. One statement sees one moment; the clock is read
# by the next one, so it is not before that moment.
READ = f"""
SELECT -1, version, {_ROW}, last_fence FROM lockfast_names WHERE hash = %s
UNION ALL
SELECT kind, place, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 0
UNION ALL
(SELECT kind, place, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 1
 ORDER BY place LIMIT %s)
UNION ALL
(SELECT kind, place, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND kind = 2
 ORDER BY place LIMIT %s)
UNION ALL
SELECT kind + 10, place, {_ROW}, 0 FROM lockfast_rows WHERE hash = %s AND id IN (%s) AND kind > 0
"""
CLOCK = f"SELECT {_US}"

# A step is written in one transaction, if the version is still the one that was read. Its parts:
# new version, crowd, last fence, id, who, take, slots, lease, fair, fence, since and ends in µs,
# home, hash, the version that was read;
WRITE = f"""
UPDATE lockfast_names SET version = %s, crowd = %s, last_fence = %s, id = %s, who = %s,
    take = %s, slots = %s, lease = %s, fair = %s, fence = %s,
    since = {_EPOCH} + INTERVAL %s MICROSECOND, ends = {_EPOCH} + INTERVAL %s MICROSECOND,
    home = %s
WHERE hash = %s AND version = %s
"""
# or for a name that was not there: hash, name, and the same from the new version to the home (a
# row that came meanwhile is left as it is, and affects none);
WRITE_NEW = f"""
INSERT INTO lockfast_names (hash, name, version, crowd, last_fence, id, {_COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    {_EPOCH} + INTERVAL %s MICROSECOND, {_EPOCH} + INTERVAL %s MICROSECOND, %s)
ON DUPLICATE KEY UPDATE version = version
"""
WON = "SET @lockfast_won = ROW_COUNT()"
# rows to put, joined by UNION ALL;
PUT = (
    f"INSERT INTO lockfast_rows (hash, id, kind, place, {_COLUMNS}) SELECT * FROM (",
    f"""
SELECT %s AS hash, %s AS id, %s AS kind, %s AS place, %s AS who, %s AS take, %s AS slots,
    %s AS lease, %s AS fair, %s AS fence, {_EPOCH} + INTERVAL %s MICROSECOND AS since,
    {_EPOCH} + INTERVAL %s MICROSECOND AS ends, %s AS home
""",
    """
) AS put WHERE @lockfast_won = 1
ON DUPLICATE KEY UPDATE kind = VALUES(kind), place = VALUES(place), who = VALUES(who),
    take = VALUES(take), slots = VALUES(slots), lease = VALUES(lease), fair = VALUES(fair),
    fence = VALUES(fence), since = VALUES(since), ends = VALUES(ends), home = VALUES(home)
""",
)
# hash, ids of rows to take away.
GONE = "DELETE FROM lockfast_rows WHERE hash = %s AND id IN (%s) AND @lockfast_won = 1"

# prefix, prefix.
NAMES = f"""
SELECT name FROM lockfast_names AS n
WHERE LEFT(CAST(name AS BINARY), LENGTH(%s)) = %s
  AND (ends > {_NOW} OR (crowd AND EXISTS (
    SELECT 1 FROM lockfast_rows AS r WHERE r.hash = n.hash AND r.ends > {_NOW})))
"""

# In this order: how far to go (hash to go on from, how many); what is old there and no crowd is
# taken away (the hash again); what was looked at; crowds whose seat is long over (the hash again).
# The last fence is kept for 90 s: so far may the clock be set back without a fence falling.
_OLD = f"ends < {_NOW} - INTERVAL 90 SECOND AND since < {_NOW} - INTERVAL 90 SECOND"
SWEEP = (
    """
SELECT COUNT(*), MAX(hash) INTO @lockfast_looked, @lockfast_to FROM (
    SELECT hash FROM lockfast_names WHERE hash > %s ORDER BY hash LIMIT %s) AS looked
""",
    f"""
DELETE FROM lockfast_names
WHERE hash > %s AND hash <= @lockfast_to AND crowd = 0 AND {_OLD}
""",
    "SELECT @lockfast_looked, @lockfast_to",
    f"""
SELECT name FROM lockfast_names
WHERE hash > %s AND hash <= @lockfast_to AND crowd = 1 AND {_OLD}
""",
)

# hashes, ids. What of it was granted.
GRANTED_SEATS = f"""
SELECT id, fence, TIMESTAMPDIFF(MICROSECOND, since, ends) FROM lockfast_names
WHERE hash IN (%s) AND id IN (%s) AND ends > {_NOW}
"""
GRANTED_ROWS = f"""
SELECT id, fence, TIMESTAMPDIFF(MICROSECOND, since, ends) FROM lockfast_rows
WHERE hash IN (%s) AND id IN (%s) AND kind = 0 AND ends > {_NOW}
"""
