-- Run one command that writes a key, unless a higher fence has written it before. The mark is raised
-- first: if the command then fails, nothing was written, and the mark of a real hold refuses nobody
-- wrongly. In the other order, a stale writer could follow a write that left no mark.
-- KEYS  the key, its mark
-- ARGV  fence, time to keep the mark in ms (0: forever), command, its arguments after the key
-- → {1, reply of the command} | {0, highest fence seen}
local fence, keep, command = ARGV[1], ARGV[2], ARGV[3]

-- Fences have up to 19 digits, but Lua's numbers are exact only to 15, so digits are compared as text.
local function lower(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

local seen = redis.call('GET', KEYS[2])
if seen and not string.find(seen, '^%d+$') then
  return redis.error_reply('FOREIGN data where lockfast keeps the fence of ' .. KEYS[1])
end
if seen and lower(fence, seen) then
  return { 0, seen }
end
if keep == '0' then
  redis.call('SET', KEYS[2], fence)
else
  redis.call('SET', KEYS[2], fence, 'PX', keep)
end
return { 1, redis.call(command, KEYS[1], unpack(ARGV, 4)) }
