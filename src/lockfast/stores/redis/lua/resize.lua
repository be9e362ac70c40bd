-- Give a semaphore another size. Those who hold more than there is now go on; a waiter that wants
-- more asks again, and is told. What is of another size than expected stays as it is: it may be a
-- lock, whose holder others would join.
-- KEYS  holds, queue, places
-- ARGV  the size that is expected, the new one
-- → the size it had; 0 if nobody holds it or waits for it
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
  move(hold, hold.home)
  redis.call('HSET', KEYS[1], id, written(hold))
end
book.slots = next(book.holds) and slots
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local place = place_of(book, id)
  if place and place.take > slots then
    drop(book, id)
    ring(book, place, id)
  elseif place then
    place.slots = slots
    move(place, place.home)
    redis.call('HSET', KEYS[3], id, written(place))
  end
end
serve(book)
return had
