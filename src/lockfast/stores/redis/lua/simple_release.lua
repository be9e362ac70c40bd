-- Delete a plain lock if this claim holds it: compare and delete in one step.
-- KEYS  the name itself
-- ARGV  id
-- → 1 released | 0 not held by this claim any more
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
