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
