-- Reservations and idempotent requests. A hit on a bucket without reservations creates none of these functions. They are not
-- indented.
if reserving then

-- The reserved credits of a bucket, and the algorithm that counts them in: see algorithm/groups.rs and
-- algorithm/set_aside.rs. They have a key of their own, so that other programs read the bucket as before: "generation end:credits
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

-- Asks about reservations: see algorithm/reservation.rs. Each reservation has a record with a key of its own: "credits
-- seconds run open end_ms generation capacity", where the end is by the bucket's own clock, or "credits seconds run committed
-- until_ns balance reset_ns". An ask for run 0 is about whichever reservation has the name.

-- An ask that is always allowed.
local SETTLED = { action = 'refund', cost = 0 }

-- The records by key: the text (nil if there is no record), whether to keep it, and for how long.
local records = {}

-- The index of the current record's key in KEYS. Each ask advances it.
local record_at = 2

-- Returns the maximum time that the commit of a reservation of `seconds` is remembered.
local function longest_ns(seconds) return max(REMEMBERED_NS, longest_time_ns(tonumber(seconds))) end

local function read_record(text)
  local credits, seconds, run, ends, generation, made_under = text:match('^(%d+) (%d+) (%d+) open (%d+) (%d+) (%d+)$')
  if ends then
    return {
      credits = credits, seconds = seconds, run = run, ends = tonumber(ends), generation = generation, capacity = parse(made_under),
    }
  end
  local last, balance, reset_ns
  credits, seconds, run, last, balance, reset_ns = text:match('^(%d+) (%d+) (%d+) committed (%d+) (%-?%d+) (%d+)$')
  return last and {
    credits = credits, seconds = seconds, run = run, last = parse(last), balance = balance, reset_ns = reset_ns,
    longest_ns = longest_ns(seconds),
  }
end

local function write_commit(record)
  local head = string_format('%s %s %s', record.credits, record.seconds, record.run)
  return string_format('%s committed %s %s %s', head, format(record.last), record.balance, record.reset_ns)
end

local function remember(text, ns) records[KEYS[record_at]] = { text = text, lives_ms = text and lives_ms(ns), is_new = true } end

-- Returns the next record, which `read` reads from its text. Returns nil if there is no record, or nil and an error. If
-- the clock was set back, the record expires as if it was made now. `write` turns the corrected record into text.
local function next_record(at, read, write)
  record_at = record_at + 1
  local key = KEYS[record_at]
  if not records[key] then
    local text = redis.pcall('GET', key)
    if type(text) == 'table' then return nil, text.err end
    records[key] = { text = text or nil }
  end
  local text = records[key].text
  local record = text and read(text)
  if text and not record then return nil, refusal_of(text) end
  if not record or record.ends then return record or nil end
  if not less(at, record.last) then return nil end
  local latest = plus(at, record.longest_ns)
  if was_set_back(record.last, latest) then
    record.last = latest
    remember(write(record), record.longest_ns)
  end
  return record
end

-- Remembers a reservation that was made under this capacity until `ends`, by the server's clock.
local function remember_open(credits, seconds, run, ends, state, made_under, at)
  local head = string_format('%s %s %s open %d', credits, seconds, run, ends + state.ahead)
  local text = string_format('%s %s %s', head, state.generation, format(made_under))
  remember(text, max(minus(nanoseconds_of(ends), at), 0))
end

-- Returns the time when the record's credits become free, by the server's clock. Returns nil if a bucket in this state
-- does not reserve them.
local function open_until(state, record, at)
  local is_of_bucket = record and record.ends and state and state.groups and record.generation == state.generation
  if not is_of_bucket then return nil end
  local ends = record.ends - ahead_at(state, at)
  return ends > milliseconds_at(at) and ends or nil
end

-- Returns the outcome with a fate, with the end of the reservation if there is one, and with its run if it is known.
local function with_fate(text, fate, session, run)
  if fate == 'gone' or fate == 'different' then text = '0' .. text:sub(2) end
  if session then text = text:gsub('%S+$', format(session)) end
  return text .. ' ' .. fate .. (run and run ~= '0' and ' ' .. run or '')
end

-- Returns a look's outcome with this fate, the state that the look leaves, and its time.
local function look_with_fate(state, at, fate, session, run)
  local text, changed, time = decide(state, { action = 'look', cost = 0, at = at })
  return with_fate(text, fate, session, run), changed, time
end

-- Returns the state with reservations at the time of an ask, that time, whether the state was moved back, and the
-- credits left. Decisions use that state from now on.
local function present_decorated(stored, at)
  limit = decorated
  if stored and not stored.groups then stored = nothing_reserved(stored, '0') end
  local state, at, pulled_back = present(stored, at)
  return state, at, pulled_back, minus(capacity, decorated.used(state, at))
end

-- Frees the credits of an open record, if there is one, and counts the used credits. If they were set aside under a larger limit,
-- which has ended, the use of them counts as far as it fits, and is no debt.
local function settle(stored, record, ask)
  local state, at, pulled_back, before = present_decorated(stored, ask.at)
  local freed, counted, groups = false, ask.cost, nil
  if record then
    local credits = parse(record.credits)
    groups, freed = with_fewer(state.groups, credits, record.ends)
    state = changed_to(state, state.base, groups, at)
    if less(capacity, record.capacity) then
      local of_reserved = min(ask.cost, credits)
      counted = plus(minus(ask.cost, of_reserved), min(of_reserved, minus(capacity, decorated.used(state, at))))
    end
  end
  if counted ~= 0 then state = decorated.taken(state, counted, at) end
  local text = outcome(state, SETTLED, before, at)
  return text, (freed or counted ~= 0 or pulled_back) and state or nil, at
end

-- Keeps the record's credits, which are free at `open`, for this many seconds from now on, but never for less time than before.
-- They belong to `run` from now on.
local function extend(stored, record, ask, seconds, run, open)
  if mode ~= 'apply' then return look_with_fate(stored, ask.at, 'done') end
  local state, at, _, before = present_decorated(stored, ask.at)
  local credits = parse(record.credits)
  local ends = within_window(state, math.max(end_of(at, seconds), open))
  local fewer, freed = with_fewer(state.groups, credits, record.ends)
  if freed then state = changed_to(state, state.base, with_more(fewer, credits, ends + state.ahead), at) end
  remember_open(record.credits, record.seconds, run, ends, state, record.capacity, ask.at)
  local text = outcome(state, SETTLED, before, at)
  return with_fate(text, 'done', nanoseconds_of(ends), run), state, at
end

local asks = {}

-- "reserve credits at seconds generation run"
function asks.reserve(stored, record, ask, more)
  local seconds, generation, run = more:match('^ (%d+) (%d+) (%d+)$')
  local open = open_until(stored, record, ask.at)
  -- A committed lease is free, so its name may be used again.
  if open or (record and record.last and not algorithm.leases) then
    local is_unknown = record.credits == '0'
    -- The rule, and not the client, determines the TTL of a lease.
    local lasts_alike = algorithm.leases or record.seconds == seconds
    local is_same = is_unknown or (record.credits == format(ask.cost) and lasts_alike)
    local session = open and nanoseconds_of(open) or 0
    if not (is_next_run and is_same) then
      return look_with_fate(stored, ask.at, is_same and 'repeated' or 'different', session, record.run)
    end
    -- These credits become the new reservation's.
    if open then return extend(stored, record, ask, tonumber(seconds), run, open) end
  end
  local state, at, pulled_back, before = present_decorated(stored, ask.at)
  if #state.groups == 0 then state = nothing_reserved(state.base, generation) end
  local ends = within_window(state, end_of(at, tonumber(seconds)))
  local is_allowed = not less(before, ask.cost)
  if is_allowed then
    state = changed_to(state, state.base, with_more(state.groups, ask.cost, ends + state.ahead), at)
    if mode == 'apply' then remember_open(format(ask.cost), seconds, run, ends, state, capacity, ask.at) end
  end
  local text = outcome(state, { action = 'take', cost = ask.cost }, before, at)
  return with_fate(text, 'done', is_allowed and nanoseconds_of(ends), is_allowed and run), (is_allowed or pulled_back) and state or nil, at
end

-- "commit cost at run", and `late` if the used credits also count without a reservation. If another reservation has the name,
-- its record stays.
function asks.commit(stored, record, ask, more, is_of_other)
  if record and record.last then
    local left = record.balance:sub(1, 1) == '-' and '0' or record.balance
    return with_fate(string_format('1 %s %s %s - -', left, record.balance, record.reset_ns), 'repeated')
  end
  local open = open_until(stored, record, ask.at)
  local run, late = more:match('^ (%d+)( ?%a*)$')
  if not open and late ~= ' late' then return look_with_fate(stored, ask.at, 'gone') end
  local text, changed, time = settle(stored, open and record, ask)
  local last = saturating(plus(ask.at, REMEMBERED_NS))
  if open then last = max(last, min(nanoseconds_of(open), saturating(plus(ask.at, longest_ns(record.seconds))))) end
  local balance, reset_ns = text:match('^%d %d+ (%-?%d+) (%d+)')
  local of = open and record or { credits = '0', seconds = '0', run = run }
  local committed = {
    credits = of.credits, seconds = of.seconds, run = of.run, last = last, balance = balance, reset_ns = reset_ns,
  }
  if not is_of_other then remember(write_commit(committed), minus(last, ask.at)) end
  return with_fate(text, open and 'done' or 'late'), changed, time
end

function asks.release(stored, record, ask)
  if not open_until(stored, record, ask.at) then return look_with_fate(stored, ask.at, 'gone') end
  local text, changed, time = settle(stored, record, ask)
  remember(nil)
  return with_fate(text, 'done'), changed, time
end

-- "renew seconds at run". 0 seconds stand for the original TTL.
function asks.renew(stored, record, ask)
  local open = open_until(stored, record, ask.at)
  if not open then return look_with_fate(stored, ask.at, 'gone') end
  local seconds = ask.cost == 0 and tonumber(record.seconds) or ask.cost
  return extend(stored, record, ask, seconds, record.run, open)
end

-- Returns the outcome of an ask, the bucket's new state (nil if nothing changed) and its time. Returns nil and an error
-- if the record cannot be read.
local function ask_about(state, ask, more)
  -- Another member denied the group, so this is only a look.
  if mode == 'hold' then return decide(state, { action = 'look', cost = ask.cost, at = ask.at }) end
  local record, refusal = next_record(ask.at, read_record, write_commit)
  if refusal then return nil, refusal end
  local run = ask.action == 'reserve' and '0' or more:match('^ (%d+)')
  local is_of_other = record and run ~= '0' and run ~= record.run
  if is_of_other then record = nil end
  if mode == 'apply' then return asks[ask.action](state, record, ask, more, is_of_other) end
  if ask.action == 'reserve' then return (asks.reserve(state, record, ask, more)) end
  -- Settling is always allowed. The bucket and the record are readable.
  return look_with_fate(state, ask.at, 'done')
end

local function write(state, changed_at)
  write_groups(state, changed_at)
  for key, record in pairs(records) do
    if record.is_new and record.text then
      redis.call('SET', key, record.text, 'PX', record.lives_ms)
    elseif record.is_new then
      redis.call('DEL', key)
    end
  end
end

-- Idempotent requests: see algorithm/record.rs. The record of each has a key of its own:
-- "fingerprint until_ns answered outcome", or `held` if another member denied its group.

local function read_answer(text)
  local fingerprint, last, stage, outcome = text:match('^(%d+) (%d+) (%a+) (%d [%d%- ]+)$')
  if stage ~= 'answered' and stage ~= 'held' then return nil end
  return {
    fingerprint = fingerprint, last = parse(last), is_held = stage == 'held', outcome = outcome, longest_ns = REMEMBERED_NS,
  }
end

local function write_answer(record)
  local stage = record.is_held and 'held' or 'answered'
  return string_format('%s %s %s %s', record.fingerprint, format(record.last), stage, record.outcome)
end

-- Decides an idempotent ask. `more` ends in " once fingerprint". A look also reports whether the ask was held back before.
local function ask_idempotent(state, ask, more)
  local fingerprint = more:match(' once (%d+)$')
  local record, refusal = next_record(ask.at, read_answer, write_answer)
  if refusal then return nil, refusal end
  if record and record.fingerprint ~= fingerprint then return look_with_fate(state, ask.at, 'different') end
  if record and (mode == 'hold' or not record.is_held) then return with_fate(record.outcome, 'repeated') end
  local text, changed, time = decide(state, ask)
  if mode ~= 'look' then
    local last = saturating(plus(ask.at, REMEMBERED_NS))
    local answer = { fingerprint = fingerprint, last = last, is_held = mode == 'hold', outcome = text }
    remember(write_answer(answer), minus(last, ask.at))
  elseif record then
    text = text .. ' held'
  end
  return text, changed, time
end

local function decide_with_record(state, ask, more)
  if asks[ask.action] then return ask_about(state, ask, more) end
  return (more:find(' once ', 1, true) and ask_idempotent or decide)(state, ask, more)
end

reserving = { asks = asks, decide = decide_with_record, read = read, kept = kept, write = write }

end
