"""The tables, and the statements on two of them (`transactions` has the third): one constant per
purpose, with its parameters in the comment above it.

Each statement is a transaction of its own. Its clock is read once, when it starts: if it waits for
a row, this errs on the safe side (a lease that began a little early, a hold that counts as alive a
little longer). The key of a name is its ``hash``.
"""

from __future__ import annotations

# Rows are updated often, and no index covers the columns that change: free space in each page lets
# PostgreSQL update them in place (HOT).
TABLES = """
CREATE TABLE IF NOT EXISTS lockfast_names (
    hash bytea PRIMARY KEY,
    name text NOT NULL,
    version bigint NOT NULL,
    contended boolean NOT NULL,
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
    wake_address text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS lockfast_rows (
    hash bytea NOT NULL,
    id text NOT NULL,
    kind smallint NOT NULL,
    queue_position bigint NOT NULL,
    who text NOT NULL,
    take bigint NOT NULL,
    slots bigint NOT NULL,
    lease double precision NOT NULL,
    fair boolean NOT NULL,
    fence bigint NOT NULL,
    since timestamptz NOT NULL,
    ends timestamptz NOT NULL,
    wake_address text NOT NULL,
    PRIMARY KEY (hash, id)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lockfast_rows_queue ON lockfast_rows (hash, kind, queue_position);
CREATE TABLE IF NOT EXISTS lockfast_transactions (
    hash bytea PRIMARY KEY,
    name text NOT NULL,
    fence bigint NOT NULL,
    used timestamptz NOT NULL
) WITH (fillfactor = 50);
"""
# Two sessions that create them at the same time would collide in the catalog.
MAKE_TABLES = f"BEGIN; {{}} SELECT pg_advisory_xact_lock(7523094284930); {TABLES} COMMIT"

# Asked once per connection: behind a pooler the backend's pid is not the one that libpq was given;
# a standby and a read-only database cannot write locks.
CHECK = "SELECT pg_backend_pid(), current_setting('transaction_read_only'), pg_is_in_recovery()"
# For a connection that a user's function made: end its transaction. (Without one, this warns.)
TAKEN_OVER = "ROLLBACK; SET client_encoding = 'UTF8'"
# Statements are short: none may wait longer than every budget. Plans do not depend on the
# parameters, and planning takes longer than executing. Times are read as whole microseconds, so
# extra_float_digits does not matter.
SETTINGS = (
    "SET statement_timeout = 6000; SET lock_timeout = 6000; "
    "SET default_transaction_isolation = 'read committed'; "
    "SET plan_cache_mode = force_generic_plan"
)

# Behind a pooler, where other clients leave their settings in the session: the defaults of the user
# and the database; and what each statement's transaction begins with ($1 search_path).
DEFAULTS = """
SELECT (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'),
    (SELECT reset_val FROM pg_settings WHERE name = 'search_path')
"""
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
SET_LOCAL = b"""
SELECT set_config('search_path', $1, true), set_config('statement_timeout', '6000', true),
    set_config('lock_timeout', '6000', true)
"""

# $1 hash, $2 name, $3 id, $4 who, $5 take, $6 slots, $7 lease, $8 fair, $9 wake address. Granted if
# there is no live inline hold and the name is not contended. The row is locked while that is
# checked, so of two simultaneous claims the second sees what the first wrote.
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
    wake_address = excluded.wake_address
WHERE NOT n.contended AND (n.id = '' OR n.ends <= excluded.since)
RETURNING fence
"""

# $1 hash, $2 id, $3 who, $4 take, $5 slots, $6 lease, $7 fair, $8 wake address. The same for a name
# whose row exists. Its clock is the statement's start, so both fences are the same.
_US = "greatest(last_fence + 1, (date_part('epoch', statement_timestamp()) * 1000000)::bigint)"
CLAIM_AGAIN = f"""
UPDATE lockfast_names SET
    version = version + 1, last_fence = {_US}, fence = {_US},
    id = $2, who = $3, take = $4, slots = $5, lease = $6, fair = $7,
    since = statement_timestamp(), ends = statement_timestamp() + $6 * interval '1 second',
    wake_address = $8
WHERE hash = $1 AND NOT contended AND (id = '' OR ends <= statement_timestamp())
RETURNING fence
"""

# $1 hash, $2 id. The row is kept for its last fence; the claim id, a secret, is not.
RELEASE_UNCONTENDED = """
UPDATE lockfast_names SET version = version + 1, id = '', ends = clock_timestamp()
WHERE hash = $1 AND id = $2 AND NOT contended AND ends > clock_timestamp()
"""

# $1 hash, $2 id, $3 who, $4 lease, $5 wake address, $6 lease of a waiter. Enqueue a waiter for a
# plain lock that another claim holds: the inline hold is alive, so no waiter can be served, and the
# law would do no more than this.
JOIN = """
WITH held AS (
    UPDATE lockfast_names SET version = version + 1, contended = true
    WHERE hash = $1 AND id NOT IN ('', $2) AND slots = 1 AND ends > clock_timestamp()
    RETURNING version, last_fence, ends, clock_timestamp() AS now
), queued AS (
    INSERT INTO lockfast_rows AS r
    SELECT $1::bytea, $2::text, 1, version, $3::text, 1, 1, $4::float8, true, 0, now,
        now + $6::float8 * interval '1 second', $5::text
    FROM held
    ON CONFLICT (hash, id) DO UPDATE SET ends = excluded.ends, wake_address = excluded.wake_address,
        queue_position = CASE WHEN r.ends > excluded.since THEN r.queue_position
            ELSE excluded.queue_position END
    WHERE r.kind = 1
    RETURNING queue_position
)
SELECT (extract(epoch FROM ends - now) * 1000000)::bigint, last_fence,
    EXISTS (SELECT FROM lockfast_rows AS r, queued
            WHERE r.hash = $1 AND r.kind = 1 AND r.queue_position < queued.queue_position
              AND r.ends > now)::int
FROM held, queued
"""

# $1 the renewals, as JSON: number, hash, id, fence, lease. Names are locked in the order of their
# hashes, and before their rows, as everywhere: so there is no deadlock.
EXTEND = """
WITH requested AS MATERIALIZED (
    SELECT number, decode(hash, 'hex') AS hash, id, fence, lease
    FROM json_to_recordset($1::json)
      AS a(number int, hash text, id text, fence bigint, lease float8)
), locked AS MATERIALIZED (
    SELECT hash FROM lockfast_names WHERE hash IN (SELECT hash FROM requested)
    ORDER BY hash FOR NO KEY UPDATE
), inline_holds AS (
    UPDATE lockfast_names AS n SET
        version = version + 1,
        ends = coalesce(
            (SELECT clock_timestamp() + a.lease * interval '1 second' FROM requested AS a
             WHERE a.hash = n.hash AND a.id = n.id AND a.fence = n.fence
               AND n.ends > clock_timestamp()),
            n.ends)
    WHERE hash IN (SELECT hash FROM locked)
    RETURNING hash, id, fence, ends
), row_holds AS (
    UPDATE lockfast_rows AS r SET ends = clock_timestamp() + a.lease * interval '1 second'
    FROM requested AS a JOIN inline_holds USING (hash)
    WHERE r.hash = a.hash AND r.id = a.id AND r.fence = a.fence AND r.kind = 0
      AND r.ends > clock_timestamp()
    RETURNING a.number
)
SELECT a.number FROM requested AS a JOIN inline_holds AS s USING (hash, id, fence)
WHERE s.ends > clock_timestamp()
UNION ALL SELECT number FROM row_holds
"""

_ROW = """id, who, take, slots, (lease * 1000000)::bigint, fair::int, fence,
    (extract(epoch FROM since) * 1000000)::bigint, (extract(epoch FROM ends) * 1000000)::bigint,
    wake_address"""
# $1 hash, $2 ids, as JSON, $3 limit of each queue. One statement reads one snapshot. The first row
# is the name itself, or only the clock, which is read after the snapshot was taken.
READ = f"""
SELECT -1, coalesce(version, 0), {_ROW}, coalesce(last_fence, 0),
    (extract(epoch FROM now) * 1000000)::bigint
FROM (SELECT clock_timestamp() AS now) AS c LEFT JOIN lockfast_names ON hash = $1
UNION ALL
SELECT kind, queue_position, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 0
UNION ALL
(SELECT kind, queue_position, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 1
 ORDER BY queue_position LIMIT $3)
UNION ALL
(SELECT kind, queue_position, {_ROW}, NULL, NULL FROM lockfast_rows WHERE hash = $1 AND kind = 2
 ORDER BY queue_position LIMIT $3)
UNION ALL
SELECT kind + 10, queue_position, {_ROW}, NULL, NULL FROM lockfast_rows
WHERE hash = $1 AND id IN (SELECT json_array_elements_text($2::json)) AND kind > 0
"""

# $1 hash, $2 the version that was read, $3 new version, $4 contended, $5 last fence, $6 id, $7 who,
# $8 take, $9 slots, $10 lease, $11 fair, $12 fence, $13 since, $14 ends, $15 wake address; as JSON:
# $16 rows to upsert, $17 ids of rows to delete, $18 wake-ups. All of it, or nothing if the version
# has changed. Wake-ups are delivered at the commit, never before: a waiter would trust a grant that
# was then rolled back.
_WRITE = """,
upserted AS (
    INSERT INTO lockfast_rows
    SELECT written.hash, r.id, r.kind, r.queue_position, r.who, r.take, r.slots, r.lease, r.fair,
        r.fence, to_timestamp(0) + r.since * interval '1 microsecond',
        to_timestamp(0) + r.ends * interval '1 microsecond', r.wake_address
    FROM written, json_to_recordset($16::json) AS r(id text, kind smallint, queue_position bigint,
        who text, take bigint, slots bigint, lease float8, fair boolean, fence bigint, since bigint,
        ends bigint, wake_address text)
    ON CONFLICT (hash, id) DO UPDATE SET
        kind = excluded.kind, queue_position = excluded.queue_position,
        who = excluded.who, take = excluded.take, slots = excluded.slots, lease = excluded.lease,
        fair = excluded.fair, fence = excluded.fence, since = excluded.since,
        ends = excluded.ends, wake_address = excluded.wake_address
), deleted AS (
    DELETE FROM lockfast_rows AS r USING written
    WHERE r.hash = written.hash AND r.id IN (SELECT json_array_elements_text($17::json))
), notified AS MATERIALIZED (
    SELECT pg_notify(b.channel, b.message)
    FROM written, json_to_recordset($18::json) AS b(channel text, message text)
)
SELECT (SELECT count(*) FROM written), (SELECT count(*) FROM notified)
"""
WRITE = (
    """
WITH written AS (
    UPDATE lockfast_names SET version = $3, contended = $4, last_fence = $5, id = $6, who = $7,
        take = $8, slots = $9, lease = $10, fair = $11, fence = $12,
        since = to_timestamp(0) + $13::bigint * interval '1 microsecond',
        ends = to_timestamp(0) + $14::bigint * interval '1 microsecond', wake_address = $15
    WHERE hash = $1 AND version = $2
    RETURNING hash
)"""
    + _WRITE
)
# The same for a name without a row; $2 is the name.
WRITE_NEW = (
    """
WITH written AS (
    INSERT INTO lockfast_names VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
        to_timestamp(0) + $13::bigint * interval '1 microsecond',
        to_timestamp(0) + $14::bigint * interval '1 microsecond', $15)
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
       OR (contended AND EXISTS (SELECT FROM lockfast_rows AS r
                             WHERE r.hash = n.hash AND r.ends > clock_timestamp())))
"""

# $1 hash to start after, $2 limit. Names that another statement has locked are skipped. The last
# fence is kept for 90 s: the server's clock may be set back by that much without a fence going
# back.
SWEEP = """
WITH scanned AS MATERIALIZED (
    SELECT hash, name, contended, ends FROM lockfast_names WHERE hash > $1 ORDER BY hash LIMIT $2
), expired AS MATERIALIZED (
    SELECT hash FROM lockfast_names
    WHERE hash IN (SELECT hash FROM scanned) AND NOT contended
      AND ends < clock_timestamp() - interval '90 seconds'
    ORDER BY hash FOR UPDATE SKIP LOCKED
), deleted AS (DELETE FROM lockfast_names WHERE hash IN (SELECT hash FROM expired))
SELECT (SELECT count(*) FROM scanned),
    (SELECT encode(hash, 'hex') FROM scanned ORDER BY hash DESC LIMIT 1), name
FROM (SELECT 1) AS one LEFT JOIN scanned
  ON contended AND ends < clock_timestamp() - interval '90 seconds'
"""

# $1 claims that wait, as JSON: hash, id. Those that were granted, for a `Listener` that polls.
GRANTED = """
WITH requested AS MATERIALIZED (
    SELECT decode(hash, 'hex') AS hash, id FROM json_to_recordset($1::json) AS a(hash text, id text)
)
SELECT id, fence, (extract(epoch FROM ends - since) * 1000000)::bigint
FROM requested JOIN lockfast_names USING (hash, id) WHERE ends > clock_timestamp()
UNION ALL
SELECT id, fence, (extract(epoch FROM ends - since) * 1000000)::bigint
FROM requested JOIN lockfast_rows USING (hash, id) WHERE kind = 0 AND ends > clock_timestamp()
"""
