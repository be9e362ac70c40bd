-- Grant claims, one after the other, up to the first that is not granted: that one gets a place in
-- its queue. Idempotent by claim id: asked again, a hold's lease starts again, as a renewal's does,
-- and a place is refreshed.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id, lease in µs, fair 1|0, wait 1|0 (latch, barrier: 3|2), tail: 'lease take slots
--       home who'
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence busy |
--   2, slots, 0 another size. Of one name that nobody held: the fence alone, as text, which no other
--   script answers; the lease is what was asked for
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@sizes
local answers = {}
local alone = #KEYS == 3
local nobody_waits
-- What numbers look like in text is found out once for all that ask for the same lease: it is half
-- of the work. The time comes as text already.
local since, length, dates, ttl = time[1] .. string.sub('00000' .. time[2], -6)
for i = 1, #KEYS, 3 do
  local a = i + (i - 1) / 3 * 2
  local id, lease, fair, wait, tail = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local known = call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if last and nobody_waits == nil then
    -- Whether anybody waits for any of them is asked once; mostly nobody does.
    if alone then
      nobody_waits = call('EXISTS', KEYS[2]) == 0
    else
      local queues = {}
      for q = 2, #KEYS, 3 do
        queues[#queues + 1] = KEYS[q]
      end
      nobody_waits = call('EXISTS', unpack(queues)) == 0
    end
  end
  if last and nobody_waits and wait < '2' and match(last, '^%d+$') then
    -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
    if lease ~= length then
      length = lease
      dates = format(' %.0f ', now + lease) .. since .. ' '
      ttl = lease / 1000 <= KEEP and KEPT or format('%.0f', math.ceil(lease / 1000))
    end
    local fence = math.max(last + 1, now)
    local number = fence == now and since or format('%.0f', fence)
    call('HSET', KEYS[i], '.f', number, id, number .. dates .. tail)
    call('PEXPIRE', KEYS[i], ttl)
    if alone then
      return number
    end
    answers[i], answers[i + 1], answers[i + 2] = 1, fence, tonumber(lease)
  else
    local h = known[1] == '.f' and 3 or 1 -- of the hold; the last fence is the other
    local ends, take, slots = match(known[h + 1] or '', '^%d+ (%d+) %d+ %d+ (%d+) (%d+) ')
    last = known[5 - h]
    if
      ends and #known == 4 and fair == '1' and wait == '1' and take == slots and known[h] ~= id
      and tonumber(ends) >= now + REFRESH and match(tail, '^%d+ %d+ (%d+) ') == slots
      and match(last, '^%d+$')
      and call('HSETNX', KEYS[i + 2], id, format('1 %.0f %s %s', now + PLACE, since, tail)) == 1
    then
      -- One has all of it, for some time yet, and we have no place: the law would give us the last
      -- one, and so do we. In a crowd every claim ends here.
      call('ZADD', KEYS[i + 1], call('HINCRBY', KEYS[i + 2], '.n', 1), id)
      call('PEXPIRE', KEYS[i + 1], PLACED)
      call('PEXPIRE', KEYS[i + 2], PLACED)
      answers[i], answers[i + 1], answers[i + 2] = 0, REFRESH, tonumber(last)
      break
    end
--@law
    local mine = row(id, fair .. ' 0 ' .. digits(now) .. ' ' .. tail)
    local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
    local answer = claim(book, mine, wait % 2 == 1)
    answers[i], answers[i + 1], answers[i + 2] = answer[1], answer[2], answer[3]
    if answer[1] ~= 1 then
      break
    end
  end
end
return answers
