-- Tell which of these names are held or waited for. Read-only.
-- KEYS  for each: holds, queue, waiters
-- → for each: 1 yes | 0 no
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function seen_of(i)
  return snapshot(open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, false), 100)
end
local answers = {}
for i = 1, #KEYS, 3 do
  local seen = unless_foreign(seen_of, i) or { now, {}, {} }
  answers[#answers + 1] = (#seen[2] > 0 or #seen[3] > 0) and 1 or 0
end
return answers
