-- Changes of a hold, and of a name's size.

--@script transfer
-- Record that a hold belongs to another process now, or for a while to none ('-').
-- KEYS  holds
-- ARGV  id, lease in µs, attach 1|0, who
-- → {1, fence, lease} done | {3} not held any more, or (attach) another process attached first; the
--   same one asks again after a lost reply
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
redis.pcall('HDEL', KEYS[1], NOTHING)
local book = open(KEYS[1], '', '', now, false)
local mine = book.holds[ARGV[1]]
local who = mine and string.match(mine.tail, '^%d+ %d+ %d+ %S+ (.*)$')
if not mine or (ARGV[3] == '1' and mine.wake_address ~= '-' and who ~= ARGV[4]) then
  return { 3 }
end
write_tail(mine, ARGV[3] == '1' and '.' or '-', ARGV[4])
return extend(book, mine, tonumber(ARGV[2]))

--@script shrink
-- Reduce the slots of a hold; its fence and its end stay. The freed slots go to the next waiters.
-- KEYS  holds, queue, waiters
-- ARGV  id, take
-- → {1, fence, rest of its lease} done | {3} not held any more
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
redis.pcall('HDEL', KEYS[1], NOTHING)
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

--@script resize
-- Change the size of a semaphore. Holds of more slots than there are now go on; a waiter that wants
-- more is woken to claim again, and learns the new size. A name of another size than expected stays
-- as it is: it may be a lock, which others would then share with its holder.
-- KEYS  holds, queue, waiters
-- ARGV  the expected size, the new size
-- → the previous size; 0 if the name has neither holders nor waiters
local slots = tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local book = open(KEYS[1], KEYS[2], KEYS[3], now, true)
local had = slots_of(book) or 0
if had ~= tonumber(ARGV[1]) then
  return had
end
for id, hold in pairs(book.holds) do
  hold.slots = slots
  write_tail(hold, hold.wake_address)
  redis.call('HSET', KEYS[1], id, text_of(hold))
end
book.slots = next(book.holds) and slots
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local waiter = waiter_of(book, id)
  if waiter and waiter.take > slots then
    dequeue(book, id)
    wake(book, waiter, id)
  elseif waiter then
    waiter.slots = slots
    write_tail(waiter, waiter.wake_address)
    redis.call('HSET', KEYS[3], id, text_of(waiter))
  end
end
serve(book)
return had
