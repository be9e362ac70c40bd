-- Refresh waiters, report grants made since, and serve the next. Creates neither holds nor waiters.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id, lease in µs, wake address
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence | 3, 0, 0 gone
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function one(i)
  local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
  local id, lease, wake_address = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if book.holds[id] then
    return extend(book, book.holds[id], lease)
  end
  local waiter = waiter_of(book, id)
  return waiter and refresh(book, waiter, wake_address)
end
local answers = {}
for i = 1, #ARGV, 3 do
  local answer = unless_foreign(one, i) or { 3, 0, 0 }
  answers[i], answers[i + 1], answers[i + 2] = answer[1], answer[2], answer[3]
end
return answers
