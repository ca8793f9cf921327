-- See window.rs, which calls it.

-- The number counts down from `full`: the credits of the limit that it was stored under, which may be another one now.
local key, credits, window, full = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local format = string.format
local stored = redis.pcall('GET', key)
local left, ttl, refusal = credits, 0, type(stored) == 'table' and stored.err
if stored and not refusal then
  -- What Redis itself decreases: `tonumber` alone takes `inf`, `0x1`, `007` and numbers that it cannot hold exactly, too.
  local number = tonumber(stored)
  if number and (not (number > -2^53 and number < 2^53) or format('%.0f', number) ~= stored) then number = nil end
  if number then left = number - full + credits else refusal = 'ERR the key holds no number of credits' end
end
local tag = #ARGV % 2 == 0 and ARGV[#ARGV] or ''
if KEYS[3] or redis.pcall('GET', KEYS[2] or tag .. 'divvy.reserved:' .. key) then
  -- Asks have records, or something is reserved.
  local lines = { ARGV[1] .. ' ' .. window .. '000000 of ' .. ARGV[3] }
  for i = 4, #ARGV - 1, 2 do
    -- An ask that has a record is one text.
    lines[#lines + 1] = ARGV[i + 1] == '' and ARGV[i] or ARGV[i] .. ' ' .. ARGV[i + 1] .. ' now'
  end
  lines[#lines + 1] = tag ~= '' and tag or nil
  return beside(KEYS, lines, refusal)
end
if stored and not refusal then
  ttl = redis.call('PTTL', key)
  -- Redis's clock was set back since: no window lasts longer than it is long.
  if ttl > tonumber(window) then
    ttl = tonumber(window)
    redis.call('PEXPIRE', key, window)
  end
end
-- What is owed grows to this number, and no further: so all sums here are numbers that Lua holds exactly.
local LOWEST = -2^52
local answers, last = {}, 0
for i = 4, #ARGV - 1, 2 do
  local action, cost, before = ARGV[i], tonumber(ARGV[i + 1]), math.max(left, 0)
  local allowed, taken
  if action == 'forget' then
    -- What nobody can read is as good as gone, too.
    allowed, taken = left < credits or refusal, 0
    if allowed then
      redis.call('DEL', key)
      stored, left, ttl, refusal = false, credits, 0, nil
    end
  elseif refusal then
    return redis.error_reply(refusal)
  elseif action == 'take' or action == 'look' then
    allowed = cost <= before
    taken = allowed and action == 'take' and cost or 0
  elseif action == 'overdraw' or action == 'glance' then
    allowed = 1 <= before
    taken = allowed and action == 'overdraw' and cost or 0
  elseif action == 'charge' then
    allowed, taken = before > 0, cost
  elseif action == 'refund' then
    allowed, taken = true, -math.max(math.min(cost, credits - left), 0)
  else
    -- drain, strict, replay, strictreplay
    allowed, taken = before > 0, math.min(cost, before)
  end
  taken = math.min(taken, full - credits + left - LOWEST)
  if taken < 0 and left - taken >= credits then
    redis.call('DEL', key)
    stored, ttl = false, 0
  elseif taken ~= 0 and stored then
    redis.call('DECRBY', key, format('%.0f', taken))
  elseif taken > 0 then
    stored, ttl = true, tonumber(window)
    redis.call('SET', key, format('%.0f', full - taken), 'PX', window)
  end
  if stored and ttl < 0 then
    ttl = tonumber(window)
    if action ~= 'look' and action ~= 'glance' then redis.call('PEXPIRE', key, window) end
  end
  left = left - taken
  answers[last + 1], answers[last + 2], answers[last + 3], answers[last + 4] = allowed and 1 or 0, before, left, ttl
  last = last + 4
end
return answers
