-- End a hold and serve the next. Idempotent: what is not there (any more) is not touched.
-- KEYS  holds, queue, places
-- ARGV  id
-- → 1 released | 0 it was not held any more
local said = redis.call('HGET', KEYS[1], ARGV[1])
if not said then
  return 0
end
local ends, lease = string.match(said, '^%d+ (%d+) %d+ (%d+) ')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HDEL', KEYS[1], ARGV[1])
if tonumber(ends) <= now then
  return 0
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  -- Nobody waits: nobody to serve. What is left is the last fence, and that not for ever.
  if tonumber(lease) > 90000000 and redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('PEXPIRE', KEYS[1], 90000)
  end
  return 1
end
--@law
serve(open(KEYS[1], KEYS[2], KEYS[3], now, true))
return 1
