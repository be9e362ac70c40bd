-- End holds and serve the next of each. Idempotent: what is not there (any more) is not touched.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id
-- → 1 released | 0 it was not held any more; of many a list
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@sizes
local alone = #KEYS == 3
local answers = {}
-- Whether anybody waits for any of them is asked once; mostly nobody does.
local nobody_waits
if alone then
  nobody_waits = call('EXISTS', KEYS[2]) == 0
else
  local queues = {}
  for i = 2, #KEYS, 3 do
    queues[#queues + 1] = KEYS[i]
  end
  nobody_waits = call('EXISTS', unpack(queues)) == 0
end
for i = 1, #KEYS, 3 do
  local key, queue, places = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local id, answer = ARGV[(i + 2) / 3], 0
  local said, known
  if nobody_waits then
    said = call('HGET', key, id)
  else
    known = call('HGETALL', key)
    for k = 1, #known, 2 do
      said = known[k] == id and known[k + 1] or said
    end
  end
  if said then
    local ends, lease, size = match(said, '^%d+ (%d+) %d+ (%d+) (%d+ %d+) ')
    call('HDEL', key, id)
    if tonumber(ends) > now then
      answer = 1
      local served = nobody_waits
      if served then
        if tonumber(lease) > KEEP * 1000 and call('HLEN', key) == 1 then
          call('PEXPIRE', key, KEPT) -- what is left is the last fence, and that not for ever
        end
      elseif size == '1 1' and #known == 4 then
        -- A lock. If the first who waits is alive and heard, the law would grant it to that one,
        -- with a short first lease, and so do we: in a crowd every release ends here.
        -- It is looked at first and taken out when it is served: in a cluster, while the slot is on
        -- its way, a queue that is empty for a moment could not be written to again.
        local head = call('ZRANGE', queue, 0, 0)[1]
        local place = head and call('HGET', places, head)
        local stays, tail, length, home =
          match(place or '', '^1 (%d+) %d+ ((%d+) 1 1 ([%w.]+) .*)$')
        local last = known[1] == '.f' and known[2] or known[3] == '.f' and known[4] or ''
        if stays and tonumber(stays) > now and match(last, '^%d+$') then
          if tonumber(length) > FIRST then
            length = FIRST_SAID
          end
          local fence = math.max(last + 1, now)
          local since = format('%.0f', now)
          local number = fence == now and since or format('%.0f', fence)
          local channel = 'hf:bell:' .. home
          call('ZREM', queue, head)
          call('HDEL', places, head)
          if home == '.' or call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
            if home ~= '.' then
              call('PUBLISH', channel, head .. ' ' .. number .. ' ' .. length)
            end
            local dates = format(' %.0f ', now + length) .. since .. ' '
            call('HSET', key, '.f', number, head, number .. dates .. tail)
            call('PEXPIRE', key, KEPT)
            served = true
          end
        end
      end
      if not served then
--@law
        serve(open(key, queue, places, now, true))
      end
    end
  end
  if alone then
    return answer
  end
  answers[#answers + 1] = answer
end
return answers
