-- Extend holds, each under its fence. Creates nothing: a late renewal cannot bring back a hold that
-- was released, flushed or evicted. The keys may belong to different names.
-- KEYS  for each: holds
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended | 0 not held any more, or held under another fence
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
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
