-- What the law counts with: spliced in where it is first needed (`--@sizes`).
local UNFAIR = 1e15
local KEEP = 90000 -- ms; how long the last fence is remembered: the clock may be set back so far
local PLACE = 6000000
local REFRESH = 1500000
local FIRST = 5000000
-- The sizes of latches and barriers begin here.
local LATCH = 4294967296
local BARRIER = 8589934592
