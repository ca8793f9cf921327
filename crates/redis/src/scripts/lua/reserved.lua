-- The reserved credits of a bucket, and the algorithm that counts them in: see algorithm/reservation/groups.rs and
-- decorator.rs. They have a key of their own, so that other programs read the bucket as before: "generation end:credits
-- end:credits ... :time:ahead". The ends are milliseconds of the bucket's own clock, which doubles hold exactly. `time`
-- is the time of the last change (nanoseconds), and `ahead` is how far the bucket's clock is ahead of the server's
-- (milliseconds). States are { base, groups, generation, time, ahead }.

local function nanoseconds_of(ms) return saturating(times(ms, 1e6)) end

-- Converts a time to milliseconds. Groups that end then or earlier have ended.
local function milliseconds_at(at)
  local ms = divide(at, 1e6)
  return less(at, LARGEST) and ms or LAST_MS
end

-- Returns the step of ends (milliseconds): they are rounded up to its multiples.
local function step_of(ttl_ms) return math.max(floor(ttl_ms / PARTS_OF_TTL), SHORTEST_STEP_MS) end

-- Returns the maximum time that a reservation of `ttl_seconds` lasts.
local function longest_time_ns(ttl_seconds)
  local ttl_ms = ttl_seconds * 1000
  return times(ttl_ms + step_of(ttl_ms), 1e6)
end

local function end_of(at, ttl_seconds)
  local ttl_ms = ttl_seconds * 1000
  local step = step_of(ttl_ms)
  local ends = divide_up(at, 1e6) + ttl_ms
  return math.min(ends + (step - ends % step) % step, LAST_MS)
end

-- Returns `ends`, or the end of the bucket's window if that is earlier, by the server's clock.
local function within_window(state, ends)
  if not state.base.ends then return ends end
  local window = divide(state.base.ends, 1e6)
  return math.min(ends, window)
end

-- Returns the credits of all groups.
local function sum(groups)
  local credits = 0
  for _, group in ipairs(groups) do credits = saturating(plus(credits, group.credits)) end
  return credits
end

local function last_end(state)
  local groups = state.groups
  return #groups > 0 and nanoseconds_of(groups[#groups].ends - state.ahead) or 0
end

-- Returns the groups that have not ended at that time.
local function still_there(state, at)
  local now, left = milliseconds_at(at) + state.ahead, {}
  for _, group in ipairs(state.groups) do
    if group.ends > now then left[#left + 1] = group end
  end
  return left
end

-- Joins the two groups whose ends are closest to each other: the credits of the earlier one end with the later one.
local function join_the_closest(groups)
  local closest, gap = 1, math.huge
  for place = 1, #groups - 1 do
    local between = groups[place + 1].ends - groups[place].ends
    if between < gap then closest, gap = place, between end
  end
  local earlier = table.remove(groups, closest)
  local later = groups[closest]
  groups[closest] = { ends = later.ends, credits = saturating(plus(later.credits, earlier.credits)) }
end

local function with_more(groups, credits, ends)
  if credits == 0 then return groups end
  local more, new = {}, { ends = ends, credits = credits }
  for _, group in ipairs(groups) do
    if new and group.ends == ends then
      group, new = { ends = ends, credits = saturating(plus(group.credits, credits)) }, nil
    elseif new and group.ends > ends then
      more[#more + 1], new = new, nil
    end
    more[#more + 1] = group
  end
  more[#more + 1] = new
  if #more > MAX_GROUPS then join_the_closest(more) end
  return more
end

-- Takes credits from the groups that end at `ends` or later, the earliest first. Returns the groups, and whether any credits were
-- taken.
local function with_fewer(groups, credits, ends)
  local fewer, rest = {}, credits
  for _, group in ipairs(groups) do
    local freed = group.ends >= ends and min(rest, group.credits) or 0
    rest = minus(rest, freed)
    local kept = minus(group.credits, freed)
    if kept ~= 0 then fewer[#fewer + 1] = { ends = group.ends, credits = kept } end
  end
  return fewer, less(rest, credits)
end

local function changed_to(state, base, groups, at)
  return { base = base, groups = groups, generation = state.generation, time = at or state.time, ahead = state.ahead }
end

-- Returns a bucket without reservations.
local function nothing_reserved(base, generation)
  return { base = base, groups = {}, generation = generation, time = 0, ahead = 0 }
end

-- The algorithm, with reserved credits taken into account.
local decorated = { credits_at_reset = algorithm.credits_at_reset }

function decorated.encode(state) return algorithm.encode(state.base) end

function decorated.fresh(at) return nothing_reserved(algorithm.fresh(at), '0') end

function decorated.time(state, at) return max(algorithm.time(state.base, at), state.time) end

function decorated.advanced(state, at)
  local groups = still_there(state, at)
  return changed_to(state, algorithm.advanced(state.base, at), groups, #groups < #state.groups and at)
end

-- Returns how far the bucket's clock is ahead of the server's, at the time of an ask.
local function ahead_at(state, at)
  local time = decorated.time(state, at)
  if not was_set_back(time, at) then return state.ahead end
  return state.ahead + divide(minus(time, at), 1e6)
end

function decorated.pulled_back(state, at)
  local base = state.base
  if less(at, algorithm.time(base, at)) then base = algorithm.pulled_back(base, at) end
  local pulled_back = changed_to(state, base, state.groups, at)
  pulled_back.ahead = ahead_at(state, at)
  return pulled_back
end

function decorated.used(state, at) return saturating(plus(algorithm.used(state.base, at), sum(state.groups))) end

function decorated.reserved(state) return sum(state.groups) end

function decorated.taken(state, credits, at)
  return changed_to(state, algorithm.taken(state.base, credits, at), state.groups)
end

function decorated.given_back(state, credits)
  return changed_to(state, algorithm.given_back(state.base, credits), state.groups)
end

function decorated.session(state) return algorithm.session(state.base) end

-- The reserved credits stay the same from the end of one group to the end of the next. Finds the first of these spans
-- with enough other credits left.
function decorated.wait_ns(state, credits, at)
  local aside, starts = sum(state.groups), at
  for _, group in ipairs(state.groups) do
    local needed, ends = plus(credits, aside), nanoseconds_of(group.ends - state.ahead)
    if not less(capacity, needed) then
      local wait = algorithm.wait_ns(state.base, needed, at)
      if less(saturating(plus(at, wait)), ends) then return max(wait, minus(starts, at)) end
    end
    aside, starts = minus(aside, group.credits), ends
  end
  return max(algorithm.wait_ns(state.base, credits, at), minus(starts, at))
end

-- Returns at least the time until the last group ends.
function decorated.lives_ns(state, at) return max(algorithm.lives_ns(state.base, at), minus(last_end(state), at)) end

function decorated.is_fresh(state, at)
  if less(at, last_end(state)) then return false end
  limit = algorithm
  local answer = is_fresh(state.base, at)
  limit = decorated
  return answer
end

-- Returns the state to store. Without reservations, it is the algorithm's own state. Decisions use that state from now
-- on.
local function kept(state)
  if state and state.groups and #state.groups == 0 then state = state.base end
  limit = state and state.groups and decorated or algorithm
  return state
end

-- Returns the bucket's state with its reservations, or nil and an error.
local function read(base)
  if not reserved then return base end
  if type(reserved) == 'table' then return nil, reserved.err end
  local generation, rest, time, ahead = reserved:match('^(%d+)( ?[%d: ]-) :(%d+):(%d+)$')
  if not generation then return nil, refusal_of(reserved) end
  local groups = {}
  for ends, credits in rest:gmatch(' (%d+):(%d+)') do
    groups[#groups + 1] = { ends = tonumber(ends), credits = parse(credits) }
  end
  base = base or algorithm.fresh(nanoseconds(ARGV[2]:match('^%a+ %d+ (%w+)')))
  return kept({ base = base, groups = groups, generation = generation, time = parse(time), ahead = tonumber(ahead) })
end

-- Returns the TTL of a key whose content ends after `ns`.
local function lives_ms(ns)
  if not algorithm.store then ns = plus(ns, GRACE_NS) end
  return format(max(divide_up(ns, 1e6), 1))
end

local function write_groups(state, changed_at)
  if state and state.groups then
    local words = { state.generation }
    for _, group in ipairs(state.groups) do
      words[#words + 1] = string_format('%d:%s', group.ends, format(group.credits))
    end
    words[#words + 1] = string_format(':%s:%d', format(state.time), state.ahead)
    local text = table.concat(words, ' ')
    if changed_at and text ~= reserved then
      redis.call('SET', reserved_key, text, 'PX', lives_ms(minus(last_end(state), changed_at)))
    end
  elseif reserved then
    redis.call('DEL', reserved_key)
  end
end
