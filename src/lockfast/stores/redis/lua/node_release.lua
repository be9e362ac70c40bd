-- End holds at one node of a quorum, and remove waiters: a ballot on the same claim that is still
-- under way on another connection must find neither. Wakes the next waiter. Idempotent.
-- KEYS  for each: holds, queue, waiters
-- ARGV  for each: id
-- → for each: 1 released | 0 not held any more
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {}
for i = 1, #KEYS, 3 do
  local id, answer = ARGV[(i + 2) / 3], 0
  local text = call('HGET', KEYS[i], id)
  if text then
    call('HDEL', KEYS[i], id)
    if tonumber(string.match(text, '^%d+ (%d+) ')) > now then
      answer = 1
    end
  end
  if call('EXISTS', KEYS[i + 1]) == 1 then
--@law
    local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
    dequeue(book, id)
    if answer == 1 then
      serve(book)
    end
  end
  answers[#answers + 1] = answer
end
return answers
