-- See window.rs, which calls it.

-- The number counts down from `full`: the credits of the limit that it was stored under, which may be another one now.
local key, credits, window, full = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local stored = redis.pcall('GET', key)
local left, ttl, refusal = credits, 0, type(stored) == 'table' and stored.err
if stored and not refusal then
  -- What Redis itself decreases: `tonumber` alone takes `inf`, `0x1`, `007` and numbers that it cannot hold exactly, too.
  local number = stored:match('^%-?%d+$') and tonumber(stored)
  if number and (math.abs(number) >= 2^53 or string.format('%.0f', number) ~= stored) then number = nil end
  if number then left = number - full + credits else refusal = 'ERR the key holds no number of credits' end
  ttl = redis.call('PTTL', key)
end
-- What is owed grows to this number, and no further: so all sums here are numbers that Lua holds exactly.
local LOWEST = -2^52
local drains = { drain = true, strict = true, replay = true, strictreplay = true }
local answers = {}
for i = 4, #ARGV, 2 do
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
  elseif drains[action] then
    allowed, taken = before > 0, math.min(cost, before)
  elseif action == 'charge' then
    allowed, taken = before > 0, cost
  elseif action == 'refund' then
    allowed, taken = true, -math.max(math.min(cost, credits - left), 0)
  else
    local is_debt = action == 'overdraw' or action == 'glance'
    allowed = (is_debt and 1 or cost) <= before
    taken = (allowed and (action == 'take' or action == 'overdraw')) and cost or 0
  end
  taken = math.min(taken, full - credits + left - LOWEST)
  if taken < 0 and left - taken >= credits then
    redis.call('DEL', key)
    stored, ttl = false, 0
  elseif taken ~= 0 and stored then
    redis.call('DECRBY', key, string.format('%.0f', taken))
  elseif taken > 0 then
    stored, ttl = true, tonumber(window)
    redis.call('SET', key, string.format('%.0f', full - taken), 'PX', window)
  end
  if stored and ttl < 0 then
    ttl = tonumber(window)
    if action ~= 'look' and action ~= 'glance' then redis.call('PEXPIRE', key, window) end
  end
  left = left - taken
  for _, number in ipairs({allowed and 1 or 0, before, left, ttl}) do table.insert(answers, number) end
end
return answers
