-- End holds at one node of a quorum, and places: an asking of the same claim that is still under way
-- on another connection must find neither. Rings the next. Idempotent.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id
-- → for each: 1 released | 0 it was not held any more
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i = 1, #KEYS, 3 do
  local id, answer = ARGV[(i + 2) / 3], 0
  local said = call('HGET', KEYS[i], id)
  if said then
    call('HDEL', KEYS[i], id)
    if tonumber(string.match(said, '^%d+ (%d+) ')) > now then
      answer = 1
    end
  end
  if call('EXISTS', KEYS[i + 1]) == 1 then
--@law
    local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
    drop(book, id)
    if answer == 1 then
      serve(book)
    end
  end
  answers[#answers + 1] = answer
end
return answers
