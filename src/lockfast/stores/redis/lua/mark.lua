-- Write the birth mark of a quorum's node: the time from which it votes, and the longest lease that
-- it votes for. A node without a mark is new, or has lost its data.
-- KEYS  the mark
-- ARGV  the step, a nonce, the longest lease in µs
--   begin    no node has a mark, as far as the client knows: begin to initialize the quorum
--   finish   all nodes took the first step: this node votes, if it still knows of that step
--   recover  other nodes have marks: this node votes once every lease it may have lost has ended
-- → 1 done | 2 another client is initializing the quorum | 0 the node has a mark
local mark = redis.call('GET', KEYS[1])
local ours = 'founding ' .. ARGV[2]
if ARGV[1] == 'finish' then
  if mark == ours then
    redis.call('SET', KEYS[1], '0 ' .. ARGV[3])
    return 1
  end
  return 0
end
if mark then
  return mark == ours and 1 or string.match(mark, '^%d') and 0 or 2
end
if ARGV[1] == 'begin' then
  redis.call('SET', KEYS[1], ours, 'PX', 2000)
else
  local time = redis.call('TIME')
  local from = time[1] * 1000000 + time[2] + ARGV[3]
  redis.call('SET', KEYS[1], string.format('%.0f %s', from, ARGV[3]))
end
return 1
