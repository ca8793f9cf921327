-- See window.rs, which calls it.

local key, credits, window = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local stored = redis.call('GET', key)
local left, ttl = credits, 0
if stored then
  left = tonumber(stored)
  if not left then return redis.error_reply('ERR the key holds no number of credits') end
  left = math.max(left, 0)
  ttl = redis.call('PTTL', key)
end
local answers = {}
for i = 3, #ARGV, 2 do
  local action, cost, before = ARGV[i], tonumber(ARGV[i + 1]), left
  local allowed, taken
  if action == 'forget' then
    allowed, taken = left < credits, 0
    if allowed then
      redis.call('DEL', key)
      stored, left, ttl = false, credits, 0
    end
  elseif action == 'drain' then
    allowed, taken = left > 0, math.min(cost, left)
  else
    allowed = cost <= left
    taken = (action == 'take' and allowed) and cost or 0
  end
  if taken > 0 and stored then
    redis.call('DECRBY', key, string.format('%.0f', taken))
  elseif taken > 0 then
    stored, ttl = true, tonumber(window)
    redis.call('SET', key, string.format('%.0f', left - taken), 'PX', window)
  end
  if stored and ttl < 0 then
    ttl = tonumber(window)
    if action ~= 'look' then redis.call('PEXPIRE', key, window) end
  end
  left = left - taken
  for _, number in ipairs({allowed and 1 or 0, before, left, ttl}) do table.insert(answers, number) end
end
return answers
