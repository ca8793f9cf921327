-- What the algorithms have in common, as algorithm/decide.rs has it for the other stores: each algorithm adds its own
-- functions to `algorithm`, with the names and the meaning of the trait there. States are never changed, only replaced. A state
-- that ends all at once has that time as `ends`; no other has one.

local OVERTAKING_NS = 10 * 1e9

-- A bucket is kept so much longer than until it is as good as fresh by the time of its last change: the next one may come
-- with a time that a client has brought, and that is as far behind.
local GRACE_NS = 10 * 1e9

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
  is_fresh = false, store = false, leases = false,
}

-- What decides: the algorithm, or, while something of the bucket is reserved, the algorithm with that beside it (reserved.lua).
local limit = algorithm

function algorithm.credits_at_reset(left) return plus(left, 1) end

-- How long it is until the bucket is full by every limit on it.
function algorithm.lives_ns(state, at) return algorithm.wait_ns(state, capacity, at) end

function algorithm.session() return nil end

-- Whole credits that the algorithm itself leaves.
local function left_in(state, at) return minus(capacity, algorithm.used(state, at)) end

local DAMAGED = 'ERR the key holds nothing that this algorithm has stored'

local LATER = 'ERR a later divvy has written this counter, in version %s; this one reads version 1: upgrade this server'

-- Why a stored text is refused. A state of the first version, the only one so far, ends in a number. A later one ends in a
-- space, `v` and its version: no server has ever taken such a text for a state, not even those that knew nothing of versions.
local function refusal_of(stored)
  local version = stored:match(' v(%d+)$')
  return version and LATER:format(version) or DAMAGED
end

-- Whether the clock was set back since that time, the latest one that a bucket knows of.
local function was_set_back(time, at) return less(at, time) and less(OVERTAKING_NS, minus(time, at)) end

-- The state when an ask reaches it, its time, and whether it was pulled back because the clock was set back.
local function present(stored, at)
  if not stored then return limit.fresh(at), at, false end
  local time = limit.time(stored, at)
  if not less(at, time) then return limit.advanced(stored, at), at, false end
  if was_set_back(time, at) then
    return limit.advanced(limit.pulled_back(stored, at), at), at, true
  end
  return limit.advanced(stored, time), time, false
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
  local used = limit.used(state, at)
  local left, allowed = minus(capacity, used), not less(before, wanted(ask))
  local balance = less(capacity, used) and '-' .. format(minus(used, capacity)) or format(left)
  local reset_ns, retry_ns, session = 0, '-', limit.session(state) or '-'
  if used ~= 0 then reset_ns = limit.wait_ns(state, limit.credits_at_reset(left), at) end
  if not allowed and not less(capacity, wanted(ask)) then
    retry_ns = format(limit.wait_ns(state, wanted(ask), at))
  end
  allowed = allowed and 1 or 0
  return string_format('%d %s %s %s %s %s', allowed, format(before), balance, format(reset_ns), retry_ns, session)
end

-- The outcome, and the new state with its time; nil when nothing changed.
local function decide(stored, ask)
  local state, at, pulled_back = present(stored, ask.at)
  local before = minus(capacity, limit.used(state, at))
  local changed = pulled_back
  if ask.action == 'refund' then
    local used = limit.encode(state)
    state = limit.given_back(state, ask.cost)
    changed = changed or limit.encode(state) ~= used
  end
  local credits = taken(ask, before)
  if credits ~= 0 then state, changed = limit.taken(state, credits, at), true end
  return outcome(state, ask, before, at), changed and state or nil, at
end

algorithm.drain = decide

-- Whether the bucket is as good as fresh at that time.
local function is_fresh(stored, at)
  if limit.is_fresh then return limit.is_fresh(stored, at) end
  local state
  state, at = present(stored, at)
  return limit.wait_ns(state, capacity, at) == 0
end
