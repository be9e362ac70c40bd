-- End the hold with this fence for an operator, whoever owns it. The next fence is greater.
-- KEYS  holds, queue, waiters
-- ARGV  fence
-- → 1 broken | 0 no hold has this fence
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local book = open(KEYS[1], KEYS[2], KEYS[3], now, true)
for id, hold in pairs(book.holds) do
  if hold.first == tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[1], id)
    redis.call('HSET', KEYS[1], '.f', digits(next_fence(book)))
    book.holds[id] = nil
    book.taken = book.taken - hold.take
    keep_holds(book)
    serve(book)
    return 1
  end
end
return 0
