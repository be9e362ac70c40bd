-- End holds and serve the next of each. Idempotent: what is not there (any more) is not touched.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id
-- → 1 released | 0 it was not held any more; of many a list
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i = 1, #KEYS, 3 do
  local id, answer = ARGV[(i + 2) / 3], 0
  local said = redis.call('HGET', KEYS[i], id)
  if said then
    local ends, lease = string.match(said, '^%d+ (%d+) %d+ (%d+) ')
    redis.call('HDEL', KEYS[i], id)
    if tonumber(ends) > now then
      answer = 1
      if redis.call('EXISTS', KEYS[i + 1]) == 1 then
--@law
        serve(open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true))
      elseif tonumber(lease) > 90000000 and redis.call('HLEN', KEYS[i]) == 1 then
        -- Nobody waits: nobody to serve. What is left is the last fence, and that not for ever.
        redis.call('PEXPIRE', KEYS[i], 90000)
      end
    end
  end
  answers[#answers + 1] = answer
end
return #answers == 1 and answers[1] or answers
