-- Show the holders and the waiters of a name. Read-only.
-- KEYS  holds, queue, waiters
-- ARGV  how many waiters to show at most
-- → now, the rows of the holds, the rows of the waiters in queue order
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
return snapshot(open(KEYS[1], KEYS[2], KEYS[3], now, false), tonumber(ARGV[1]))
