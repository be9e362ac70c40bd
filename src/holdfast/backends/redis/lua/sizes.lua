-- What the law counts with: spliced in where it is first needed (`--@sizes`).
local UNFAIR = 1e15
local KEEP, KEPT = 90000, '90000' -- ms; how long the last fence is remembered: the clock may be set
-- back so far. Numbers that are said as they are have their text beside them: to write one anew costs
-- about as much as a command.
local PLACE, PLACED = 6000000, '6000' -- µs, ms
local REFRESH = 1500000
local FIRST, FIRST_SAID = 5000000, '5000000'
-- The sizes of latches and barriers begin here.
local LATCH = 4294967296
local BARRIER = 8589934592
