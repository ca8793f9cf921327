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
