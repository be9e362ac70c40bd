-- Withdraw a waiter, or the grant that crossed its withdrawal. Idempotent.
-- KEYS  holds, queue, waiters
-- ARGV  id, how many waiters to show at most
-- → the remaining rows, as in inspect.lua, and 1 if a grant had crossed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local book = open(KEYS[1], KEYS[2], KEYS[3], now, true)
local mine = book.holds[ARGV[1]]
if mine then
  redis.call('HDEL', KEYS[1], mine.id)
  book.holds[mine.id] = nil
  book.taken = book.taken - mine.take
else
  dequeue(book, ARGV[1])
end
serve(book)
local seen = snapshot(book, tonumber(ARGV[2]))
seen[4] = mine and 1 or 0
return seen
