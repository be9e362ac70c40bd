-- The law of slots on one name, as core/law.py says it: the same decisions in the same order.
-- Spliced in where a script says `--@law`, after the case that needs none of it.
--
-- One name is three keys with one hash tag:
--   holds   hash   claim id → 'fence ends since lease take slots home who', and '.f' → last fence
--   queue   zset   claim id by place; the unfair stand UNFAIR behind the fair
--   places  hash   claim id → 'fair ends since lease take slots home who', and '.n' → last place
-- Times are µs of this server's clock (TIME), which also dates what expires. A hold or a place whose
-- end has passed is dead whether its key is still there or not.
--
-- Survives: a clock that is set back (the fence counts on from '.f', which stays for KEEP), a forgetful
-- restart (the fence has the clock as its floor), the death of whoever asked at any instant (the
-- script is atomic, and everything it writes ends by itself), being asked twice (by claim id).
--@constants

local function digits(number)
  return string.format('%.0f', number)
end

local function foreign()
  error('FOREIGN data where lockfast keeps a lock')
end

-- Do it, unless data of somebody else is in the way: then nothing. One name must not be in the way
-- of all others in a batch.
local function unless_foreign(work, ...)
  local done, answer = pcall(work, ...)
  if done then
    return answer
  end
  local said = type(answer) == 'table' and answer.err or tostring(answer)
  if not (string.find(said, 'WRONGTYPE', 1, true) or string.find(said, 'FOREIGN', 1, true)) then
    error(answer)
  end
  return nil
end

-- A row as a table. `first` is its fence, or 1 | 0 for a fair or unfair place; `tail` is kept as it
-- is written.
local function row(id, said)
  local first, ends, since, tail, lease, take, slots, home =
    string.match(said, '^(%d+) (%d+) (%d+) ((%d+) (%d+) (%d+) (%S+) .*)$')
  if not first then
    foreign()
  end
  return {
    id = id, first = tonumber(first), ends = tonumber(ends), since = since, tail = tail,
    lease = tonumber(lease), take = tonumber(take), slots = tonumber(slots), home = home,
  }
end

local function written(r)
  return string.format('%.0f %.0f %s %s', r.first, r.ends, r.since, r.tail)
end

-- Where it is heard, and whose it is (nil: as before).
local function move(r, home, who)
  r.home = home
  who = who or string.match(r.tail, '^%d+ %d+ %d+ %S+ (.*)$')
  r.tail = string.format('%.0f %.0f %.0f %s %s', r.lease, r.take, r.slots, home, who)
end

-- A book: one name's live holds, read at the beginning of a step. `bury` removes the dead.
local function open(holds, queue, places, now, bury)
  local book = {
    key = holds, queue = queue, places = places, now = now, holds = {}, taken = 0, last = 0,
  }
  local raw = redis.call('HGETALL', holds)
  for i = 1, #raw, 2 do
    if raw[i] == '.f' then
      book.last = tonumber(string.match(raw[i + 1], '^%d+$')) or foreign()
    else
      local hold = row(raw[i], raw[i + 1])
      if hold.ends > now then
        book.holds[hold.id] = hold
        book.taken = book.taken + hold.take
        book.slots = hold.slots
      elseif bury then
        redis.call('HDEL', holds, hold.id)
      end
    end
  end
  return book
end

local function drop(book, id)
  redis.call('ZREM', book.queue, id)
  redis.call('HDEL', book.places, id)
end

-- What was found in the queue; nil if it could not be asked. In a cluster, while a slot is on its
-- way, a key that this very step has emptied is said to be elsewhere: nobody stands there.
local function standing(found)
  if not found.err then
    return found
  end
  return string.find(found.err, 'non local key', 1, true) and {} or nil
end

-- The living place number `skip` of the fair, or of the unfair; the dead before it are buried.
local function waiter(book, fair, skip)
  local low, high = '-inf', '(' .. UNFAIR
  if not fair then
    low, high = UNFAIR, '+inf'
  end
  while true do
    local found = standing(redis.pcall('ZRANGEBYSCORE', book.queue, low, high, 'LIMIT', skip, 1))
      or redis.call('ZRANGEBYSCORE', book.queue, low, high) -- raises it, and tells this line
    local id = found[1]
    if not id then
      return nil
    end
    local said = redis.call('HGET', book.places, id)
    if said then
      local place = row(id, said)
      if place.ends > book.now then
        return place
      end
    end
    drop(book, id)
  end
end

-- One that is written down and does not stand in the queue would never be served: one of the two
-- keys was evicted alone, say. It counts for nothing, and who asks takes a new place.
local function place_of(book, id)
  local said = redis.call('HGET', book.places, id)
  local place = said and row(id, said)
  if place and place.ends > book.now and redis.call('ZSCORE', book.queue, id) then
    return place
  end
  if place then
    drop(book, id)
  end
  return nil
end

local function slots_of(book)
  if book.slots then
    return book.slots
  end
  local first = waiter(book, true, 0) or waiter(book, false, 0)
  return first and first.slots
end

local function next_fence(book)
  book.last = math.max(book.last + 1, book.now)
  return book.last
end

local function keep_holds(book)
  local ends = math.max(book.now, book.last) + KEPT * 1000
  for _, hold in pairs(book.holds) do
    ends = math.max(ends, hold.ends)
  end
  redis.call('PEXPIRE', book.key, digits(math.ceil((ends - book.now) / 1000)))
end

local function write_hold(book, hold)
  book.holds[hold.id] = hold
  redis.call('HSET', book.key, '.f', digits(book.last), hold.id, written(hold))
  keep_holds(book)
end

local function grant(book, place, lease, fence)
  place.first, place.since = fence, digits(book.now)
  place.ends = book.now + lease
  book.taken = book.taken + place.take
  book.slots = place.slots
  write_hold(book, place)
  return { 1, fence, lease }
end

local function extend(book, hold, lease)
  hold.ends = book.now + lease
  write_hold(book, hold)
  return { 1, hold.first, lease }
end

local function write_place(book, place)
  place.ends = book.now + PLACE
  redis.call('HSET', book.places, place.id, written(place))
  redis.call('PEXPIRE', book.queue, PLACED)
  redis.call('PEXPIRE', book.places, PLACED)
end

local function add_place(book, place)
  local number = redis.call('HINCRBY', book.places, '.n', 1)
  redis.call('ZADD', book.queue, place.first == 1 and number or UNFAIR + number, place.id)
  write_place(book, place)
end

-- In a cluster a process listens at the node that served the name when it last asked, which its home
-- names: 's' (sharded) or 'c' (classic), the beginning of the node's id, and the process. Counts are
-- of one node, so who listened elsewhere is not known to be gone. And who is gone is not rung: what
-- is published may be heard at another node, by somebody who would believe in a grant that was none.
local function ring_in_cluster(book, message, kind, node, ear)
  local channel = 'lf:wake:' .. ear .. ':' .. book.key
  local count = kind == 's' and 'SHARDNUMSUB' or 'NUMSUB'
  if string.sub(redis.call('CLUSTER', 'MYID'), 1, #node) == node
    and redis.call('PUBSUB', count, channel)[2] == 0
  then
    return false
  end
  if kind == 's' then
    redis.call('SPUBLISH', channel, message)
  else
    redis.call('PUBLISH', channel, message)
  end
  return true
end

-- Ring one bell. False: nobody listens to it, so the process that waits is gone. One that has not
-- begun to listen yet ('.') asks again by itself as soon as it does. Who is gone is not rung: what
-- is published reaches our replicas, too, and who still listens to one of them (it was the master)
-- would believe in a grant that was none.
local function ring(book, place, message)
  if place.home == '.' then
    return true
  end
  local kind, node, ear = string.match(place.home, '^([sc])(%x+):(%S+)$')
  if kind then
    return ring_in_cluster(book, message, kind, node, ear)
  end
  local channel = 'lf:wake:' .. place.home
  if redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
    return false
  end
  redis.call('PUBLISH', channel, message)
  return true
end

-- How many slots those who wait in order may take now.
local function free_of(book, slots)
  if slots < LATCH then
    return slots - book.taken
  end
  if slots < BARRIER then
    return book.taken >= slots - LATCH and 0 or -1 -- they take none
  end
  for skip = 0, slots - BARRIER - 1 do
    if not waiter(book, true, skip) then
      return 0
    end
  end
  return slots - BARRIER
end

-- Grant what is free to those at the head, in order; what `awake` got, who is asking just now.
-- Work is bounded by what is granted and who died, not by how many wait.
local function serve(book, awake)
  local free, got, place
  while not free or free > 0 or place.take == 0 do
    place = waiter(book, true, 0)
    if not place then
      break
    end
    free = free or free_of(book, place.slots)
    if place.take > free then
      break -- nobody overtakes it, or a writer would starve
    end
    drop(book, place.id)
    if awake and place.id == awake.id then
      free = free - place.take
      got = grant(book, place, place.lease, next_fence(book))
    else
      local fence, lease = next_fence(book), math.min(place.lease, FIRST)
      if place.slots >= BARRIER then
        lease = place.lease -- nobody waits for it to end, and who is late must find that it passed
      end
      -- Who waits and is gone is passed over; but who came to a barrier has come.
      local heard = ring(book, place, place.id .. ' ' .. digits(fence) .. ' ' .. digits(lease))
      if heard or place.slots >= BARRIER then
        free = free - place.take
        grant(book, place, lease, fence)
      end
    end
  end
  if awake and awake.first ~= 1 then
    free = free or awake.slots - book.taken
    if awake.take <= free then
      drop(book, awake.id) -- whoever asks first gets it, though others were rung before
      free = free - awake.take
      got = grant(book, awake, awake.lease, next_fence(book))
    end
  end
  local skip = 0
  while not free or free > 0 do
    place = waiter(book, false, skip)
    if not place then
      break
    end
    free = free or place.slots - book.taken
    skip = skip + 1
    if place.take <= free then
      if ring(book, place, place.id) then
        free = free - place.take
      else
        drop(book, place.id)
        skip = skip - 1
      end
    end
  end
  return got
end

-- Ask again when a hold ends by itself, if we are the first to profit; else only to refresh.
local function busy(book, place)
  local after = REFRESH
  for _, hold in pairs(book.holds) do
    after = math.min(after, hold.ends - book.now)
  end
  if after < REFRESH and place.first == 1 then
    local first = waiter(book, true, 0)
    if first and first.id ~= place.id then
      after = REFRESH
    end
  end
  return { 0, after, book.last }
end

-- Refresh a place, from where the asker listens now ('': as before); it may be its turn.
local function refresh(book, place, home)
  if home ~= '' and home ~= place.home then
    move(place, home)
  end
  write_place(book, place)
  return serve(book, place) or busy(book, place)
end

-- A latch or a barrier: count it down, or wait for the others.
local function gather(book, mine, wait)
  if mine.slots < BARRIER and mine.take > 0 then
    if free_of(book, mine.slots) == 0 then
      return { 0, REFRESH, book.last } -- nothing is left to count
    end
    move(mine, '-') -- it stays although its process may end
    local counted = grant(book, mine, mine.lease, next_fence(book))
    for _, hold in pairs(book.holds) do
      if hold.take > 0 then
        extend(book, hold, mine.lease) -- all is forgotten together, so long after the last
      end
    end
    serve(book)
    return counted
  end
  mine.first = 1 -- all are let through together
  add_place(book, mine)
  local answer = serve(book, mine)
  if not answer and not wait then
    drop(book, mine.id)
  end
  return answer or busy(book, mine)
end

-- Grant it, or give it a place, if it waits.
local function claim(book, mine, wait)
  if book.holds[mine.id] then
    return extend(book, book.holds[mine.id], mine.lease)
  end
  local place = place_of(book, mine.id)
  if place then
    return refresh(book, place, mine.home)
  end
  local slots = slots_of(book) or mine.slots
  if slots ~= mine.slots then
    return { 2, slots, 0 }
  end
  if slots >= LATCH then
    return gather(book, mine, wait)
  end
  if book.taken < slots then
    serve(book) -- a lease that ran out has freed slots for those who wait already
  end
  if mine.take <= slots - book.taken and not (mine.first == 1 and waiter(book, true, 0)) then
    return grant(book, mine, mine.lease, next_fence(book))
  end
  if wait then
    add_place(book, mine)
  end
  return busy(book, mine)
end

-- What operators see: the rows as they are written. At most `most` of those who wait.
local function look(book, most)
  local holds, waiters = {}, {}
  for _, hold in pairs(book.holds) do
    holds[#holds + 1] = written(hold)
  end
  local found = standing(redis.pcall('ZRANGE', book.queue, 0, most - 1))
    or redis.call('ZRANGE', book.queue, 0, 0) -- raises it, and tells this line
  for _, id in ipairs(found) do
    local said = redis.call('HGET', book.places, id)
    if said and row(id, said).ends > book.now then
      waiters[#waiters + 1] = said
    end
  end
  return { book.now, holds, waiters }
end
