-- Reduce the slots of a hold; its fence and its end stay. The freed slots go to the next waiters.
-- KEYS  holds, queue, waiters
-- ARGV  id, take
-- → {1, fence, rest of its lease} done | {3} not held any more
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local book = open(KEYS[1], KEYS[2], KEYS[3], now, true)
local mine = book.holds[ARGV[1]]
if not mine then
  return { 3 }
end
local take = math.min(mine.take, tonumber(ARGV[2]))
book.taken = book.taken - mine.take + take
mine.take = take
write_tail(mine, mine.wake_address)
write_hold(book, mine)
serve(book)
return { 1, mine.first, mine.ends - now }
