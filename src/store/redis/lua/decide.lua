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
  decode = false, encode = false, fresh = false, time = false, advanced = false, pulled_back = false, left = false,
  taken = false, wait_ns = false, lives_ns = false, credits_at_reset = false, session = false, drain = false,
}

function algorithm.credits_at_reset(left) return plus(left, 1) end

-- How long it is until the bucket is full by every limit on it.
function algorithm.lives_ns(state, at) return algorithm.wait_ns(state, capacity, at) end

function algorithm.session() return nil end

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

-- How many credits the ask takes of those that are left; nil when it is denied.
local function granted(ask, left)
  if ask.drains then return left ~= 0 and min(ask.cost, left) or nil end
  if less(left, ask.cost) then return nil end
  return ask.action == 'take' and ask.cost or 0
end

-- What to answer: allowed, before, left, reset_ns, retry_ns and session, `-` where there is none.
local function outcome(state, ask, allowed, before, at)
  local left = algorithm.left(state, at)
  local wanted = ask.drains and 1 or ask.cost
  local reset_ns, retry_ns, session = 0, '-', algorithm.session(state) or '-'
  if less(left, capacity) then reset_ns = algorithm.wait_ns(state, algorithm.credits_at_reset(left), at) end
  if not allowed and not less(capacity, wanted) then retry_ns = format(algorithm.wait_ns(state, wanted, at)) end
  allowed = allowed and 1 or 0
  return string_format('%d %s %s %s %s %s', allowed, format(before), format(left), format(reset_ns), retry_ns, session)
end

-- The outcome, and the new state with its time; nil when nothing changed.
local function decide(stored, ask)
  local state, at, pulled_back = present(stored, ask.at)
  local before = algorithm.left(state, at)
  local taken = granted(ask, before)
  local takes = taken and taken ~= 0
  if takes then state = algorithm.taken(state, taken, at) end
  local changed = takes or (pulled_back and ask.action ~= 'look')
  return outcome(state, ask, taken ~= nil, before, at), changed and state or nil, at
end

algorithm.drain = decide

-- Whether the bucket is as good as fresh at that time.
local function is_fresh(stored, at)
  local state
  state, at = present(stored, at)
  return algorithm.wait_ns(state, capacity, at) == 0
end
