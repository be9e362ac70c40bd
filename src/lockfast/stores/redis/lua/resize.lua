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
