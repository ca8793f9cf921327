-- The part that all algorithms share: see algorithm/decide.rs. Each algorithm adds its own functions to `algorithm`,
-- with the names and meanings of the trait there. States are replaced, never changed. Only a state whose credits all
-- come back at once has `ends`, which is that time. `mode` determines what an action may change. `apply`: everything.
-- `look`: only a time that is ahead because the clock was set back. `hold`: the same, and it also records that another
-- member denied the group.

-- ARGV[1] holds the limit's numbers: its credits, and one to three more. Then words describe the basis of its counters,
-- unless they count down from those credits: `of` another number of credits, or credits `used`. A `slowest` refill is
-- that of another limit on the same counters. An actor's own limit has the word `replaces` and the capacity of the rule's.
local first, second, third, fourth, words = ARGV[1]:match('^(%d+) (%d+) ?(%d*) ?(%d*) ?(.*)$')
local is_used, of, slowest = words:find('used', 1, true), words:match('of (%d+)'), words:match('slowest (%d+)')
local replaced = words:match('replaces (%d+)')
replaced = replaced and parse(replaced)
local capacity = parse(first)
local full = not is_used and (of and parse(of) or capacity)

-- Returns the used credits that a stored count stands for (see algorithm/count_basis.rs), or nil if it is not a count.
local function used_in(count)
  local below_zero = count:match('^%-(%d+)$')
  if not full then return not below_zero and parse(count) or nil end
  return below_zero and plus(full, parse(below_zero)) or minus(full, parse(count))
end

-- Returns the count to store for these used credits.
local function count_of(used)
  if not full then return format(used) end
  return less(full, used) and '-' .. format(minus(used, full)) or format(minus(full, used))
end

-- Returns the usage under the present limit, given the amounts that are full under the limit before and under this one. What
-- was used counts as far as it fits, and debt as a whole.
local function here(usage, full_before, full_now)
  local used = min(usage, full_before)
  return plus(min(used, full_now), minus(usage, used))
end

-- All fields that an algorithm may set, so that the table need not grow.
local algorithm = {
  decode = false, encode = false, fresh = false, time = false, advanced = false, pulled_back = false, used = false,
  taken = false, given_back = false, wait_ns = false, lives_ns = false, credits_at_reset = false, session = false, drains = false,
  drain = false, is_fresh = false, store = false, leases = false, reserved = false,
}

-- The functions that decide: the algorithm's own, or those of records.lua while credits of the bucket are reserved.
local limit = algorithm

function algorithm.credits_at_reset(left) return plus(left, 1) end

-- Returns the time until the bucket is full under every limit that shares it.
function algorithm.lives_ns(state, at) return algorithm.wait_ns(state, capacity, at) end

function algorithm.session() return nil end

-- Returns the credits left, without regard to reservations.
local function left_in(state, at) return minus(capacity, algorithm.used(state, at)) end

local DAMAGED = 'ERR the key does not hold a state of this algorithm'

local LATER = 'ERR a later divvy has written this counter, in version %s; this one reads version 1: upgrade this server'

-- Returns the error for a stored text that cannot be read. A state of the first version, the only one so far, ends in a
-- number. A later one ends in a space, `v` and its version. No server has ever accepted such a text as a state, even
-- before there were versions.
local function refusal_of(stored)
  local version = stored:match(' v(%d+)$')
  return version and LATER:format(version) or DAMAGED
end

-- Returns whether the clock was set back. `time` is the latest time in the bucket.
local function was_set_back(time, at) return less(at, time) and less(MAX_STANDSTILL_NS, minus(time, at)) end

-- Returns the state at the time of an ask, that time, and whether the state was moved back because the clock was set
-- back.
local function present(stored, at)
  if not stored then return limit.fresh(at), at, false end
  local time = limit.time(stored, at)
  if not less(at, time) then return limit.advanced(stored, at), at, false end
  if was_set_back(time, at) then
    return limit.advanced(limit.pulled_back(stored, at), at), at, true
  end
  return limit.advanced(stored, time), time, false
end

local function decide_for(ask, left) return decide_ask(ask.action, ask.cost, left, not less(left, ask.cost)) end

-- Returns the answer: allowed, before (for a show: the reserved credits), left (negative: credits owed), reset_ns,
-- retry_ns and session. `-` stands for no time.
local function outcome(state, ask, before, at)
  local used = limit.used(state, at)
  local left, allowed, _, wanted = minus(capacity, used), decide_for(ask, before)
  local balance = less(capacity, used) and '-' .. format(minus(used, capacity)) or format(left)
  local reset_ns, retry_ns, session = 0, '-', limit.session(state) or '-'
  local window_ends = state.base and algorithm.used(state.base, at) ~= 0 and state.base.ends
  if used ~= 0 and window_ends then
    -- Reserved credits may come back before.
    reset_ns = minus(window_ends, at)
  elseif used ~= 0 then
    reset_ns = limit.wait_ns(state, limit.credits_at_reset(left), at)
  end
  if not allowed and not less(capacity, wanted) then retry_ns = format(limit.wait_ns(state, wanted, at)) end
  allowed = allowed and 1 or 0
  return string_format('%d %s %s %s %s %s', allowed, format(before), balance, format(reset_ns), retry_ns, session)
end

-- Returns the outcome, the new state (nil if nothing changed) and its time.
local function decide(stored, ask)
  if limit.drains and limit.drains[ask.action] then return limit.drain(stored, ask) end
  local state, at, pulled_back = present(stored, ask.at)
  local before = 0
  if ask.action ~= 'show' then
    before = minus(capacity, limit.used(state, at))
  elseif limit.reserved then
    before = limit.reserved(state)
  end
  local changed = pulled_back
  if ask.action == 'refund' then
    local used = limit.encode(state)
    state = limit.given_back(state, ask.cost)
    changed = changed or limit.encode(state) ~= used
  end
  local _, credits = decide_for(ask, before)
  if mode == 'apply' and credits ~= 0 then state, changed = limit.taken(state, credits, at), true end
  return outcome(state, ask, before, at), changed and state or nil, at
end

-- Returns whether the bucket is equivalent to a fresh one at that time.
local function is_fresh(stored, at)
  if limit.is_fresh then return limit.is_fresh(stored, at) end
  local state
  state, at = present(stored, at)
  return limit.wait_ns(state, capacity, at) == 0
end
