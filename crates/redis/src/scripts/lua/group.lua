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

-- Asks the bucket in a mode (see decide.lua), and stores its answers. Returns the error if there is one.
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
