-- Withdrawing a claim, and what operators ask for.

--@script inspect
-- Show the holders and the waiters of a name. Read-only.
-- KEYS  holds, queue, waiters
-- ARGV  how many waiters to show at most
-- → now, the rows of the holds, the rows of the waiters in queue order
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
return snapshot(open(KEYS[1], KEYS[2], KEYS[3], now, false), tonumber(ARGV[1]))

--@script names
-- Tell which of these names are held or waited for. Read-only.
-- KEYS  for each: holds, queue, waiters
-- → for each: 1 yes | 0 no
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function seen_of(i)
  return snapshot(open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, false), 100)
end
local answers = {}
for i = 1, #KEYS, 3 do
  local seen = unless_foreign(seen_of, i) or { now, {}, {} }
  answers[#answers + 1] = (#seen[2] > 0 or #seen[3] > 0) and 1 or 0
end
return answers

--@script leave
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

--@script break
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
