-- The law of slots on one name: the same decisions in the same order as core/law.py.
-- Spliced in where a script has `--@law`, after the fast path that needs none of it.
--
-- One name is three keys with one hash tag:
--   holds    hash  id → 'fence ends since lease take slots wake_address who'; '.f' → last fence
--   queue    zset  claim ids by position; unfair waiters come UNFAIR behind the fair ones
--   waiters  hash  id → 'fair ends since lease take slots wake_address who'; '.n' → last position
-- Times are µs of this server's clock (TIME), which also decides what has expired. A hold or a
-- waiter whose end has passed is dead, whether its key still exists or not.
--
-- The law survives a clock that is set back (fences count on from '.f', which is kept for KEEP), a
-- restart without data (no fence is below the clock), the death of the caller at any moment (the
-- script is atomic, and everything it writes expires) and repeated calls (idempotent by claim id).
--@constants

local function digits(number)
  return string.format('%.0f', number)
end

local function foreign()
  error('FOREIGN data where lockfast keeps a lock')
end

-- Call `work`; return nil if foreign data is in the way: it must not block the rest of a batch.
local function unless_foreign(work, ...)
  local done, answer = pcall(work, ...)
  if done then
    return answer
  end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  if not (string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'FOREIGN', 1, true)) then
    error(answer)
  end
  return nil
end

-- Parse a row into a table. `first` is the fence of a hold, or 1 | 0 for a fair or unfair waiter;
-- `tail` is kept as text.
local function row(id, text)
  local first, ends, since, tail, lease, take, slots, wake_address =
    string.match(text, '^(%d+) (%d+) (%d+) ((%d+) (%d+) (%d+) (%S+) .*)$')
  if not first then
    foreign()
  end
  return {
    id = id, first = tonumber(first), ends = tonumber(ends), since = since, tail = tail,
    lease = tonumber(lease), take = tonumber(take), slots = tonumber(slots),
    wake_address = wake_address,
  }
end

local function text_of(r)
  return string.format('%.0f %.0f %s %s', r.first, r.ends, r.since, r.tail)
end

-- Write the tail anew, with this wake address and owner (nil: the same owner).
local function write_tail(r, wake_address, who)
  r.wake_address = wake_address
  who = who or string.match(r.tail, '^%d+ %d+ %d+ %S+ (.*)$')
  r.tail = string.format('%.0f %.0f %.0f %s %s', r.lease, r.take, r.slots, wake_address, who)
end

-- Read a book: the live holds of one name at the beginning of a step. `purge` deletes dead ones.
local function open(holds, queue, waiters, now, purge)
  local book = {
    key = holds, queue = queue, waiters = waiters, now = now, holds = {}, taken = 0, last = 0,
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
      elseif purge then
        redis.call('HDEL', holds, hold.id)
      end
    end
  end
  return book
end

local function dequeue(book, id)
  redis.call('ZREM', book.queue, id)
  redis.call('HDEL', book.waiters, id)
end

-- Return what a query found in the queue, or nil if it failed. While a cluster's slot migrates, a
-- key that this very step has emptied counts as 'non local': the queue is empty.
local function queued(found)
  if not found.err then
    return found
  end
  return string.find(found.err, 'non local key', 1, true) and {} or nil
end

-- Return live waiter number `skip` among the fair or the unfair; dead ones before it are removed.
local function waiter_at(book, fair, skip)
  local low, high = '-inf', '(' .. UNFAIR
  if not fair then
    low, high = UNFAIR, '+inf'
  end
  while true do
    local found = queued(redis.pcall('ZRANGEBYSCORE', book.queue, low, high, 'LIMIT', skip, 1))
      or redis.call('ZRANGEBYSCORE', book.queue, low, high) -- raises the error, with this line
    local id = found[1]
    if not id then
      return nil
    end
    local text = redis.call('HGET', book.waiters, id)
    if text then
      local waiter = row(id, text)
      if waiter.ends > book.now then
        return waiter
      end
    end
    dequeue(book, id)
  end
end

-- Return the waiter with this id. A waiter that has a row and no position in the queue would never
-- be served (one of the two keys was evicted, say): it is removed, and the claim enqueued anew.
local function waiter_of(book, id)
  local text = redis.call('HGET', book.waiters, id)
  local waiter = text and row(id, text)
  if waiter and waiter.ends > book.now and redis.call('ZSCORE', book.queue, id) then
    return waiter
  end
  if waiter then
    dequeue(book, id)
  end
  return nil
end

local function slots_of(book)
  if book.slots then
    return book.slots
  end
  local first = waiter_at(book, true, 0) or waiter_at(book, false, 0)
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
  redis.call('HSET', book.key, '.f', digits(book.last), hold.id, text_of(hold))
  keep_holds(book)
end

local function grant(book, waiter, lease, fence)
  waiter.first, waiter.since = fence, digits(book.now)
  waiter.ends = book.now + lease
  book.taken = book.taken + waiter.take
  book.slots = waiter.slots
  write_hold(book, waiter)
  return { 1, fence, lease }
end

local function extend(book, hold, lease)
  hold.ends = book.now + lease
  write_hold(book, hold)
  return { 1, hold.first, lease }
end

local function write_waiter(book, waiter)
  waiter.ends = book.now + WAITER_LEASE
  redis.call('HSET', book.waiters, waiter.id, text_of(waiter))
  redis.call('PEXPIRE', book.queue, WAITER_LEASE_MS)
  redis.call('PEXPIRE', book.waiters, WAITER_LEASE_MS)
end

local function enqueue(book, waiter)
  local number = redis.call('HINCRBY', book.waiters, '.n', 1)
  redis.call('ZADD', book.queue, waiter.first == 1 and number or UNFAIR + number, waiter.id)
  write_waiter(book, waiter)
end

-- In a cluster a process listens at the node that served the name at its last request. Its wake
-- address names that node: 's' (sharded) or 'c' (classic), a prefix of the node's id, the process.
-- A node counts its own subscribers only, so a listener at another node is not known to be gone.
-- A waiter that is gone gets no message: at another node it might be received as a grant.
local function wake_in_cluster(book, message, kind, node, listener)
  local channel = 'lf:wake:' .. listener .. ':' .. book.key
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

-- Wake one waiter. False: its channel has no subscriber, so the waiting process is gone. A waiter
-- that does not listen yet ('.') claims again once it does. A waiter that is gone gets no message:
-- messages reach replicas, and a client still subscribed there would take it for a grant.
local function wake(book, waiter, message)
  if waiter.wake_address == '.' then
    return true
  end
  local kind, node, listener = string.match(waiter.wake_address, '^([sc])(%x+):(%S+)$')
  if kind then
    return wake_in_cluster(book, message, kind, node, listener)
  end
  local channel = 'lf:wake:' .. waiter.wake_address
  if redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
    return false
  end
  redis.call('PUBLISH', channel, message)
  return true
end

-- Return how many slots the fair waiters may take now.
local function free_of(book, slots)
  if slots < LATCH then
    return slots - book.taken
  end
  if slots < BARRIER then
    return book.taken >= slots - LATCH and 0 or -1 -- waiters of a latch take no slots
  end
  for skip = 0, slots - BARRIER - 1 do
    if not waiter_at(book, true, skip) then
      return 0
    end
  end
  return slots - BARRIER
end

-- Grant free slots to the waiters at the head, in order; return what `caller` got, the waiter that
-- sent this call. The work is bounded by the waiters granted or removed, not by the queue's length.
local function serve(book, caller)
  local free, got, waiter
  while not free or free > 0 or waiter.take == 0 do
    waiter = waiter_at(book, true, 0)
    if not waiter then
      break
    end
    free = free or free_of(book, waiter.slots)
    if waiter.take > free then
      break -- nobody overtakes it, or a writer would starve
    end
    dequeue(book, waiter.id)
    if caller and waiter.id == caller.id then
      free = free - waiter.take
      got = grant(book, waiter, waiter.lease, next_fence(book))
    else
      local fence, lease = next_fence(book), math.min(waiter.lease, FIRST_LEASE)
      if waiter.slots >= BARRIER then
        lease = waiter.lease -- nobody waits for its end, and a late party must find that it passed
      end
      -- A waiter that is gone is skipped; at a barrier it counts, since it has arrived.
      local reached = wake(book, waiter, waiter.id .. ' ' .. digits(fence) .. ' ' .. digits(lease))
      if reached or waiter.slots >= BARRIER then
        free = free - waiter.take
        grant(book, waiter, lease, fence)
      end
    end
  end
  if caller and caller.first ~= 1 then
    free = free or caller.slots - book.taken
    if caller.take <= free then
      dequeue(book, caller.id) -- the first unfair claim wins, although others were woken before it
      free = free - caller.take
      got = grant(book, caller, caller.lease, next_fence(book))
    end
  end
  local skip = 0
  while not free or free > 0 do
    waiter = waiter_at(book, false, skip)
    if not waiter then
      break
    end
    free = free or waiter.slots - book.taken
    skip = skip + 1
    if waiter.take <= free then
      if wake(book, waiter, waiter.id) then
        free = free - waiter.take
      else
        dequeue(book, waiter.id)
        skip = skip - 1
      end
    end
  end
  return got
end

-- Answer a waiter: the first of the queue claims again when a hold expires, others only to refresh.
local function busy(book, waiter)
  local after = REFRESH
  for _, hold in pairs(book.holds) do
    after = math.min(after, hold.ends - book.now)
  end
  if after < REFRESH and waiter.first == 1 then
    local first = waiter_at(book, true, 0)
    if first and first.id ~= waiter.id then
      after = REFRESH
    end
  end
  return { 0, after, book.last }
end

-- Refresh a waiter, with its current wake address ('': unchanged), and serve the queue.
local function refresh(book, waiter, wake_address)
  if wake_address ~= '' and wake_address ~= waiter.wake_address then
    write_tail(waiter, wake_address)
  end
  write_waiter(book, waiter)
  return serve(book, waiter) or busy(book, waiter)
end

-- Claim on a latch or a barrier: count down, or wait for the others.
local function gather(book, mine, wait)
  if mine.slots < BARRIER and mine.take > 0 then
    if free_of(book, mine.slots) == 0 then
      return { 0, REFRESH, book.last } -- nothing is left to count
    end
    write_tail(mine, '-') -- the count remains although its process may end
    local counted = grant(book, mine, mine.lease, next_fence(book))
    for _, hold in pairs(book.holds) do
      if hold.take > 0 then
        extend(book, hold, mine.lease) -- all counts expire together, one lease after the last
      end
    end
    serve(book)
    return counted
  end
  mine.first = 1 -- all waiters pass together
  enqueue(book, mine)
  local answer = serve(book, mine)
  if not answer and not wait then
    dequeue(book, mine.id)
  end
  return answer or busy(book, mine)
end

-- Grant the claim, or enqueue it if it waits.
local function claim(book, mine, wait)
  if book.holds[mine.id] then
    return extend(book, book.holds[mine.id], mine.lease)
  end
  local waiter = waiter_of(book, mine.id)
  if waiter then
    return refresh(book, waiter, mine.wake_address)
  end
  local slots = slots_of(book) or mine.slots
  if slots ~= mine.slots then
    return { 2, slots, 0 }
  end
  if slots >= LATCH then
    return gather(book, mine, wait)
  end
  if book.taken < slots then
    serve(book) -- an expired lease has freed slots for the waiters that were here first
  end
  if mine.take <= slots - book.taken and not (mine.first == 1 and waiter_at(book, true, 0)) then
    return grant(book, mine, mine.lease, next_fence(book))
  end
  if wait then
    enqueue(book, mine)
  end
  return busy(book, mine)
end

-- Return the rows for an operator, as text, with at most `most` waiters.
local function snapshot(book, most)
  local holds, waiters = {}, {}
  for _, hold in pairs(book.holds) do
    holds[#holds + 1] = text_of(hold)
  end
  local found = queued(redis.pcall('ZRANGE', book.queue, 0, most - 1))
    or redis.call('ZRANGE', book.queue, 0, 0) -- raises the error, with this line
  for _, id in ipairs(found) do
    local text = redis.call('HGET', book.waiters, id)
    if text and row(id, text).ends > book.now then
      waiters[#waiters + 1] = text
    end
  end
  return { book.now, holds, waiters }
end
