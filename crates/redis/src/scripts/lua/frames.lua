-- The parts of the scripts around an algorithm, a section each. A line of four hyphens begins a section: see scripts/mod.rs.

---- decision
-- The decision on an ask, which all scripts share: see algorithm/decide.rs.

-- Decides an ask for a counter with `left` credits. `fits` says whether `cost` is at most `left`. Returns whether the
-- ask is allowed, how many credits it takes, and how many must be left for it to be allowed. A refund takes none.
local function decide_ask(action, cost, left, fits)
  if action == 'take' or action == 'share' then return fits, fits and cost or 0, cost end
  if action == 'look' or action == 'show' then return fits, 0, cost end
  if action == 'refund' or action == 'return' then return true, 0, 0 end
  if action == 'count' then return true, fits and cost or left, 0 end
  if action == 'tally' then return fits, cost, cost ~= 0 and cost or 1 end
  local allowed = left ~= 0
  if action == 'charge' then return allowed, cost, 1 end
  if action == 'overdraw' then return allowed, allowed and cost or 0, 1 end
  -- drain, strict, replay and strictreplay take as many as there are.
  return allowed, fits and cost or left, 1
end

---- decide
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

-- Returns the used credits that a stored count stands for (see algorithm/decide.rs), or nil if it is not a count.
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
  drain = false, is_fresh = false, store = false, leases = false, reserved = false, refills = false,
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
  if ask.action == 'tally' then allowed = not less(capacity, used) end
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

-- Returns the credits that an ask for a share takes ahead, and the end of the share, or nil: see `Ask::Share`.
local function share(state, ask, before, at)
  local extra, parts = ask.more:match('^ (%d+) (%d+)')
  extra = min(parse(extra), divide(minus(before, ask.cost), parse(parts)))
  local ends = (state.base or state).ends
  if not ends and algorithm.refills and not state.base then ends = plus(at, limit.wait_ns(state, capacity, at)) end
  if extra == 0 or less(before, ask.cost) or not ends or less(minus(ends, at), SHORTEST_SHARE_NS) then return nil end
  return extra, ends
end

-- Returns whether a share may still return credits: its window has not ended. The end of a window that Redis ends is exact to a few
-- milliseconds.
local function may_return(state, ask)
  local until_ns, ends = parse(ask.more:match('^ (%d+)')), (state.base or state).ends
  return ends and not less(END_TOLERANCE_NS, max(minus(ends, until_ns), minus(until_ns, ends)))
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
  if ask.action == 'refund' or (ask.action == 'return' and may_return(state, ask)) then
    local used = limit.encode(state)
    state = limit.given_back(state, ask.cost)
    changed = changed or limit.encode(state) ~= used
  end
  local _, credits = decide_for(ask, before)
  local extra, share_ends
  if mode == 'apply' and ask.action == 'share' then extra, share_ends = share(state, ask, before, at) end
  if mode == 'apply' and (credits ~= 0 or extra) then
    state, changed = limit.taken(state, plus(credits, extra or 0), at), true
  end
  local text = outcome(state, ask, before, at)
  if share_ends then text = text:gsub('%S+ %S+$', format(minus(share_ends, at)) .. ' ' .. format(share_ends)) end
  return text, changed and state or nil, at
end

-- Returns whether the bucket is equivalent to a fresh one at that time.
local function is_fresh(stored, at)
  if limit.is_fresh then return limit.is_fresh(stored, at) end
  local state
  state, at = present(stored, at)
  return limit.wait_ns(state, capacity, at) == 0
end

---- stored
-- Reads the bucket and its reservations. ARGV: the limit (section decide), then an argument for each action: "action cost at", and
-- more for an ask with a record. In a cluster, the last argument is the bucket's hash tag. KEYS: the bucket. If asks have records,
-- the key of its reservations and the key of each ask's record follow.

local last, tag = #ARGV, ''
if ARGV[last]:sub(1, 1) == '{' then last, tag = last - 1, ARGV[last] end
local stored, state = redis.pcall('GET', KEYS[1]), nil
local refusal = type(stored) == 'table' and stored.err
if stored and not refusal then
  state = algorithm.decode(stored)
  refusal = not state and refusal_of(stored)
end
local reserved_key = KEYS[2] or tag .. RESERVED .. KEYS[1]
local reserved = redis.pcall('GET', reserved_key)
-- "Script attempted to access a non local key": the bucket's slot is moving to another node, and the key may already be
-- there. Hits are not refused for that reason. They count without the reservations.
if type(reserved) == 'table' and reserved.err:find('attempted to access', 1, true) then reserved = false end
-- If an ask has a record, or credits are reserved, records.lua runs next and
-- replaces this with a table of functions.
local reserving = reserved or KEYS[3]

---- apply
-- Applies the actions to the bucket that section stored has read. Returns a text for each action: see `outcome`.

if reserving and not refusal then state, refusal = reserving.read(state) end
local outcomes, changed_at = {}, nil
for place = 2, last do
  local action, cost, at, more = ARGV[place]:match('^(%a+) (%d+) (%w+)(.*)$')
  local ask = { action = action, cost = parse(cost), at = nanoseconds(at), more = more }
  local text, changed, time
  if action == 'forget' then
    -- An unreadable value is also forgotten.
    local held = refusal or (state and not is_fresh(state, ask.at))
    if held then state, refusal = nil, nil end
    text = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  elseif refusal then
    return redis.error_reply(refusal)
  else
    text, changed, time = (reserving and reserving.decide or decide)(state, ask, more)
    if not text then return redis.error_reply(changed) end
  end
  outcomes[#outcomes + 1] = text
  if changed then state, changed_at = changed, time end
  if reserving then state = reserving.kept(state) end
  -- A bucket that has all credits back is equivalent to a fresh one.
  local gives_back = action == 'refund' or action == 'return' or (reserving and reserving.asks[action])
  if changed and gives_back and is_fresh(state, ask.at) then state = nil end
end
if reserving then reserving.write(state, changed_at) end
local written = state and limit.encode(state)
if algorithm.store then
  algorithm.store(stored, state and state.base or state)
elseif changed_at and written and (reserving or written ~= stored) then
  local lives_ns = plus(limit.lives_ns(state, changed_at), GRACE_NS)
  redis.call('SET', KEYS[1], written, 'PX', format(divide_up(lives_ns, 1e6)))
elseif stored and not written then
  redis.call('DEL', KEYS[1])
end
return outcomes

---- window_stored
-- Reads a rule's fixed window. The key is Divvy's: a decimal number of credits, which expires when the window ends. The number
-- counts down from `full`: the credits of the limit that it was stored under. An actor's own limit may have other credits.
-- KEYS and ARGV are those of any bucket (section stored), but the limit has milliseconds in place of nanoseconds, because Redis has no
-- shorter unit. Only Redis's time counts.

-- This creates no function, which would cost each hit about 2,000 instructions.
local string_format = string.format
local key, last, tag = KEYS[1], #ARGV, ''
if ARGV[last]:sub(1, 1) == '{' then last, tag = last - 1, ARGV[last] end
local first, window_ms, of = ARGV[1]:match('^(%d+) (%d+) ?o?f? ?(%d*)$')
local credits, longest = tonumber(first), tonumber(window_ms)
local full = tonumber(of) or credits
local stored = redis.pcall('GET', key)
local left, ttl, refusal = credits, 0, type(stored) == 'table' and stored.err
if stored and not refusal then
  -- Accepts only numbers that Redis itself decreases. `tonumber` would also read `inf`, `0x1`, `007`, and numbers that
  -- doubles cannot represent.
  local number = tonumber(stored)
  if number and (not (number > -2^53 and number < 2^53) or string_format('%d', number) ~= stored) then number = nil end
  if number then left = number - full + credits else refusal = 'ERR the key does not hold a number of credits' end
end
if stored and not refusal then
  -- The milliseconds until the window ends. A window without an end (after PERSIST, or a SET by hand) would deny
  -- permanently, so an action that may change the window gives it an end. Only a clock that was set back makes a window
  -- last longer than its length. Any action corrects that.
  ttl = redis.call('PTTL', key)
  if ttl < 0 or ttl > longest then
    local is_corrected = ttl > longest
    for place = 2, last do
      local word = ARGV[place]:sub(1, 4)
      is_corrected = is_corrected or (mode == 'apply' and word ~= 'look' and word ~= 'show')
    end
    if is_corrected then redis.call('PEXPIRE', key, window_ms) end
    ttl = longest
  end
end

-- If an ask has a record, or credits of the window are reserved, the window is decided like any other bucket.
local is_bucket = KEYS[3] or redis.pcall('GET', KEYS[2] or tag .. RESERVED .. key)

---- window_apply
-- Applies the actions to the window that section window_stored has read. Returns a text for each action, as for any bucket
-- (section decide).

local outcomes = {}
for place = 2, last do
  local action, cost = ARGV[place]:match('^(%a+) (%d+)')
  if action == 'forget' then
    -- An unreadable value is also forgotten.
    local held = left < credits or refusal
    if held then
      redis.call('DEL', key)
      stored, left, ttl, refusal = false, credits, 0, nil
    end
    outcomes[place - 1] = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  elseif refusal then
    return redis.error_reply(refusal)
  else
    cost = tonumber(cost)
    local before = left > 0 and left or 0
    local allowed, taken, wanted = decide_ask(action, cost, before, cost <= before)
    local share = '- -'
    -- Nothing is reserved.
    if action == 'show' then before = 0 end
    if mode ~= 'apply' then
      taken = 0
    elseif action == 'refund' then
      taken = -math.max(math.min(cost, credits - left), 0)
    elseif action == 'share' or action == 'return' then
      -- Decides as `share` and `may_return` do (section decide).
      local now, lives_ms = redis.call('TIME'), stored and ttl or longest
      local window_ends_ms = now[1] * 1000 + math.floor(now[2] / 1000) + lives_ms
      local first, second = ARGV[place]:match(' %w+ (%d+) ?(%d*)$')
      if action == 'return' then
        local is_same = stored and math.abs(window_ends_ms - first / 1e6) * 1e6 <= END_TOLERANCE_NS
        taken = is_same and -math.max(math.min(cost, credits - left), 0) or 0
      elseif allowed and lives_ms * 1e6 >= SHORTEST_SHARE_NS then
        local extra = math.min(tonumber(first), math.floor((before - cost) / second))
        if extra > 0 then taken, share = cost + extra, string_format('%d000000 %d000000', lives_ms, window_ends_ms) end
      end
    end
    -- All sums stay numbers that doubles represent exactly.
    taken = math.min(taken, full - credits + left + MAX_OWED)
    if taken < 0 and left - taken >= credits then
      redis.call('DEL', key)
      stored, ttl = false, 0
    elseif taken ~= 0 and stored then
      redis.call('DECRBY', key, string_format('%d', taken))
    elseif taken > 0 then
      stored, ttl = true, longest
      redis.call('SET', key, string_format('%d', full - taken), 'PX', window_ms)
    end
    left = left - taken
    if action == 'tally' and mode == 'apply' then allowed = left >= 0 end
    -- In its last millisecond, a window has a TTL of 0 ms, but still counts.
    local ends_ms = math.max(ttl, 1)
    local reset_ms = left < credits and ends_ms or 0
    if not allowed and wanted <= credits then
      outcomes[place - 1] = string_format('0 %d %d %d000000 %d000000 -', before, left, reset_ms, ends_ms)
    else
      outcomes[place - 1] = string_format('%d %d %d %d000000 %s', allowed and 1 or 0, before, left, reset_ms, share)
    end
  end
end
return outcomes

---- group
-- Applies steps in order. In each step, all buckets take, or no bucket does. KEYS: those of each bucket's script. ARGV, for each
-- step: the number of its buckets, and for each bucket the name of its script, the numbers of that script's keys and arguments,
-- and the arguments.

local answers, key_at, argument_at = {}, 0, 0

local function next_argument()
  argument_at = argument_at + 1
  return ARGV[argument_at]
end

local function next_member()
  local member = { script = next_argument(), keys = {}, arguments = {}, is_idempotent = false, is_reservation = false, is_next_run = false }
  for place = 1, tonumber(next_argument()) do
    key_at = key_at + 1
    member.keys[place] = KEYS[key_at]
  end
  for place = 1, tonumber(next_argument()) do
    local argument = next_argument()
    member.arguments[place] = argument
    member.is_idempotent = member.is_idempotent or argument:find(' once %d+$')
    member.is_reservation = member.is_reservation or argument:find('^reserve ')
  end
  return member
end

-- Asks the bucket in a mode (see section decide), and stores its answers. Returns the error if there is one.
local function ask(member, mode)
  -- A script raises an error about a value that divvy never stores. The error must not abort the later steps.
  local answered, answers = pcall(buckets[member.script], member.keys, member.arguments, mode, member.is_next_run)
  if not answered then return type(answers) == 'table' and answers.err or 'ERR ' .. tostring(answers) end
  member.answers = answers
  return answers.err
end

-- The first answer of a script begins with 1 if it allows.
local function allows(member) return member.answers[1]:sub(1, 1) == '1' end

-- The run of a reservation may follow.
local function has_fate(member, fate) return (member.answers[1] .. ' '):find(' ' .. fate .. ' %d* ?$') end

-- Looks again at the buckets of a step that makes a reservation, if some of them still know an earlier one of its name and others do
-- not. Returns the error if there is one, and whether all of these buckets allow it.
local function look_at_next_run(members)
  local is_made, known = false, {}
  for _, member in ipairs(members) do
    if member.is_reservation then
      is_made = is_made or has_fate(member, 'done')
      if has_fate(member, 'repeated') then known[#known + 1] = member end
    end
  end
  local all_allow = true
  for _, member in ipairs(is_made and known or {}) do
    member.is_next_run = true
    local refusal = ask(member, 'look')
    if refusal then return refusal end
    all_allow = all_allow and allows(member)
  end
  return nil, all_allow
end

-- Applies a step. Returns the error if there is one; otherwise each member has its answers.
local function apply(members)
  local is_group, all_allow, is_another, was_denied = #members > 1, true, false, false
  for _, member in ipairs(members) do
    -- This shows a damaged bucket or record before anything changes.
    local refusal = is_group and ask(member, 'look')
    if refusal then return refusal end
    all_allow = all_allow and (not is_group or allows(member))
    if is_group and member.is_idempotent then
      -- Another request had the same idempotency key: then nothing changes.
      is_another = is_another or has_fate(member, 'different')
      was_denied = was_denied or (not allows(member) and has_fate(member, 'repeated'))
      member.is_held = has_fate(member, 'held')
      if member.is_held then member.answers[1] = member.answers[1]:gsub(' held$', '') end
    end
  end
  if is_another then return end
  if is_group and all_allow then
    local refusal, still_allow = look_at_next_run(members)
    if refusal then return refusal end
    all_allow = still_allow
  end
  for _, member in ipairs(members) do
    -- A member that denies corrects its time if the clock was set back. A member that was held back when the step was denied for
    -- the first time repeats its answer.
    local is_asked = all_allow or not (allows(member) or (was_denied and member.is_held))
    local has_record = #member.keys > 1
    local new_mode = is_asked and 'apply' or (has_record and 'hold')
    local refusal = new_mode and ask(member, new_mode)
    if refusal then return refusal end
  end
end

while argument_at < #ARGV do
  local members = {}
  for place = 1, tonumber(next_argument()) do members[place] = next_member() end
  local refusal = apply(members)
  for _, member in ipairs(members) do
    -- An error applies to all members of its step, and to no other step.
    for _, answer in ipairs(refusal and { { err = refusal } } or member.answers) do table.insert(answers, answer) end
  end
end
return answers
