-- Constants of the law: spliced in where they are first needed (`--@constants`).
local UNFAIR = 1e15
-- The last fence is remembered for at least KEEP, since the clock may be set back by that much.
-- Setting an expiry is a command of its own, so it is set for KEPT, and again by the first fence in
-- every SPAN. Every script that writes a fence keeps this invariant: **a name whose last fence is F
-- lives until the start of F's SPAN, plus KEPT**.
-- A name that moves to a server whose clock is behind (a slot migration) keeps its remaining TTL,
-- not its end, and so loses up to KEEP: all moves and set-backs together may take a name back by no
-- more. At least BRIEF is left; longer leases set the expiry anew.
-- KEEP, BRIEF and KEPT are in ms, the others in µs unless named _MS. Numbers that are sent as they
-- are have their text beside them: formatting one costs about as much as a command.
local KEEP, BRIEF, SPAN = 90000, 30000, 10000000
local KEPT, KEPT_TEXT = 130000, '130000'
local WAITER_LEASE, WAITER_LEASE_MS = 6000000, '6000'
local REFRESH = 1500000
local FIRST_LEASE, FIRST_LEASE_TEXT = 5000000, '5000000'
-- The sizes of latches and barriers begin here.
local LATCH = 4294967296
local BARRIER = 8589934592
-- A server whose memory is full refuses commands that may need more, but not after another write in
-- the same script. So scripts that extend rows begin with one that does nothing.
local NOTHING = '.-'
