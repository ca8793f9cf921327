-- What the algorithms have in common, as algorithm/decide.rs has it for the other stores: each algorithm adds its own
-- functions to `algorithm`, with the names and the meaning of the trait there. States are never changed, only replaced.

local OVERTAKING_NS = 10 * 1e9

-- The limit's numbers: its credits, and one to three more. Then, unless its counters count what is left of its own credits, what
-- they count: `of` so many, or what was `used`; and the `slowest` refill of all limits on them.
local first, second, third, fourth, words = ARGV[1]:match('^(%d+) (%d+) ?(%d*) ?(%d*) ?(.*)$')
local is_used, of, slowest = words:find('used', 1, true), words:match('of (%d+)'), words:match('slowest (%d+)')
local capacity = parse(first)
local full = not is_used and (of and parse(of) or capacity)

-- See algorithm/tally.rs: how much was used, as a stored count says; nil when it is none.
local function used_in(count)
  local below_zero = count:match('^%-(%d+)$')
  if not full then return not below_zero and parse(count) or nil end
  return below_zero and plus(full, parse(below_zero)) or minus(full, parse(count))
end

-- What to store when so much was used.
local function count_of(used)
  if not full then return format(used) end
  return less(full, used) and '-' .. format(minus(used, full)) or format(minus(full, used))
end

-- All that an algorithm adds, so that the table need not grow.
local algorithm = {
  decode = false, encode = false, fresh = false, time = false, advanced = false, pulled_back = false, used = false,
  taken = false, given_back = false, wait_ns = false, lives_ns = false, credits_at_reset = false, session = false, drain = false,
}

function algorithm.credits_at_reset(left) return plus(left, 1) end

-- How long it is until the bucket is full by every limit on it.
function algorithm.lives_ns(state, at) return algorithm.wait_ns(state, capacity, at) end

function algorithm.session() return nil end

-- Whole credits left.
local function left_in(state, at) return minus(capacity, algorithm.used(state, at)) end

local DAMAGED = 'ERR the key holds nothing that this algorithm has stored'

local LATER = 'ERR a later divvy has written this counter, in version %s; this one reads version 1: upgrade this server'

-- The state when an ask reaches it, its time, and whether it was pulled back because the clock was set back.
local function present(stored, at)
  if not stored then return algorithm.fresh(at), at, false end
  local time = algorithm.time(stored)
  if not less(at, time) then return algorithm.advanced(stored, at), at, false end
  if less(OVERTAKING_NS, minus(time, at)) then
    return algorithm.advanced(algorithm.pulled_back(stored, at), at), at, true
  end
  return algorithm.advanced(stored, time), time, false
end

-- The credits that must be left for the ask to be allowed.
local function wanted(ask)
  if ask.action == 'refund' then return 0 end
  return (ask.action == 'look' or ask.action == 'take') and ask.cost or 1
end

-- How many credits the ask takes from a bucket that has `left`.
local function taken(ask, left)
  if ask.action == 'charge' then return ask.cost end
  if ask.drains then return min(ask.cost, left) end
  local takes = ask.action == 'take' or ask.action == 'overdraw'
  return takes and not less(left, wanted(ask)) and ask.cost or 0
end

-- What to answer: allowed, before, left (below 0: what is owed), reset_ns, retry_ns and session, `-` where there is none.
local function outcome(state, ask, before, at)
  local used = algorithm.used(state, at)
  local left, allowed = minus(capacity, used), not less(before, wanted(ask))
  local balance = less(capacity, used) and '-' .. format(minus(used, capacity)) or format(left)
  local reset_ns, retry_ns, session = 0, '-', algorithm.session(state) or '-'
  if used ~= 0 then reset_ns = algorithm.wait_ns(state, algorithm.credits_at_reset(left), at) end
  if not allowed and not less(capacity, wanted(ask)) then
    retry_ns = format(algorithm.wait_ns(state, wanted(ask), at))
  end
  allowed = allowed and 1 or 0
  return string_format('%d %s %s %s %s %s', allowed, format(before), balance, format(reset_ns), retry_ns, session)
end

-- The outcome, and the new state with its time; nil when nothing changed.
local function decide(stored, ask)
  local state, at, pulled_back = present(stored, ask.at)
  local before = left_in(state, at)
  local changed = pulled_back and ask.action ~= 'look' and ask.action ~= 'glance'
  if ask.action == 'refund' then
    local used = algorithm.encode(state)
    state = algorithm.given_back(state, ask.cost)
    changed = changed or algorithm.encode(state) ~= used
  end
  local credits = taken(ask, before)
  if credits ~= 0 then state, changed = algorithm.taken(state, credits, at), true end
  return outcome(state, ask, before, at), changed and state or nil, at
end

algorithm.drain = decide

-- Whether the bucket is as good as fresh at that time.
local function is_fresh(stored, at)
  local state
  state, at = present(stored, at)
  return algorithm.wait_ns(state, capacity, at) == 0
end
