-- The plain lock that other libraries write: one string, made if it is not there, with an expiry.
-- Idempotent: asked again by who holds it, the lease starts again.
-- KEYS  the name itself
-- ARGV  id, lease in ms
-- → {1} ours | {0, rest of the other's lease in ms; -1 if it has none}
local held = redis.call('GET', KEYS[1])
if not held then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return { 1 }
end
if held == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { 1 }
end
return { 0, redis.call('PTTL', KEYS[1]) }
