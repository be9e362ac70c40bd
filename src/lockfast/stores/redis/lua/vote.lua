-- One node's vote on claims, one after the other; see quorum/backend.py for what the votes make.
-- Idempotent by claim id: asked again, a hold's lease starts again and a place is refreshed.
--
-- Nobody is granted anything here who is not asking just now: a node that granted to the first in
-- its own line would split the votes for good where two lines differ. So all places stand where the
-- unfair stand, and whoever frees something only rings. A newcomer is refused while somebody waits
-- in order; who waits already is granted what fits, unless one who wants more stands before it.
--
-- The fence is the one proposed, if it is above all that were given here and not behind the clock:
-- a majority that grants under the same fence needs no second phase.
--
-- KEYS  for each: holds, queue, places; last: the mark of birth
-- ARGV  make 1|0 (0: only who has a place or a hold here), stop 1|0 (at the first not granted), the
--       number of this asking, the fence proposed; for each: id, lease in µs, fair 1|0, wait 1|0,
--       terms 'lease take slots', home ('': as before), who
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence busy |
--   2, slots, 0 another size | 3, 0, 0 not here; or no vote: {4} no mark | {5, until then in µs} |
--   {6, the longest lease that this quorum was founded for}
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local AHEAD = 1000000 -- so far before our clock a proposed fence may be
local mark = call('GET', KEYS[#KEYS])
local from, longest = string.match(mark or '', '^(%d+) (%d+)$')
if not from then
  return { 4 }
end
if tonumber(from) > now then
  return { 5, tonumber(from) - now }
end
local make, stop, asking = ARGV[1] == '1', ARGV[2] == '1', ARGV[3]
local proposed = tonumber(ARGV[4])
local answers = {}
for i = 1, #KEYS - 1, 3 do
  local a = 5 + (i - 1) / 3 * 7
  local id, lease, terms, who = ARGV[a], ARGV[a + 1], ARGV[a + 4], ARGV[a + 6]
  if tonumber(lease) > tonumber(longest) then
    return { 6, tonumber(longest) }
  end
  local known = call('HGETALL', KEYS[i])
  local last = #known == 0 and '0' or #known == 2 and known[1] == '.f' and known[2]
  if make and last and string.match(last, '^%d+$') and call('EXISTS', KEYS[i + 1]) == 0 then
    -- Nobody holds it, nobody waits: the law would grant it, and so do we, without reading more.
    local fence = math.max(last + 1, now)
    if proposed >= fence and proposed <= now + AHEAD then
      fence = proposed
    end
    local number = string.format('%.0f', fence)
    local dates = string.format(' %.0f %.0f ', now + lease, now)
    local tail = terms .. ' ' .. asking .. '@' .. ARGV[a + 5] .. ' ' .. who
    call('HSET', KEYS[i], '.f', number, id, number .. dates .. tail)
    -- The last fence is remembered until our own clock is well past it, whoever's clock it was.
    local ttl = math.max(lease, fence - now + 90000000)
    call('PEXPIRE', KEYS[i], string.format('%.0f', math.ceil(ttl / 1000)))
    answers[i], answers[i + 1], answers[i + 2] = 1, fence, tonumber(lease)
  else
--@law
    -- Does one stand before it for whom it must wait?
    local function must_wait(book, mine, place)
      if mine.first ~= 1 then
        return false
      end
      local skip = 0
      while true do
        local other = waiter(book, false, skip)
        if not other or other.id == mine.id then
          return false
        end
        if other.first == 1 and (not place or other.take > mine.take) then
          return true
        end
        skip = skip + 1
      end
    end
    local function stand(book, mine)
      local number = call('HINCRBY', book.places, '.n', 1)
      call('ZADD', book.queue, UNFAIR + number, mine.id)
    end
    -- When to ask again: if a hold ends by itself, the first in line at once, the others later.
    local function later(book, mine)
      local after = REFRESH
      for _, hold in pairs(book.holds) do
        after = math.min(after, hold.ends - now)
      end
      local first = after < REFRESH and waiter(book, false, 0)
      if first and first.id ~= mine.id then
        after = REFRESH
      end
      return { 0, after, book.last }
    end
    local function vote()
      local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
      local home = ARGV[a + 5]
      local hold = book.holds[id]
      if hold then
        local asked, heard = string.match(hold.home, '^(%d+)@(%S+)$')
        if asked and tonumber(asked) < tonumber(asking) then
          move(hold, asking .. '@' .. (home == '' and heard or home))
        end
        return extend(book, hold, tonumber(lease))
      end
      local place = place_of(book, id)
      if not place and not make then
        return { 3, 0, 0 }
      end
      home = home ~= '' and home or place and place.home or '.'
      local said = terms .. ' ' .. home .. ' ' .. who
      local mine = row(id, ARGV[a + 2] .. ' 0 ' .. digits(now) .. ' ' .. said)
      local slots = slots_of(book) or mine.slots
      if slots ~= mine.slots then
        return { 2, slots, 0 }
      end
      if mine.take <= slots - book.taken and not must_wait(book, mine, place) then
        if place then
          drop(book, id)
        end
        local fence = next_fence(book)
        if proposed >= fence and proposed <= now + AHEAD then
          fence = proposed
        end
        book.last = fence
        move(mine, asking .. '@' .. home)
        return grant(book, mine, tonumber(lease), fence)
      end
      if place then
        move(place, home)
        write_place(book, place)
      elseif ARGV[a + 3] == '1' then
        stand(book, mine)
        write_place(book, mine)
      end
      return later(book, mine)
    end
    local answer
    if make then
      answer = vote()
    else
      answer = unless_foreign(vote) or { 3, 0, 0 }
    end
    answers[i], answers[i + 1], answers[i + 2] = answer[1], answer[2], answer[3]
    if stop and answer[1] ~= 1 then
      break
    end
  end
end
return answers
