-- Who holds a name and who waits for it. Changes nothing.
-- KEYS  holds, queue, places
-- ARGV  how many waiters to show at most
-- → now, the rows of holds, the rows of those who wait in order
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
return look(open(KEYS[1], KEYS[2], KEYS[3], now, false), tonumber(ARGV[1]))
