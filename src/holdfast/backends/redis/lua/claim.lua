-- Grant a claim, or give it a place in the queue. Idempotent by claim id: asked again, a hold's
-- lease starts again, as a renewal's does, and a place is refreshed.
-- KEYS  holds, queue, places
-- ARGV  id, lease in µs, fair 1|0, wait 1|0, tail: 'lease take slots home who'
-- → {1, fence, lease} granted | {0, retry after, last fence} busy | {2, slots} another size
local id, lease, tail = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local known = redis.call('HGETALL', KEYS[1])
local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
if last and string.match(last, '^%d+$') and redis.call('EXISTS', KEYS[2]) == 0 then
  -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
  local fence = math.max(last + 1, now)
  local said = string.format('%.0f %.0f %.0f ', fence, now + lease, now)
  redis.call('HSET', KEYS[1], '.f', string.format('%.0f', fence), id, said .. tail)
  redis.call('PEXPIRE', KEYS[1], math.max(90000, math.ceil(lease / 1000)))
  return { 1, fence, lease }
end
--@law
local book = open(KEYS[1], KEYS[2], KEYS[3], now, true)
if book.holds[id] then
  return extend(book, book.holds[id], lease)
end
local mine = row(id, ARGV[3] .. ' 0 ' .. digits(now) .. ' ' .. tail)
local slots = slots_of(book) or mine.slots
if slots ~= mine.slots then
  return { 2, slots }
end
local place = place_of(book, id)
if place then
  return refresh(book, place, mine.home)
end
if book.taken < slots then
  serve(book) -- a lease that ran out has freed slots for those who wait already
end
if mine.take <= slots - book.taken and not (mine.first == 1 and waiter(book, true, 0)) then
  return grant(book, mine, lease, next_fence(book))
end
if ARGV[4] == '1' then
  add_place(book, mine)
end
return busy(book, mine)
