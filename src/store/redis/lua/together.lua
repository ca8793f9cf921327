-- One step after the other; in each, all of its buckets take, or none does. KEYS: those of each bucket's script. ARGV, for each
-- step: how many buckets it has, and for each of them: which script decides about it, how many keys and arguments that one has,
-- and the arguments.

local answers, key_at, argument_at = {}, 0, 0

local SETTLES = { commit = true, release = true, renew = true }

local function next_argument()
  argument_at = argument_at + 1
  return ARGV[argument_at]
end

-- What the bucket is asked to change it; to know whether it would allow that; and to tell what is there when another one does
-- not. The last two differ for asks that have records. Commits, releases and renewals are always allowed. They look first all the
-- same, so that nothing changes if a record is damaged.
local function next_member()
  local member = { keys = {}, script = next_argument(), takes = {}, looks = {}, tells = {}, has_record = false, is_once = false }
  for place = 1, tonumber(next_argument()) do
    key_at = key_at + 1
    member.keys[place] = KEYS[key_at]
  end
  for place = 1, tonumber(next_argument()) do
    local argument = next_argument()
    member.takes[place] = argument
    local looks = argument:gsub('^take', 'look'):gsub('^overdraw', 'glance')
    member.looks[place] = looks:gsub('^reserve', 'tryreserve'):gsub(' once (%d+)$', ' try %1')
    if SETTLES[argument:match('^%a+')] then member.looks[place] = argument:gsub('^%a+ %d+', 'inspect 0') end
    local is_once = argument:find(' once %d+$')
    member.tells[place] = (is_once and looks or argument):gsub('^reserve (%d+ %w+) .*', 'look %1'):gsub(' once (%d+)$', ' hold %1')
    member.is_once = member.is_once or is_once
    member.has_record = member.has_record or member.tells[place] ~= argument
  end
  return member
end

-- What the bucket answers; and why it does not, if so.
local function ask(member, arguments)
  -- A script that raises an error, about a value that nobody has stored so, must not end the steps after this one.
  local answered, answers = pcall(buckets[member.script], member.keys, arguments)
  if not answered then return type(answers) == 'table' and answers.err or 'ERR ' .. tostring(answers) end
  member.answers = answers
  return answers.err
end

-- The first thing that a script answers is whether it allows: 1, or a text that begins with it.
local function allows(member) return tostring(member.answers[1]):sub(1, 1) == '1' end

-- Whether the ask has this fate.
local function came_to(member, fate) return tostring(member.answers[1]):find(' ' .. fate .. '$') end

-- Why the step is refused, if it is; else each member has its answers.
local function apply(members)
  local is_group, all_allow, is_another, was_denied = #members > 1, true, false, false
  for _, member in ipairs(members) do
    local refusal = is_group and ask(member, member.looks)
    if refusal then return refusal end
    all_allow = all_allow and (not is_group or allows(member))
    if is_group and member.is_once then
      -- Another ask had the name of one that is answered once: then nothing changes.
      is_another = is_another or came_to(member, 'different')
      was_denied = was_denied or (not allows(member) and came_to(member, 'repeated'))
      member.is_held = came_to(member, 'held')
      if member.is_held then member.answers[1] = member.answers[1]:gsub(' held$', '') end
    end
  end
  if is_another then return end
  for _, member in ipairs(members) do
    -- A member that denies corrects its time if the clock was set back. A member that was held back when the step was denied for
    -- the first time repeats its answer.
    local is_asked = all_allow or not (allows(member) or (was_denied and member.is_held))
    local refusal = is_asked and ask(member, member.takes)
    if not is_asked and member.has_record then refusal = ask(member, member.tells) end
    if refusal then return refusal end
  end
end

while argument_at < #ARGV do
  local members = {}
  for place = 1, tonumber(next_argument()) do members[place] = next_member() end
  local refusal = apply(members)
  for _, member in ipairs(members) do
    -- An error is that of all of its step, and of no other.
    for _, answer in ipairs(refusal and { { err = refusal } } or member.answers) do table.insert(answers, answer) end
  end
end
return answers
