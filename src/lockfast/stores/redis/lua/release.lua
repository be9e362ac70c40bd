-- End holds and serve the next waiter of each. Idempotent: a hold that is gone is left alone.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id
-- → 1 released | 0 not held any more; for several a list, in which -1 means: release it singly
local call, format, match = redis.call, string.format, string.match
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
--@constants
local single = #KEYS == 3
local answers = {}
-- One command tells whether any of the names has waiters; mostly none has.
local head, some_wait
if single then
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
  local key, queue, waiters = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local id, answer = ARGV[(i + 2) / 3], 0
  local text, known
  local nobody_waits = not some_wait or not single and call('EXISTS', queue) == 0
  if nobody_waits then
    text = call('HGET', key, id)
  else
    known = call('HGETALL', key)
    for k = 1, #known, 2 do
      text = known[k] == id and known[k + 1] or text
    end
  end
  if text then
    local ends, lease, size = match(text, '^%d+ (%d+) %d+ (%d+) (%d+ %d+) ')
    -- All reads come first: after an error behind a write the caller's retry would report a loss.
    local last
    if nobody_waits and tonumber(lease) > KEPT * 1000 and call('HLEN', key) == 2 then
      last = tonumber(call('HGET', key, '.f') or '')
    end
    call('HDEL', key, id)
    if last then
      -- Only the last fence remains, and it need not live as long as the lease.
      local ahead = math.max(last - now, 0)
      call('PEXPIRE', key, format('%.0f', KEPT + math.ceil(ahead / 1000)))
    end
    if tonumber(ends) > now then
      answer = 1
      local served = nobody_waits
      if not served and size == '1 1' and #known == 4 then
        -- Contended path, for a lock. If the first waiter is alive and listens, the law would grant
        -- the lock to it with a short first lease; so does this. Under contention every release
        -- ends here. The waiter is read first and dequeued when it is served: while a cluster's
        -- slot migrates, a queue that is empty for a moment could not be written to again.
        head = single and head or call('ZRANGE', queue, '0', '0')[1]
        local entry = head and call('HGET', waiters, head)
        local expires, tail, length, wake_address =
          match(entry or '', '^1 (%d+) %d+ ((%d+) 1 1 ([%w.]+) .*)$')
        last = tonumber(known[1] == '.f' and known[2] or known[3] == '.f' and known[4] or '')
        if expires and tonumber(expires) > now and last and last < now then
          if tonumber(length) > FIRST_LEASE then
            length = FIRST_LEASE_TEXT
          end
          local since = time[1] .. string.sub('00000' .. time[2], -6) -- also the fence
          local channel = 'lf:wake:' .. wake_address
          call('ZREM', queue, head)
          call('HDEL', waiters, head)
          if wake_address == '.' or call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
            if wake_address ~= '.' then
              call('PUBLISH', channel, head .. ' ' .. since .. ' ' .. length)
            end
            local dates = format(' %.0f ', now + length) .. since .. ' '
            call('HSET', key, '.f', since, head, since .. dates .. tail)
            if last < now - now % SPAN then
              call('PEXPIRE', key, KEPT_TEXT)
            end
            served = true
          end
        end
      end
      if not served then
--@law
        serve(open(key, queue, waiters, now, true))
      end
    end
  end
  return answer
end
if single then
  return release(1)
end
for i = 1, #KEYS, 3 do
  -- Foreign data under one of the names must not keep the others from being released.
  local done, answer = pcall(release, i)
  answers[#answers + 1] = done and answer or -1
end
return answers
