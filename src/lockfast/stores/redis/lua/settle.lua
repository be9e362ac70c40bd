-- Extend holds, each under the fence of its quorum: the second phase of a claim, and the renewal of
-- a hold. A node that granted under a lower fence adopts the quorum's, if it is above all fences
-- issued here since. Creates nothing: a hold that was released, flushed or lost stays so.
-- KEYS  for each: holds
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended, under this fence | 0 not held any more | minus the last fence issued
--   here: extended, but this node cannot adopt the fence any more
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
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
