-- Grant claims, one after the other, up to the first that is not granted: that one gets a place in
-- its queue. Or, of claims that came together by chance, each for itself. Idempotent by claim id:
-- asked again, a hold's lease starts again, as a renewal's does, and a place is refreshed.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id, lease in µs, fair 1|0, wait 1|0 (latch, barrier: 3|2), tail: 'lease take slots
--       home who'; behind them all, if each is for itself, one more
-- → for each {1, fence, lease granted} | {0, retry after, last fence} busy | {2, slots, 0} another
--   size. Of a name that nobody held the fence alone, as text, which no other script answers: the
--   lease is what was asked for. If there is only one claim, its answer alone
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
local answers = {}
local alone, apart = #KEYS == 3, #ARGV % 5 == 1
local some_wait
-- What numbers look like in text is found out once for all that ask for the same lease: it is half
-- of the work. The time comes as text already.
local since, length, dates, long = time[1] .. string.sub('00000' .. time[2], -6)
local span = now - now % SPAN
for i = 1, #KEYS, 3 do
  local a = i + (i - 1) / 3 * 2
  local id, lease, fair, wait, tail = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local known = call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if last and some_wait == nil then
    -- Whether anybody waits for any of them is asked once; mostly nobody does.
    if alone then
      some_wait = call('EXISTS', KEYS[2]) == 1
    else
      local queues = {}
      for q = 2, #KEYS, 3 do
        queues[#queues + 1] = KEYS[q]
      end
      some_wait = call('EXISTS', unpack(queues)) > 0
    end
  end
  if some_wait and last and (alone or call('EXISTS', KEYS[i + 1]) == 1) then
    last = nil
  end
  last = last and wait < '2' and tonumber(last)
  if last and last < now then
    -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
    -- The fence is the time: where the clock was set back, the law finds one.
    if lease ~= length then
      length = lease
      dates = format(' %.0f ', now + lease) .. since .. ' '
      long = lease / 1000 > BRIEF and format('%.0f', math.max(KEPT, math.ceil(lease / 1000)))
    end
    call('HSET', KEYS[i], '.f', since, id, since .. dates .. tail)
    if last < span or long then
      call('PEXPIRE', KEYS[i], long or KEPT_SAID)
    end
    if alone then
      return since
    end
    answers[#answers + 1] = since
  else
    local answer
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
      call('ZADD', KEYS[i + 1], call('HINCRBY', KEYS[i + 2], '.n', '1'), id)
      call('PEXPIRE', KEYS[i + 1], PLACED)
      call('PEXPIRE', KEYS[i + 2], PLACED)
      answer = { 0, REFRESH, tonumber(last) }
    else
--@law
      local mine = row(id, fair .. ' 0 ' .. digits(now) .. ' ' .. tail)
      local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
      answer = claim(book, mine, wait % 2 == 1)
    end
    answers[#answers + 1] = answer
    if answer[1] ~= 1 and not apart then
      break
    end
    some_wait = true -- now, perhaps
  end
end
return alone and answers[1] or answers
