-- Extend holds, each under the fence of its quorum: a node that granted under a lower one takes that
-- one over, if it is above all that were given here since. Never makes anything: what was released,
-- flushed or lost stays so. The second phase of a claim, and the renewal of a hold.
-- KEYS  the holds of each
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended, under this fence | 0 not held any more | the last fence given here, negative:
--   extended, but this fence cannot be had here any more
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i, key in ipairs(KEYS) do
  local id, fence, lease = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local said = redis.pcall('HGET', key, id)
  if type(said) == 'table' then
    if not string.find(said.err, 'WRONGTYPE', 1, true) then
      redis.call('HGET', key, id) -- raises it again, and tells this line
    end
    said = '' -- somebody put other data there: this one is lost, its neighbours are not
  end
  local known, ends, rest = string.match(said or '', '^(%d+) (%d+) (.*)$')
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
    -- The last fence is remembered until our own clock is well past it, whoever's clock it was.
    local ttl = math.ceil(math.max(lease, last - now + 90000000, 90000000) / 1000)
    if redis.call('HLEN', key) > 2 then
      ttl = math.max(ttl, redis.call('PTTL', key)) -- another hold of the name may last longer
    end
    redis.call('PEXPIRE', key, string.format('%.0f', ttl))
  end
end
return answers
