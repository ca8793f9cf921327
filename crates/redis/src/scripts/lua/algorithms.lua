-- The algorithms, a section each: functions that the frame of a bucket (frames.lua, decide) calls. A line of four hyphens
-- begins a section: see scripts/mod.rs.

---- fixed-window
-- See algorithm/windows.rs. Stored: "ends count". Only for commands with their own limit: the window of a rule is
-- stored in Divvy's format (frames.lua, section window_stored).

local window_ns = parse(second)

function algorithm.decode(stored)
  local ends, count = stored:match('^(%d+) (%-?%d+)$')
  local used = ends and used_in(count)
  return used and { ends = parse(ends), used = used }
end

function algorithm.encode(state) return format(state.ends) .. ' ' .. count_of(state.used) end

function algorithm.fresh(at) return { ends = saturating(plus(at, window_ns)), used = 0 } end

function algorithm.time(state) return minus(state.ends, window_ns) end

function algorithm.advanced(state, at) return less(at, state.ends) and state or algorithm.fresh(at) end

function algorithm.pulled_back(state, at) return { ends = saturating(plus(at, window_ns)), used = state.used } end

function algorithm.used(state) return state.used end

function algorithm.taken(state, credits)
  return { ends = state.ends, used = saturating(plus(state.used, credits)) }
end

function algorithm.given_back(state, credits) return { ends = state.ends, used = minus(state.used, credits) } end

function algorithm.wait_ns(state, credits, at)
  return less(left_in(state), credits) and minus(state.ends, at) or 0
end

---- calendar-window
-- See algorithm/windows.rs. Replaces some of the functions of the section fixed-window, which comes before this one.
-- The limit's numbers: three boundaries between windows, in order.

local boundaries = { parse(second), parse(third), parse(fourth) }
local last_window_ns = minus(boundaries[3], boundaries[2])

-- Returns the end of the window at that time. After the last boundary, there is one more window with the length of the
-- last.
local function ends_after(at)
  for place = 1, 3 do
    if less(at, boundaries[place]) then return boundaries[place] end
  end
  return saturating(plus(at, last_window_ns))
end

function algorithm.fresh(at) return { ends = ends_after(at), used = 0 } end

-- A window later than the current one began at the end of the current one, or after it. Half a window of tolerance
-- allows for changed time zone data and for windows of different lengths, which differ by less than that.
function algorithm.time(state, at)
  local ends = ends_after(at)
  local window_ns = less(at, boundaries[2]) and minus(boundaries[2], boundaries[1]) or last_window_ns
  local half = divide(window_ns, 2)
  local later_ns = minus(state.ends, ends)
  if half == 0 or less(later_ns, half) then return 0 end
  return plus(ends, minus(later_ns, plus(window_ns, half)))
end

function algorithm.pulled_back(state, at) return { ends = ends_after(at), used = state.used } end

---- rule-window
-- A rule's fixed window (frames.lua, section window_stored) as a state of the section fixed-window, which comes before this one. Its number and TTL
-- keep Divvy's format. `damaged` is the error if the key does not hold a number.

-- The limit has milliseconds.
window_ns = times(window_ns, 1e6)

-- The window when it was read.
local known

function algorithm.decode(stored)
  if damaged then
    DAMAGED = damaged
    return nil
  end
  local at = nanoseconds('now')
  -- This is read again after Redis's time, so that no reservation outlives the window.
  local left_ms = redis.call('PTTL', KEYS[1])
  if left_ms < 0 then left_ms = ttl end
  -- In its last millisecond, a window has a TTL of 0 ms, but still counts.
  local left_ns = times(math.max(left_ms, 1), 1e6)
  -- An operator may have stored more credits than the limit has.
  if stored:sub(1, 1) ~= '-' then capacity = plus(capacity, minus(parse(stored), full)) end
  known = { ends = plus(at, left_ns), used = used_in(stored) }
  return known
end

-- Redis ends the window, so it has no time of its own.
function algorithm.time() return 0 end

function algorithm.taken(state, credits)
  return { ends = state.ends, used = min(plus(state.used, credits), plus(full, MAX_OWED)) }
end

function algorithm.store(stored, state)
  if not state then
    if stored then redis.call('DEL', KEYS[1]) end
  elseif not known or state.ends ~= known.ends then
    redis.call('SET', KEYS[1], count_of(state.used), 'PX', window_ms)
  else
    local taken, returned = minus(state.used, known.used), minus(known.used, state.used)
    if taken ~= 0 then redis.call('DECRBY', KEYS[1], format(taken)) end
    if returned ~= 0 then redis.call('DECRBY', KEYS[1], '-' .. format(returned)) end
  end
end

---- sliding-window
-- See algorithm/windows.rs. Stored: "start current previous".

local window_ns = parse(second)

local function aligned(at)
  local _, rest = divide(at, window_ns)
  return minus(at, rest)
end

function algorithm.decode(stored)
  local start, current, previous = stored:match('^(%d+) (%d+) (%d+)$')
  return start and { start = parse(start), current = parse(current), previous = parse(previous) }
end

function algorithm.encode(state)
  return format(state.start) .. ' ' .. format(state.current) .. ' ' .. format(state.previous)
end

function algorithm.fresh(at) return { start = aligned(at), current = 0, previous = 0 } end

function algorithm.time(state) return state.start end

function algorithm.advanced(state, at)
  local windows = divide(minus(at, state.start), window_ns)
  if windows == 0 then return state end
  if windows ~= 1 then return algorithm.fresh(at) end
  return { start = saturating(plus(state.start, window_ns)), current = 0, previous = state.current }
end

function algorithm.pulled_back(state, at)
  return { start = aligned(at), current = state.current, previous = state.previous }
end

function algorithm.used(state, at)
  local overlap = minus(window_ns, minus(at, state.start))
  local fading = divide(times(state.previous, overlap), window_ns)
  return saturating(plus(state.current, fading))
end

function algorithm.taken(state, credits)
  return { start = state.start, current = saturating(plus(state.current, credits)), previous = state.previous }
end

function algorithm.given_back(state, credits)
  local over = minus(credits, state.current)
  return { start = state.start, current = minus(state.current, credits), previous = minus(state.previous, over) }
end

function algorithm.wait_ns(state, credits, at)
  if not less(left_in(state, at), credits) then return 0 end
  local room, start, fading = minus(capacity, credits), state.start, state.previous
  if less(room, state.current) then
    start, fading = plus(start, window_ns), state.current
  else
    room = minus(room, state.current)
  end
  local longest_overlap = divide(minus(times(plus(room, 1), window_ns), 1), max(fading, 1))
  return time_between(at, start, minus(window_ns, min(longest_overlap, window_ns)))
end

---- sliding-log
-- See algorithm/windows.rs. Stored: the time when each credit was taken, oldest first, in LENGTH digits each.
-- So times can be compared as text, and a long log need not be read as a whole.

local LENGTH = 20

local window_ns = parse(second)

local function stamp(time)
  local text = format(time)
  return ('0'):rep(LENGTH - #text) .. text
end

local function count(state) return #state.times / LENGTH end

local function stamp_at(state, place) return state.times:sub((place - 1) * LENGTH + 1, place * LENGTH) end

local function time_at(state, place) return parse(stamp_at(state, place)) end

function algorithm.decode(stored)
  if #stored % LENGTH ~= 0 or #stored / LENGTH > MAX_LOG_CREDITS or stored:sub(-LENGTH):find('%D') then return nil end
  return { times = stored }
end

function algorithm.encode(state) return state.times end

function algorithm.fresh() return { times = '' } end

function algorithm.time(state) return count(state) > 0 and time_at(state, count(state)) or 0 end

function algorithm.advanced(state, at)
  if less(at, window_ns) then return state end
  local last_gone = stamp(minus(at, window_ns))
  local gone, still_there = 0, count(state) + 1
  while still_there - gone > 1 do
    local middle = math.floor((gone + still_there) / 2)
    if stamp_at(state, middle) <= last_gone then gone = middle else still_there = middle end
  end
  return { times = state.times:sub(gone * LENGTH + 1) }
end

function algorithm.pulled_back(state, at)
  local latest = stamp(at)
  local earlier = function(time) return time > latest and latest or time end
  return { times = (state.times:gsub(('.'):rep(LENGTH), earlier)) }
end

function algorithm.used(state) return count(state) end

function algorithm.taken(state, credits, at)
  return { times = state.times .. stamp(at):rep(min(credits, left_in(state))) }
end

function algorithm.given_back(state, credits)
  return { times = state.times:sub(1, minus(count(state), credits) * LENGTH) }
end

function algorithm.wait_ns(state, credits, at)
  local missing = minus(count(state), minus(capacity, credits))
  if missing == 0 or less(count(state), missing) then return 0 end
  return minus(saturating(plus(time_at(state, missing), window_ns)), at)
end

---- token-bucket
-- See algorithm/buckets.rs. Stored: "mark count session", and " own" if the bucket was last used under an
-- actor's own limit, with that capacity. The session is only passed through, so it stays text.

local refill, interval_ns = parse(second), parse(third)

local function lacking(missing, mark, session)
  return { mark = mark, missing = missing, session = session, own = replaced and capacity or nil }
end

function algorithm.decode(stored)
  local mark, count, session, own = stored:match('^(%d+) (%-?%d+) (%d+) ?(%d*)$')
  local missing = mark and used_in(count)
  if not missing then return nil end
  return { mark = parse(mark), missing = missing, session = session, own = own ~= '' and parse(own) or nil }
end

function algorithm.encode(state)
  local own = state.own and ' ' .. format(state.own) or ''
  return format(state.mark) .. ' ' .. count_of(state.missing) .. ' ' .. state.session .. own
end

function algorithm.fresh(at) return lacking(0, at, format(at)) end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local steps = divide(minus(at, state.mark), interval_ns)
  local before = state.own or replaced
  local missing = before and here(state.missing, before, capacity) or state.missing
  if steps ~= 0 then missing = minus(missing, times(steps, refill)) end
  return lacking(missing, plus(state.mark, times(steps, interval_ns)), state.session)
end

function algorithm.pulled_back(state, at)
  return { mark = at, missing = state.missing, session = state.session, own = state.own }
end

function algorithm.used(state) return state.missing end

function algorithm.taken(state, credits, at)
  local mark = state.missing == 0 and at or state.mark
  return lacking(saturating(plus(state.missing, credits)), mark, format(at))
end

function algorithm.given_back(state, credits)
  return lacking(minus(state.missing, credits), state.mark, state.session)
end

function algorithm.wait_ns(state, credits, at)
  local missing = minus(state.missing, minus(capacity, credits))
  if missing == 0 then return 0 end
  return time_between(at, state.mark, times(divide_up(missing, refill), interval_ns))
end

function algorithm.lives_ns(state, at)
  if state.missing == 0 then return 0 end
  local by = slowest and parse(slowest) or refill
  return time_between(at, state.mark, times(divide_up(state.missing, by), interval_ns))
end

function algorithm.session(state) return state.session end

algorithm.refills = true

algorithm.drains = { drain = true, strict = true, replay = true, strictreplay = true }

-- Decides an ask that takes as many credits as there are. The time of a replay may be earlier than the state's, which
-- does not mean that the clock was set back.
function algorithm.drain(stored, ask)
  local at, found, pulled_back = ask.at, nil, false
  if ask.action:find('replay') then
    found = stored and algorithm.advanced(stored, at) or algorithm.fresh(at)
  else
    found, at, pulled_back = present(stored, at)
  end
  local drained, tokens = found, left_in(found)
  if ask.cost ~= 0 then
    local mark = ask.action:find('strict') and not less(ask.cost, tokens) and at or found.mark
    local session = less(tokens, ask.cost) and found.session or format(at)
    drained = lacking(plus(found.missing, min(ask.cost, tokens)), mark, session)
  end
  return outcome(drained, ask, tokens, at), (ask.cost ~= 0 or pulled_back) and drained or nil, at
end

---- leaky-bucket
-- See algorithm/buckets.rs. Stored: "mark level", with the level in drops, and " own" if the bucket was
-- last used under an actor's own limit, with that capacity. The number of drops in a credit is the number of nanoseconds in the period.

local leaks, period_ns = parse(second), parse(third)

local full_level = times(capacity, period_ns)

local function filled(mark, level)
  return { mark = mark, level = level, own = replaced and capacity or nil }
end

algorithm.refills = true

function algorithm.decode(stored)
  local mark, level, own = stored:match('^(%d+) (%d+) ?(%d*)$')
  if not mark then return nil end
  return { mark = parse(mark), level = parse(level), own = own ~= '' and parse(own) or nil }
end

function algorithm.encode(state)
  return format(state.mark) .. ' ' .. format(state.level) .. (state.own and ' ' .. format(state.own) or '')
end

function algorithm.fresh(at) return { mark = at, level = 0 } end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local before = state.own or replaced
  local level = before and here(state.level, times(before, period_ns), full_level) or state.level
  return filled(at, minus(level, times(minus(at, state.mark), leaks)))
end

function algorithm.pulled_back(state, at)
  return { mark = at, level = state.level, own = state.own }
end

function algorithm.used(state) return saturating(divide_up(state.level, period_ns)) end

function algorithm.taken(state, credits)
  local level = plus(state.level, times(credits, period_ns))
  -- The credits must fit in 64 bits. A level that is a plain Lua number is far below that.
  if type(level) == 'table' then
    local _, drops = divide(state.level, period_ns)
    level = min(level, plus(times(LARGEST, period_ns), drops))
  end
  return filled(state.mark, level)
end

function algorithm.given_back(state, credits)
  return filled(state.mark, minus(state.level, times(credits, period_ns)))
end

function algorithm.wait_ns(state, credits)
  local level_then = times(minus(capacity, credits), period_ns)
  return saturating(divide_up(minus(state.level, level_then), leaks))
end

function algorithm.lives_ns(state)
  return saturating(divide_up(state.level, slowest and parse(slowest) or leaks))
end

function algorithm.credits_at_reset() return capacity end

---- concurrency
-- See algorithm/reservation.rs. Stored: the latest time in the bucket. Its leases are reservations (records.lua).

algorithm.leases = true

function algorithm.decode(stored)
  local time = stored:match('^%d+$')
  return time and { time = parse(time) }
end

function algorithm.encode(state) return format(state.time) end

function algorithm.fresh(at) return { time = at } end

function algorithm.time(state) return state.time end

function algorithm.advanced(_, at) return { time = at } end

algorithm.pulled_back = algorithm.advanced

function algorithm.used() return 0 end

function algorithm.taken(state) return state end

algorithm.given_back = algorithm.taken

function algorithm.wait_ns() return 0 end

---- counter
-- See algorithm/counter.rs. Stored: "ends value". The limit's numbers are the bounds and, if the expiry changes, a time. Values and bounds
-- are increased by ZERO, so that none is negative.

local lower, upper = capacity, parse(second)
local ZERO, HALF = parse(ZERO_TEXT), parse('9223372036854775808')

function algorithm.decode(stored)
  local ends, sign, value = stored:match('^(%d+) (%-?)(%d+)$')
  return ends and { ends = parse(ends), value = (sign == '' and plus or minus)(ZERO, parse(value)) }
end

function algorithm.encode(state)
  local value = state.value
  local text = less(value, ZERO) and '-' .. format(minus(ZERO, value)) or format(minus(value, ZERO))
  return format(state.ends) .. ' ' .. text
end

function algorithm.fresh() return { ends = LARGEST, value = ZERO } end

function algorithm.lives_ns(state, at)
  return algorithm.encode(state) == algorithm.encode(algorithm.fresh()) and 0 or minus(state.ends, at)
end

function algorithm.is_fresh(state, at) return algorithm.lives_ns(state, at) == 0 end

-- Returns the expiry after an increment.
local function next_expiry(ends, at)
  if third == '' or (words:find('keep') and less(ends, LARGEST)) then return ends end
  return words:find('after') and saturating(plus(at, parse(third))) or parse(third)
end

-- Returns a value in two's complement.
local function complement(value) return format(less(value, ZERO) and value or minus(value, ZERO)) end

local function counted(allowed, before, value)
  return string_format('%d %s %s 0 - -', allowed, complement(before), complement(value))
end

algorithm.drains = { add = true, subtract = true, look = true, show = true }

function algorithm.drain(stored, ask)
  local at = ask.at
  local found = stored and less(at, stored.ends) and stored or algorithm.fresh()
  local before = found.value
  if ask.action == 'look' or ask.action == 'show' then return counted(1, before, before) end
  local wanted = (ask.action == 'add' and plus or minus)(before, ask.cost)
  local value = max(min(wanted, upper), lower)
  if (less(value, wanted) or less(wanted, value)) and not words:find('saturate') then
    return counted(0, before, before)
  end
  -- A change must fit 64 bits with a sign.
  if less(HALF, minus(before, value)) or not less(minus(value, before), HALF) then return counted(0, before, value) end
  local state = { ends = next_expiry(found.ends, at), value = value }
  if not less(at, state.ends) then state = algorithm.fresh() end
  return counted(1, before, value), state, at
end
