-- Take back what a node voted to askings that came to nothing. What was granted to a later asking of
-- the same claim is not touched: it may be one of a majority, and this one late. Rings nobody: who
-- waits for a bell waits for that of a majority, and whoever was in the way of another asks again
-- by itself.
-- KEYS  for each: holds, queue, places
-- ARGV  the number of that asking; for each: id, '1' | '0' to stay in line, fair or not, or '-'
-- → how many holds were taken back
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function one(i)
  local a = (i - 1) / 3 * 2
  local id, stay = ARGV[a + 2], tonumber(ARGV[a + 3])
  local book = { queue = KEYS[i + 1], places = KEYS[i + 2], now = now }
  local said = redis.call('HGET', KEYS[i], id)
  local hold = said and row(id, said)
  local asked, home = string.match(hold and hold.home or '', '^(%d+)@(%S+)$')
  if asked and tonumber(asked) <= tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[i], id)
    if stay then
      hold.first = stay
      move(hold, home)
      local number = redis.call('HINCRBY', book.places, '.n', 1)
      redis.call('ZADD', book.queue, UNFAIR + number, id)
      write_place(book, hold)
    end
    return 1
  end
  if not hold and not stay then
    drop(book, id)
  end
  return 0
end
local undone = 0
for i = 1, #KEYS, 3 do
  undone = undone + (unless_foreign(one, i) or 0)
end
return undone
