-- End holds and serve the next of each. Idempotent: what is not there (any more) is not touched.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id
-- → 1 released | 0 it was not held any more; of many a list, in which -1 says: ask for this one alone
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
local alone = #KEYS == 3
local answers = {}
-- Whether anybody waits for any of them is asked once; mostly nobody does.
local head, some_wait
if alone then
  head = call('ZRANGE', KEYS[2], '0', '0')[1]
  some_wait = head
else
  local queues = {}
  for i = 2, #KEYS, 3 do
    queues[#queues + 1] = KEYS[i]
  end
  some_wait = call('EXISTS', unpack(queues)) > 0
end
local function release(i)
  local key, queue, places = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local id, answer = ARGV[(i + 2) / 3], 0
  local said, known
  local nobody_waits = not some_wait or not alone and call('EXISTS', queue) == 0
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
    -- What there is to read is read first: an error after a write is a loss to who asks again.
    local last
    if nobody_waits and tonumber(lease) > KEPT * 1000 and call('HLEN', key) == 2 then
      last = tonumber(call('HGET', key, '.f') or '')
    end
    call('HDEL', key, id)
    if last then
      -- What is left is the last fence, and that not for ever.
      local ahead = math.max(last - now, 0)
      call('PEXPIRE', key, format('%.0f', KEPT + math.ceil(ahead / 1000)))
    end
    if tonumber(ends) > now then
      answer = 1
      local served = nobody_waits
      if not served and size == '1 1' and #known == 4 then
        -- A lock. If the first who waits is alive and heard, the law would grant it to that one,
        -- with a short first lease, and so do we: in a crowd every release ends here.
        -- It is looked at first and taken out when it is served: in a cluster, while the slot is on
        -- its way, a queue that is empty for a moment could not be written to again.
        head = alone and head or call('ZRANGE', queue, '0', '0')[1]
        local place = head and call('HGET', places, head)
        local stays, tail, length, home =
          match(place or '', '^1 (%d+) %d+ ((%d+) 1 1 ([%w.]+) .*)$')
        last = tonumber(known[1] == '.f' and known[2] or known[3] == '.f' and known[4] or '')
        if stays and tonumber(stays) > now and last and last < now then
          if tonumber(length) > FIRST then
            length = FIRST_SAID
          end
          local since = time[1] .. string.sub('00000' .. time[2], -6) -- and its fence
          local channel = 'lf:wake:' .. home
          call('ZREM', queue, head)
          call('HDEL', places, head)
          if home == '.' or call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
            if home ~= '.' then
              call('PUBLISH', channel, head .. ' ' .. since .. ' ' .. length)
            end
            local dates = format(' %.0f ', now + length) .. since .. ' '
            call('HSET', key, '.f', since, head, since .. dates .. tail)
            if last < now - now % SPAN then
              call('PEXPIRE', key, KEPT_SAID)
            end
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
  return answer
end
if alone then
  return release(1)
end
for i = 1, #KEYS, 3 do
  -- Data of somebody else in the place of one of them: the others were released nevertheless.
  local done, answer = pcall(release, i)
  answers[#answers + 1] = done and answer or -1
end
return answers
