-- Grant claims in order, up to the first that is not granted: that one is enqueued. With the
-- argument 'independent' (claims of several callers that are sent together) each is granted or
-- enqueued by itself. Idempotent by claim id: called again, a hold's lease restarts, as in a
-- renewal, and a waiter is refreshed.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id, lease in µs, fair 1|0, wait 1|0 (latch, barrier: 3|2), tail: 'lease take
--       slots wake_address who'; after them all, optionally: 'independent'
-- → for each {1, fence, lease granted} | {0, retry after, last fence} busy | {2, slots, 0} another
--   size. For a name that nobody held just the fence as text, a reply that no other script makes:
--   the lease is the one in the claim. For a single claim, its answer without the list
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
local answers = {}
local single, independent = #KEYS == 3, #ARGV % 5 == 1
local some_wait
-- Numbers are formatted once for all claims with the same lease: formatting is half of the work.
-- The time is text already.
local since, length, dates, long = time[1] .. string.sub('00000' .. time[2], -6)
local span = now - now % SPAN
for i = 1, #KEYS, 3 do
  local a = i + (i - 1) / 3 * 2
  local id, lease, fair, wait, tail = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local known = call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if last and some_wait == nil then
    -- One command tells whether any of the names has waiters; mostly none has.
    if single then
      some_wait = call('EXISTS', KEYS[2]) == 1
    else
      local queues = {}
      for q = 2, #KEYS, 3 do
        queues[#queues + 1] = KEYS[q]
      end
      some_wait = call('EXISTS', unpack(queues)) > 0
    end
  end
  if some_wait and last and (single or call('EXISTS', KEYS[i + 1]) == 1) then
    last = nil
  end
  last = last and wait < '2' and tonumber(last)
  if last and last < now then
    -- Fast path: no holder, no waiter. The law would grant the claim, and more reads are not
    -- needed. The fence is the time; where the clock was set back, the law below computes one.
    if lease ~= length then
      length = lease
      dates = format(' %.0f ', now + lease) .. since .. ' '
      long = lease / 1000 > BRIEF and format('%.0f', math.max(KEPT, math.ceil(lease / 1000)))
    end
    call('HSET', KEYS[i], '.f', since, id, since .. dates .. tail)
    if last < span or long then
      call('PEXPIRE', KEYS[i], long or KEPT_TEXT)
    end
    if single then
      return since
    end
    answers[#answers + 1] = since
  else
    local answer
    local h = known[1] == '.f' and 3 or 1 -- index of the hold; the other pair is the last fence
    local ends, take, slots = match(known[h + 1] or '', '^%d+ (%d+) %d+ %d+ (%d+) (%d+) ')
    last = known[5 - h]
    if
      ends and #known == 4 and fair == '1' and wait == '1' and take == slots and known[h] ~= id
      and tonumber(ends) >= now + REFRESH and match(tail, '^%d+ %d+ (%d+) ') == slots
      and match(last, '^%d+$')
      and call('HSETNX', KEYS[i + 2], id, format('1 %.0f %s %s', now + WAITER_LEASE, since, tail))
        == 1
    then
      -- Contended path: one hold has all slots, for a while yet, and this claim is not enqueued.
      -- The law would append it to the queue; so does this. Under contention every claim ends here.
      call('ZADD', KEYS[i + 1], call('HINCRBY', KEYS[i + 2], '.n', '1'), id)
      call('PEXPIRE', KEYS[i + 1], WAITER_LEASE_MS)
      call('PEXPIRE', KEYS[i + 2], WAITER_LEASE_MS)
      answer = { 0, REFRESH, tonumber(last) }
    else
--@law
      local mine = row(id, fair .. ' 0 ' .. digits(now) .. ' ' .. tail)
      local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
      answer = claim(book, mine, wait % 2 == 1)
    end
    answers[#answers + 1] = answer
    if answer[1] ~= 1 and not independent then
      break
    end
    some_wait = true -- from now on, possibly
  end
end
return single and answers[1] or answers
