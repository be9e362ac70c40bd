-- Grant claims, one after the other, up to the first that is not granted: that one gets a place in
-- its queue. Idempotent by claim id: asked again, a hold's lease starts again, as a renewal's does,
-- and a place is refreshed.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id, lease in µs, fair 1|0, wait 1|0 (latch, barrier: 3|2), tail: 'lease take slots
--       home who'
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence busy |
--   2, slots, 0 another size
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i = 1, #KEYS, 3 do
  local a = i + (i - 1) / 3 * 2
  local id, lease, tail = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 4]
  local known = redis.call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if last and ARGV[a + 3] < '2' and string.match(last, '^%d+$')
    and redis.call('EXISTS', KEYS[i + 1]) == 0 then
    -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
    local fence = math.max(last + 1, now)
    local said = string.format('%.0f %.0f %.0f ', fence, now + lease, now)
    redis.call('HSET', KEYS[i], '.f', string.format('%.0f', fence), id, said .. tail)
    redis.call('PEXPIRE', KEYS[i], math.max(90000, math.ceil(lease / 1000)))
    answers[i], answers[i + 1], answers[i + 2] = 1, fence, lease
  else
--@law
    local mine = row(id, ARGV[a + 2] .. ' 0 ' .. digits(now) .. ' ' .. tail)
    local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
    local answer = claim(book, mine, ARGV[a + 3] % 2 == 1)
    answers[i], answers[i + 1], answers[i + 2] = answer[1], answer[2], answer[3]
    if answer[1] ~= 1 then
      break
    end
  end
end
return answers
