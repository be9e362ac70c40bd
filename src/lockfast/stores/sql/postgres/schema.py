"""The tables, and the statements on two of them (`transactions` has the third); one
constant per purpose, its parameters numbered.

Each is a transaction of its own. Its clock is read once, when it starts: what somebody else did
while it waited for a row makes it err on the safe side (a lease that began a little early, a hold
that is taken for alive a little longer). Names are known by ``hash``.
"""

from __future__ import annotations

# Many rows are written again and again and no index tells of what changes: room beside them lets
# PostgreSQL do that in place (HOT).
TABLES = """
CREATE TABLE IF NOT EXISTS lockfast_names (
    hash bytea PRIMARY KEY,
    name text NOT NULL,
    version bigint NOT NULL,
    crowd boolean NOT NULL,
    last_fence bigint NOT NULL,
    id text NOT NULL,
    who text NOT NULL,
    take bigint NOT NULL,
    slots bigint NOT NULL,
    lease double precision NOT NULL,
    fair boolean NOT NULL,
    fence bigint NOT NULL,
    since timestamptz NOT NULL,
    ends timestamptz NOT NULL,
    home text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS lockfast_rows (
    hash bytea NOT NULL,
    id text NOT NULL,
    kind smallint NOT NULL,
    place bigint NOT NULL,
    who text NOT NULL,
    take bigint NOT NULL,
    slots bigint NOT NULL,
    lease double precision NOT NULL,
    fair boolean NOT NULL,
    fence bigint NOT NULL,
    since timestamptz NOT NULL,
    ends timestamptz NOT NULL,
    home text NOT NULL,
    PRIMARY KEY (hash, id)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lockfast_rows_queue ON lockfast_rows (hash, kind, place);
CREATE TABLE IF NOT EXISTS lockfast_transactions (
    hash bytea PRIMARY KEY,
    name text NOT NULL,
    fence bigint NOT NULL,
    used timestamptz NOT NULL
) WITH (fillfactor = 50);
"""
# Two that make them at once would collide in the catalogue.
MAKE_TABLES = f"BEGIN; SELECT pg_advisory_xact_lock(7523094284930); {TABLES} COMMIT"

# What a connection is, asked once: behind a pooler it is not the one that we were told of; a
# standby and a read-only database cannot lock.
CHECK = "SELECT pg_backend_pid(), current_setting('transaction_read_only'), pg_is_in_recovery()"
# Of a connection that somebody else made: its transaction is not ours. (Without one it warns.)
TAKEN_OVER = "ROLLBACK; SET client_encoding = 'UTF8'"
# Steps are short. One that waits longer than any budget waits for nobody. Plans do not depend on
# what is asked for, and making one takes longer than the statement.
SETTINGS = (
    "SET statement_timeout = 6000; SET lock_timeout = 6000; "
    "SET default_transaction_isolation = 'read committed'; "
    "SET plan_cache_mode = force_generic_plan"
)

# $1 hash, $2 name, $3 id, $4 who, $5 take, $6 slots, $7 lease, $8 fair, $9 home.
# Taken if the seat is free and there is no crowd: the row is locked while that is looked at, so of
# two who ask at once the second sees what the first wrote.
CLAIM_UNCONTENDED = """
INSERT INTO lockfast_names AS n
SELECT $1::bytea, $2::text, c.us, false, c.us, $3::text, $4::text, $5::bigint, $6::bigint,
       $7::float8, $8::boolean, c.us, c.now, c.now + $7 * interval '1 second', $9::text
FROM (SELECT now, (extract(epoch FROM now) * 1000000)::bigint AS us
      FROM clock_timestamp() AS now) AS c
ON CONFLICT (hash) DO UPDATE SET
    version = n.version + 1,
    last_fence = greatest(n.last_fence + 1, excluded.fence),
    fence = greatest(n.last_fence + 1, excluded.fence),
    id = excluded.id, who = excluded.who, take = excluded.take, slots = excluded.slots,
    lease = excluded.lease, fair = excluded.fair, since = excluded.since, ends = excluded.ends,
    home = excluded.home
WHERE NOT n.crowd AND (n.id = '' OR n.ends <= excluded.since)
RETURNING fence
"""

# $1 hash, $2 id, $3 who, $4 take, $5 slots, $6 lease, $7 fair, $8 home. The same for a name that is
# there. Its clock is that of the statement's start, so both fences are the same.
_US = "greatest(last_fence + 1, (date_part('epoch', statement_timestamp()) * 1000000)::bigint)"
CLAIM_AGAIN = f"""
UPDATE lockfast_names SET
    version = version + 1, last_fence = {_US}, fence = {_US},
    id = $2, who = $3, take = $4, slots = $5, lease = $6, fair = $7,
    since = statement_timestamp(), ends = statement_timestamp() + $6 * interval '1 second',
    home = $8
WHERE hash = $1 AND NOT crowd AND (id = '' OR ends <= statement_timestamp())
RETURNING fence
"""

# $1 hash, $2 id. The row stays for its last fence; the secret does not.
RELEASE_UNCONTENDED = """
UPDATE lockfast_names SET version = version + 1, id = '', ends = clock_timestamp()
WHERE hash = $1 AND id = $2 AND NOT crowd AND ends > clock_timestamp()
"""

# $1 hash, $2 id, $3 who, $4 lease, $5 home, $6 lease of a place. For a plain lock that somebody
# else holds: the seat lives, so nobody can be served, and the law would do no more than this.
JOIN = """
WITH seat AS (
    UPDATE lockfast_names SET version = version + 1, crowd = true
    WHERE hash = $1 AND id NOT IN ('', $2) AND slots = 1 AND ends > clock_timestamp()
    RETURNING version, last_fence, ends, clock_timestamp() AS now
), placed AS (
    INSERT INTO lockfast_rows AS r
    SELECT $1::bytea, $2::text, 1, version, $3::text, 1, 1, $4::float8, true, 0, now,
        now + $6::float8 * interval '1 second', $5::text
    FROM seat
    ON CONFLICT (hash, id) DO UPDATE SET ends = excluded.ends, home = excluded.home,
        place = CASE WHEN r.ends > excluded.since THEN r.place ELSE excluded.place END
    WHERE r.kind = 1
    RETURNING place
)
SELECT extract(epoch FROM ends - now)::float8, last_fence,
    EXISTS (SELECT FROM lockfast_rows AS r, placed
            WHERE r.hash = $1 AND r.kind = 1 AND r.place < placed.place AND r.ends > now)
FROM seat, placed
"""

# $1 what is renewed, as JSON: number, hash, id, fence, lease. Names are locked in the order of
# their hashes, and before their rows, as everywhere: so nobody waits for each other in a circle.
EXTEND = """
WITH asked AS MATERIALIZED (
    SELECT number, decode(hash, 'hex') AS hash, id, fence, lease
    FROM json_to_recordset($1::json)
      AS a(number int, hash text, id text, fence bigint, lease float8)
), locked AS MATERIALIZED (
    SELECT hash FROM lockfast_names WHERE hash IN (SELECT hash FROM asked)
    ORDER BY hash FOR NO KEY UPDATE
), seats AS (
    UPDATE lockfast_names AS n SET
        version = version + 1,
        ends = coalesce(
            (SELECT clock_timestamp() + a.lease * interval '1 second' FROM asked AS a
             WHERE a.hash = n.hash AND a.id = n.id AND a.fence = n.fence
               AND n.ends > clock_timestamp()),
            n.ends)
    WHERE hash IN (SELECT hash FROM locked)
    RETURNING hash, id, fence, ends
), others AS (
    UPDATE lockfast_rows AS r SET ends = clock_timestamp() + a.lease * interval '1 second'
    FROM asked AS a JOIN seats USING (hash)
    WHERE r.hash = a.hash AND r.id = a.id AND r.fence = a.fence AND r.kind = 0
      AND r.ends > clock_timestamp()
    RETURNING a.number
)
SELECT a.number FROM asked AS a JOIN seats AS s USING (hash, id, fence)
WHERE s.ends > clock_timestamp()
UNION ALL SELECT number FROM others
"""

_ROW = """id, who, take, slots, lease, fair, fence,
    extract(epoch FROM since)::float8, extract(epoch FROM ends)::float8, home"""
# $1 hash, $2 ids, as JSON, $3 how many of each queue. One statement sees one moment. The first row
# is the name itself, or nothing but the clock, which is read when that moment is fixed already.
READ = f"""
SELECT -1, coalesce(n.version, 0), n.id, n.who, n.take, n.slots, n.lease, n.fair, n.fence,
    extract(epoch FROM n.since)::float8, extract(epoch FROM n.ends)::float8, n.home,
    extract(epoch FROM c.now)::float8, coalesce(n.last_fence, 0)
FROM (SELECT clock_timestamp() AS now) AS c LEFT JOIN lockfast_names AS n ON n.hash = $1
UNION ALL
SELECT kind, place, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 0
UNION ALL
(SELECT kind, place, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 1
 ORDER BY place LIMIT $3)
UNION ALL
(SELECT kind, place, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 2
 ORDER BY place LIMIT $3)
UNION ALL
SELECT kind + 10, place, {_ROW}, NULL, NULL FROM lockfast_rows
WHERE hash = $1 AND id IN (SELECT json_array_elements_text($2::json)) AND kind > 0
"""

# $1 hash, $2 the version that was read, $3 new version, $4 crowd, $5 last fence, $6 id, $7 who,
# $8 take, $9 slots, $10 lease, $11 fair, $12 fence, $13 since, $14 ends, $15 home; as JSON: $16
# rows to put, $17 ids of rows to take away, $18 bells. All of it, or nothing, if the version is
# another. Bells are delivered when it is committed, never before: one for a grant that was undone
# would be believed.
_WRITE = """,
put AS (
    INSERT INTO lockfast_rows
    SELECT won.hash, r.id, r.kind, r.place, r.who, r.take, r.slots, r.lease, r.fair, r.fence,
        to_timestamp(r.since), to_timestamp(r.ends), r.home
    FROM won, json_to_recordset($16::json) AS r(id text, kind smallint, place bigint, who text,
        take bigint, slots bigint, lease float8, fair boolean, fence bigint, since float8,
        ends float8, home text)
    ON CONFLICT (hash, id) DO UPDATE SET kind = excluded.kind, place = excluded.place,
        who = excluded.who, take = excluded.take, slots = excluded.slots, lease = excluded.lease,
        fair = excluded.fair, fence = excluded.fence, since = excluded.since,
        ends = excluded.ends, home = excluded.home
), gone AS (
    DELETE FROM lockfast_rows AS r USING won
    WHERE r.hash = won.hash AND r.id IN (SELECT json_array_elements_text($17::json))
), rung AS MATERIALIZED (
    SELECT pg_notify(b.channel, b.message)
    FROM won, json_to_recordset($18::json) AS b(channel text, message text)
)
SELECT (SELECT count(*) FROM won), (SELECT count(*) FROM rung)
"""
WRITE = (
    """
WITH won AS (
    UPDATE lockfast_names SET version = $3, crowd = $4, last_fence = $5, id = $6, who = $7,
        take = $8, slots = $9, lease = $10, fair = $11, fence = $12, since = to_timestamp($13),
        ends = to_timestamp($14), home = $15
    WHERE hash = $1 AND version = $2
    RETURNING hash
)"""
    + _WRITE
)
# The same for a name that was not there; $2 is the name.
WRITE_NEW = (
    """
WITH won AS (
    INSERT INTO lockfast_names VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
        to_timestamp($13), to_timestamp($14), $15)
    ON CONFLICT (hash) DO NOTHING
    RETURNING hash
)"""
    + _WRITE
)

# $1 prefix.
NAMES = """
SELECT name FROM lockfast_names AS n
WHERE starts_with(name, $1)
  AND ((id <> '' AND ends > clock_timestamp())
       OR (crowd AND EXISTS (SELECT FROM lockfast_rows AS r
                             WHERE r.hash = n.hash AND r.ends > clock_timestamp())))
"""

# $1 hash to go on from, $2 how many to look at. Who is at work on a name is not waited for. The
# last fence is kept for 90 s: so far may the server's clock be set back without a fence falling.
SWEEP = """
WITH looked AS MATERIALIZED (
    SELECT hash, name, crowd, ends FROM lockfast_names WHERE hash > $1 ORDER BY hash LIMIT $2
), old AS MATERIALIZED (
    SELECT hash FROM lockfast_names
    WHERE hash IN (SELECT hash FROM looked) AND NOT crowd
      AND ends < clock_timestamp() - interval '90 seconds'
    ORDER BY hash FOR UPDATE SKIP LOCKED
), gone AS (DELETE FROM lockfast_names WHERE hash IN (SELECT hash FROM old))
SELECT (SELECT count(*) FROM looked),
    (SELECT encode(hash, 'hex') FROM looked ORDER BY hash DESC LIMIT 1), name
FROM (SELECT 1) AS one LEFT JOIN looked
  ON crowd AND ends < clock_timestamp() - interval '90 seconds'
"""

# $1 what is waited for, as JSON: hash, id. What of it was granted. For who cannot be rung.
GRANTED = """
WITH asked AS MATERIALIZED (
    SELECT decode(hash, 'hex') AS hash, id FROM json_to_recordset($1::json) AS a(hash text, id text)
)
SELECT id, fence, extract(epoch FROM ends - since)::float8
FROM asked JOIN lockfast_names USING (hash, id) WHERE ends > clock_timestamp()
UNION ALL
SELECT id, fence, extract(epoch FROM ends - since)::float8
FROM asked JOIN lockfast_rows USING (hash, id) WHERE kind = 0 AND ends > clock_timestamp()
"""
