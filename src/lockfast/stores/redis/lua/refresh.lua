-- Refresh the places of waiters; who was granted it meanwhile is told, and who is next is served.
-- Never makes a hold or a place out of nothing.
-- KEYS  for each: holds, queue, places
-- ARGV  for each: id, lease in µs, home
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence | 3, 0, 0 gone
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@law
local function one(i)
  local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
  local id, lease, home = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if book.holds[id] then
    return extend(book, book.holds[id], lease)
  end
  local place = place_of(book, id)
  return place and refresh(book, place, home)
end
local answers = {}
for i = 1, #ARGV, 3 do
  local answer = unless_foreign(one, i) or { 3, 0, 0 }
  answers[i], answers[i + 1], answers[i + 2] = answer[1], answer[2], answer[3]
end
return answers
