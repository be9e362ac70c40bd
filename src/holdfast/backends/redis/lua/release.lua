-- End holds and serve the next of each. Idempotent: what is not there (any more) is not touched.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id
-- → 1 released | 0 it was not held any more; of many a list
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
for i = 1, #KEYS, 3 do
  local id, answer = ARGV[(i + 2) / 3], 0
  local said = call('HGET', KEYS[i], id)
  if said then
    local ends, lease = string.match(said, '^%d+ (%d+) %d+ (%d+) ')
    call('HDEL', KEYS[i], id)
    if tonumber(ends) > now then
      answer = 1
      if not nobody_waits and call('EXISTS', KEYS[i + 1]) == 1 then
--@law
        serve(open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true))
      elseif tonumber(lease) > 90000000 and call('HLEN', KEYS[i]) == 1 then
        -- Nobody waits: nobody to serve. What is left is the last fence, and that not for ever.
        call('PEXPIRE', KEYS[i], 90000)
      end
    end
  end
  answers[#answers + 1] = answer
end
return #answers == 1 and answers[1] or answers
