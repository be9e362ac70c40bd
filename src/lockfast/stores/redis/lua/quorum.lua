-- The scripts of a quorum's nodes, beside the vote (stores/redlock).

--@script settle
-- Extend holds, each under the fence of its quorum: the second phase of a claim, and the renewal of
-- a hold. A node that granted under a lower fence adopts the quorum's, if it is above all fences
-- issued here since. Creates nothing: a hold that was released, flushed or lost stays so.
-- KEYS  for each: holds
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended, under this fence | 0 not held any more | minus the last fence issued
--   here: extended, but this node cannot adopt the fence any more
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.pcall('HDEL', KEYS[1], '.-') -- a full server then lets the others through (constants.lua)
local answers = {}
for i, key in ipairs(KEYS) do
  local id, fence, lease = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local text = redis.pcall('HGET', key, id)
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      redis.call('HGET', key, id) -- raises the error again, with this line
    end
    text = '' -- foreign data: this hold is lost, the others are not
  end
  local known, ends, rest = string.match(text or '', '^(%d+) (%d+) (.*)$')
  answers[i] = 0
  if known and tonumber(ends) > now then
    known = tonumber(known)
    answers[i] = 1
    local last = tonumber(redis.call('HGET', key, '.f')) or 0
    if known ~= fence then
      if fence > last then
        known, last = fence, fence
        redis.call('HSET', key, '.f', string.format('%.0f', fence))
      else
        answers[i] = -last
      end
    end
    redis.call('HSET', key, id, string.format('%.0f %.0f %s', known, now + lease, rest))
    -- The last fence is remembered until this node's clock is well past it; it may be another's.
    local ttl = math.ceil(math.max(lease, last - now + 90000000, 90000000) / 1000)
    if redis.call('HLEN', key) > 2 then
      ttl = math.max(ttl, redis.call('PTTL', key)) -- another hold of the name may last longer
    end
    redis.call('PEXPIRE', key, string.format('%.0f', ttl))
  end
end
return answers

--@script undo
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

--@script node_release
-- End holds at one node of a quorum, and remove waiters: a ballot on the same claim that is still
-- under way on another connection must find neither. Wakes the next waiter. Idempotent.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id
-- → for each: 1 released | 0 not held any more
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i = 1, #KEYS, 3 do
  local id, answer = ARGV[(i + 2) / 3], 0
  local text = call('HGET', KEYS[i], id)
  if text then
    call('HDEL', KEYS[i], id)
    if tonumber(string.match(text, '^%d+ (%d+) ')) > now then
      answer = 1
    end
  end
  if call('EXISTS', KEYS[i + 1]) == 1 then
--@law
    local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
    dequeue(book, id)
    if answer == 1 then
      serve(book)
    end
  end
  answers[#answers + 1] = answer
end
return answers

--@script mark
-- Write the birth mark of a quorum's node: the time from which it votes, and the longest lease that
-- it votes for. A node without a mark is new, or has lost its data.
-- KEYS  the mark
-- ARGV  the step, a nonce, the longest lease in µs
--   begin    no node has a mark, as far as the client knows: begin to initialize the quorum
--   finish   all nodes took the first step: this node votes, if it still knows of that step
--   recover  other nodes have marks: this node votes once every lease it may have lost has ended
-- → 1 done | 2 another client is initializing the quorum | 0 the node has a mark
local mark = redis.call('GET', KEYS[1])
local ours = 'founding ' .. ARGV[2]
if ARGV[1] == 'finish' then
  if mark == ours then
    redis.call('SET', KEYS[1], '0 ' .. ARGV[3])
    return 1
  end
  return 0
end
if mark then
  return mark == ours and 1 or string.match(mark, '^%d') and 0 or 2
end
if ARGV[1] == 'begin' then
  redis.call('SET', KEYS[1], ours, 'PX', 2000)
else
  local time = redis.call('TIME')
  local from = time[1] * 1000000 + time[2] + ARGV[3]
  redis.call('SET', KEYS[1], string.format('%.0f %s', from, ARGV[3]))
end
return 1
