-- Extend many holds, each under its fence. Never makes anything: a renewal that comes late cannot
-- bring back what was released, flushed or evicted. The keys may belong to many names.
-- KEYS  the holds of each
-- ARGV  for each: id, fence, lease in µs
-- → for each: 1 extended | 0 not held any more, or under another fence
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
local answers = {}
for i, key in ipairs(KEYS) do
  local id, fence, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local said = redis.pcall('HGET', key, id)
  if type(said) == 'table' then
    if not string.find(said.err, 'WRONGTYPE', 1, true) then
      redis.call('HGET', key, id) -- raises it again, and tells this line
    end
    said = '' -- somebody put other data there: this one is lost, its neighbours are not
  end
  local known, ends, rest = string.match(said or '', '^(%d+) (%d+) (.*)$')
  answers[i] = 0
  if known == fence and tonumber(ends) > now then
    redis.call('HSET', key, id, string.format('%s %.0f %s', fence, now + lease, rest))
    -- Only ever longer: another hold of the name may last longer, or its fence be remembered.
    if redis.call('PTTL', key) < math.max(KEEP, lease / 1000) then
      redis.call('PEXPIRE', key, math.max(KEPT, math.ceil(lease / 1000)))
    end
    answers[i] = 1
  end
end
return answers
