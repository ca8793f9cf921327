-- All of the buckets take, or none does. KEYS: the buckets. ARGV, for each of them: which script decides about it, how many
-- arguments that one has, and these.

-- Calls the bucket's script with its own arguments, or looks for as much as they would take.
local function ask(member, looks)
  local arguments = {}
  for place = 1, member.count do
    local argument = ARGV[member.first + place]
    arguments[place] = looks and argument:gsub('^take', 'look') or argument
  end
  return buckets[member.script]({ member.key }, arguments)
end

-- The first thing that a script answers is whether it allows: 1, or a text that begins with it.
local function allows(answers) return tostring(answers[1]):sub(1, 1) == '1' end

local members, place, all_allow = {}, 1, true
for number, key in ipairs(KEYS) do
  local member = { key = key, script = ARGV[place], count = tonumber(ARGV[place + 1]), first = place + 1 }
  member.answers = ask(member, true)
  if member.answers.err then return member.answers end
  all_allow = all_allow and allows(member.answers)
  members[number] = member
  place = place + 2 + member.count
end
local answers = {}
for _, member in ipairs(members) do
  -- One that denies puts its time right when the clock was set back.
  if all_allow or not allows(member.answers) then member.answers = ask(member, false) end
  for _, answer in ipairs(member.answers) do table.insert(answers, answer) end
end
return answers
