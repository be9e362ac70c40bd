-- Run one command that writes a key, if nobody with a higher fence did so before. The mark is raised
-- first: if the command then fails, nothing was written, and a mark that tells of a true hold harms
-- nobody. The other way round a stale one could follow a write that left no mark.
-- KEYS  the key, its mark
-- ARGV  fence, how long to keep the mark in ms (0: for ever), command, its words after the key
-- → {1, what the command answered} | {0, the fence that was seen}
local fence, keep, command = ARGV[1], ARGV[2], ARGV[3]

-- Fences have up to 19 digits, and Lua's numbers are exact to 15: compared as they are written.
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
