-- The plain lock of other libraries: one string with an expiry.

--@script simple_claim
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

--@script simple_renew
-- Extend plain locks that are still held by their claims; read those that are waited for. Creates
-- nothing.
-- KEYS  the names
-- ARGV  for each: id, lease in ms
-- → for each two numbers: 1, 0 extended | 3, 0 free | 0, what is left of another's lease in ms
local answers = {}
for i, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if not held then
    answers[2 * i - 1], answers[2 * i] = 3, 0
  elseif held == ARGV[2 * i - 1] then
    redis.call('PEXPIRE', key, ARGV[2 * i])
    answers[2 * i - 1], answers[2 * i] = 1, 0
  else
    answers[2 * i - 1], answers[2 * i] = 0, redis.call('PTTL', key)
  end
end
return answers

--@script simple_release
-- Delete a plain lock if this claim holds it: compare and delete in one step.
-- KEYS  the name itself
-- ARGV  id
-- → 1 released | 0 not held by this claim any more
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
