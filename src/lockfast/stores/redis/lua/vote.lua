-- Vote on claims as one node of a quorum, one after the other; stores/redlock counts the votes.
-- Idempotent by claim id: called again, a hold's lease restarts and a waiter is refreshed.
--
-- Only the claims of this call are granted: where the queues of two nodes differ, nodes that grant
-- to their own first waiters would split the votes for good. So all waiters are queued among the
-- unfair, and a release only wakes them. A new claim is refused while a fair waiter is queued; a
-- waiter is granted what fits, unless a fair waiter that wants more is queued before it.
--
-- The proposed fence is used if it is above all fences issued here and not behind the clock: a
-- majority that grants under the same fence needs no second phase.
--
-- KEYS  for each: holds, queue, waiters; last: the birth mark
-- ARGV  create 1|0 (0: only claims that hold or wait here), stop 1|0 (at the first not granted),
--       the ballot's number, the proposed fence; for each: id, lease in µs, fair 1|0, wait
--       1|0, terms 'lease take slots', wake address ('': unchanged), who
-- → for each three numbers: 1, fence, lease granted | 0, retry after, last fence busy |
--   2, slots, 0 another size | 3, 0, 0 not here; or no vote: {4} no mark | {5, µs until it votes} |
--   {6, the longest lease that this quorum was initialized for}
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local AHEAD = 1000000 -- how far ahead of this node's clock a proposed fence may be
local mark = call('GET', KEYS[#KEYS])
local from, longest = string.match(mark or '', '^(%d+) (%d+)$')
if not from then
  return { 4 }
end
if tonumber(from) > now then
  return { 5, tonumber(from) - now }
end
local create, stop, ballot = ARGV[1] == '1', ARGV[2] == '1', ARGV[3]
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
  if create and last and string.match(last, '^%d+$') and call('EXISTS', KEYS[i + 1]) == 0 then
    -- Fast path: no holder, no waiter. The law would grant the claim; more reads are not needed.
    local fence = math.max(last + 1, now)
    if proposed >= fence and proposed <= now + AHEAD then
      fence = proposed
    end
    local number = string.format('%.0f', fence)
    local dates = string.format(' %.0f %.0f ', now + lease, now)
    local tail = terms .. ' ' .. ballot .. '@' .. ARGV[a + 5] .. ' ' .. who
    call('HSET', KEYS[i], '.f', number, id, number .. dates .. tail)
    -- The last fence is remembered until this node's clock is well past it; it may be another's.
    local ttl = math.max(lease, fence - now + 90000000)
    call('PEXPIRE', KEYS[i], string.format('%.0f', math.ceil(ttl / 1000)))
    answers[i], answers[i + 1], answers[i + 2] = 1, fence, tonumber(lease)
  else
--@law
    -- Is a waiter queued before this claim that it must not overtake?
    local function must_wait(book, mine, waiter)
      if mine.first ~= 1 then
        return false
      end
      local skip = 0
      while true do
        local other = waiter_at(book, false, skip)
        if not other or other.id == mine.id then
          return false
        end
        if other.first == 1 and (not waiter or other.take > mine.take) then
          return true
        end
        skip = skip + 1
      end
    end
    local function join_queue(book, mine)
      local number = call('HINCRBY', book.waiters, '.n', 1)
      call('ZADD', book.queue, UNFAIR + number, mine.id)
    end
    -- Answer a waiter: the first of the queue retries when a hold expires, the others later.
    local function retry_later(book, mine)
      local after = REFRESH
      for _, hold in pairs(book.holds) do
        after = math.min(after, hold.ends - now)
      end
      local first = after < REFRESH and waiter_at(book, false, 0)
      if first and first.id ~= mine.id then
        after = REFRESH
      end
      return { 0, after, book.last }
    end
    local function vote()
      local book = open(KEYS[i], KEYS[i + 1], KEYS[i + 2], now, true)
      local wake_address = ARGV[a + 5]
      local hold = book.holds[id]
      if hold then
        local previous, address = string.match(hold.wake_address, '^(%d+)@(%S+)$')
        if previous and tonumber(previous) < tonumber(ballot) then
          write_tail(hold, ballot .. '@' .. (wake_address == '' and address or wake_address))
        end
        return extend(book, hold, tonumber(lease))
      end
      local waiter = waiter_of(book, id)
      if not waiter and not create then
        return { 3, 0, 0 }
      end
      wake_address = wake_address ~= '' and wake_address or waiter and waiter.wake_address or '.'
      local text = terms .. ' ' .. wake_address .. ' ' .. who
      local mine = row(id, ARGV[a + 2] .. ' 0 ' .. digits(now) .. ' ' .. text)
      local slots = slots_of(book) or mine.slots
      if slots ~= mine.slots then
        return { 2, slots, 0 }
      end
      if mine.take <= slots - book.taken and not must_wait(book, mine, waiter) then
        if waiter then
          dequeue(book, id)
        end
        local fence = next_fence(book)
        if proposed >= fence and proposed <= now + AHEAD then
          fence = proposed
        end
        book.last = fence
        write_tail(mine, ballot .. '@' .. wake_address)
        return grant(book, mine, tonumber(lease), fence)
      end
      if waiter then
        write_tail(waiter, wake_address)
        write_waiter(book, waiter)
      elseif ARGV[a + 3] == '1' then
        join_queue(book, mine)
        write_waiter(book, mine)
      end
      return retry_later(book, mine)
    end
    local answer
    if create then
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
