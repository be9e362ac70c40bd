-- Withdraw this node's votes on ballots that failed. A vote on a later ballot of the same claim
-- stays: it may be part of a majority, and this call late. Wakes nobody: a waiter needs wake-ups of
-- a majority of nodes, and a claim that was in the way of another is retried by its client.
-- KEYS  for each: holds, queue, waiters
-- ARGV  the ballot's number; for each: id, '1' | '0' to stay as fair or unfair waiter, or '-'
-- → how many holds were withdrawn
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function one(i)
  local a = (i - 1) / 3 * 2
  local id, stay = ARGV[a + 2], tonumber(ARGV[a + 3])
  local book = { queue = KEYS[i + 1], waiters = KEYS[i + 2], now = now }
  local text = redis.call('HGET', KEYS[i], id)
  local hold = text and row(id, text)
  local previous, wake_address = string.match(hold and hold.wake_address or '', '^(%d+)@(%S+)$')
  if previous and tonumber(previous) <= tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[i], id)
    if stay then
      hold.first = stay
      write_tail(hold, wake_address)
      local number = redis.call('HINCRBY', book.waiters, '.n', 1)
      redis.call('ZADD', book.queue, UNFAIR + number, id)
      write_waiter(book, hold)
    end
    return 1
  end
  if not hold and not stay then
    dequeue(book, id)
  end
  return 0
end
local undone = 0
for i = 1, #KEYS, 3 do
  undone = undone + (unless_foreign(one, i) or 0)
end
return undone
