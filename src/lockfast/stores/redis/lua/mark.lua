-- The mark of birth of a node: from when on it votes, and the longest lease that it votes for. A node
-- without a mark has lost what it knew, or is new.
-- KEYS  the mark
-- ARGV  what to do, a nonce, the longest lease in µs
--   try     begin to found: all nodes are without a mark, as far as we know
--   done    it was found so at all of them: this one votes, if it is still the same
--   late    others have marks: this one votes when every lease has ended that it may have forgotten
-- → 1 done | 2 somebody else founds it just now | 0 it has a mark
local mark = redis.call('GET', KEYS[1])
local ours = 'founding ' .. ARGV[2]
if ARGV[1] == 'done' then
  if mark == ours then
    redis.call('SET', KEYS[1], '0 ' .. ARGV[3])
    return 1
  end
  return 0
end
if mark then
  return mark == ours and 1 or string.match(mark, '^%d') and 0 or 2
end
if ARGV[1] == 'try' then
  redis.call('SET', KEYS[1], ours, 'PX', 2000)
else
  local time = redis.call('TIME')
  local from = time[1] * 1000000 + time[2] + ARGV[3]
  redis.call('SET', KEYS[1], string.format('%.0f %s', from, ARGV[3]))
end
return 1
