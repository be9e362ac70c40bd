-- The keeper's requests: renewals of holds, refreshes of waiters.

--@script renew
-- Extend holds, each under its fence. Creates nothing: a late renewal cannot bring back a hold that
-- was released, flushed or evicted. The keys may belong to different names.
-- KEYS  for each: holds
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended | 0 not held any more, or held under another fence
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
redis.pcall('HDEL', KEYS[1], NOTHING)
local answers = {}
for i, key in ipairs(KEYS) do
  local id, fence, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local text = redis.pcall('HGET', key, id)
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      redis.call('HGET', key, id) -- raises the error again, with this line
    end
    text = '' -- foreign data: this hold is lost, the others are not
  end
  local known, ends, rest = string.match(text or '', '^(%d+) (%d+) (.*)$')
  answers[i] = 0
  if known == fence and tonumber(ends) > now then
    redis.call('HSET', key, id, string.format('%s %.0f %s', fence, now + lease, rest))
    -- The TTL only grows: another hold of the name, or the memory of its fence, may need longer.
    if redis.call('PTTL', key) < math.max(KEEP, lease / 1000) then
      redis.call('PEXPIRE', key, math.max(KEPT, math.ceil(lease / 1000)))
    end
    answers[i] = 1
  end
end
return answers

--@script refresh
-- Refresh waiters, report grants made since, and serve the next. Creates neither holds nor waiters.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id, lease in µs, wake address
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence | 3, 0, 0 gone
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
redis.pcall('HDEL', KEYS[1], NOTHING)
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
