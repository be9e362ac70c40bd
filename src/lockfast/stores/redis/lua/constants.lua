-- What the law counts with: spliced in where it is first needed (`--@constants`).
local UNFAIR = 1e15
-- The last fence is remembered for KEEP at least: the clock may be set back so far. To set an expiry
-- is a command of its own, so it is set for KEPT, and again by the first fence in every SPAN: **a
-- name whose last fence is F lives until F's SPAN began, and KEPT**; whoever writes a fence keeps that.
-- One that moves to a server whose clock is behind (a slot that migrates) keeps the rest of its life,
-- not its end, and so loses up to KEEP: what is left is BRIEF, and longer leases set it themselves.
-- ms, and µs. Numbers that are said as they are have their text beside them: to write one anew costs
-- about as much as a command.
local KEEP, BRIEF, SPAN = 90000, 30000, 10000000
local KEPT, KEPT_SAID = 130000, '130000'
local PLACE, PLACED = 6000000, '6000' -- µs, ms
local REFRESH = 1500000
local FIRST, FIRST_SAID = 5000000, '5000000'
-- The sizes of latches and barriers begin here.
local LATCH = 4294967296
local BARRIER = 8589934592
