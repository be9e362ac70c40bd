-- Grant claims, one after the other, up to the first that is not granted: that one gets a place in
-- its queue. Idempotent by claim id: asked again, a hold's lease starts again, as a renewal's does,
-- and a place is refreshed.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id, lease in µs, fair 1|0, wait 1|0 (latch, barrier: 3|2), tail: 'lease take slots
--       home who'
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence busy |
--   2, slots, 0 another size
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
-- Whether anybody waits for any of them is asked once; mostly nobody does.
local nobody_waits
if #KEYS == 3 then
  nobody_waits = call('EXISTS', KEYS[2]) == 0
else
  local queues = {}
  for i = 2, #KEYS, 3 do
    queues[#queues + 1] = KEYS[i]
  end
  nobody_waits = call('EXISTS', unpack(queues)) == 0
end
-- What numbers look like in text is found out once for all that ask for the same lease: it is half
-- of the work.
local since, length, dates, ttl = string.format('%.0f', now)
for i = 1, #KEYS, 3 do
  local a = i + (i - 1) / 3 * 2
  local id, lease, tail = ARGV[a], ARGV[a + 1], ARGV[a + 4]
  local known = call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if nobody_waits and last and ARGV[a + 3] < '2' and string.match(last, '^%d+$') then
    -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
    if lease ~= length then
      length = lease
      dates = string.format(' %.0f %.0f ', now + lease, now)
      ttl = string.format('%.0f', math.max(90000, math.ceil(lease / 1000)))
    end
    local fence = math.max(last + 1, now)
    local number = fence == now and since or string.format('%.0f', fence)
    call('HSET', KEYS[i], '.f', number, id, number .. dates .. tail)
    call('PEXPIRE', KEYS[i], ttl)
    answers[i], answers[i + 1], answers[i + 2] = 1, fence, tonumber(lease)
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
