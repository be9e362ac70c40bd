-- Record that a hold belongs to another process now, or for a while to none ('-').
-- KEYS  holds
-- ARGV  id, lease in µs, attach 1|0, who
-- → {1, fence, lease} done | {3} not held any more, or (attach) another process attached first
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local book = open(KEYS[1], '', '', now, false)
local mine = book.holds[ARGV[1]]
if not mine or (ARGV[3] == '1' and mine.wake_address ~= '-') then
  return { 3 }
end
write_tail(mine, ARGV[3] == '1' and '.' or '-', ARGV[4])
return extend(book, mine, tonumber(ARGV[2]))
