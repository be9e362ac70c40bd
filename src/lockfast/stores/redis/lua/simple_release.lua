-- Delete a plain lock if it is ours: compare and delete in one step.
-- KEYS  the name itself
-- ARGV  id
-- → 1 released | 0 it was not ours any more
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
