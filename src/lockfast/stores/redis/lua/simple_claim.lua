-- Claim the plain lock of other libraries: one string with an expiry, set if it does not exist.
-- Idempotent: called again by the holder, the lease restarts.
-- KEYS  the name itself
-- ARGV  id, lease in ms
-- → {1} granted | {0, what is left of the other's lease in ms; -1 if it has none}
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
