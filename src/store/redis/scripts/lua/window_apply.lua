-- Applies the actions to the window that window_stored.lua has read. Returns four numbers for each: whether it was allowed (1 or
-- 0), the credits before, the credits left, and the milliseconds until the window ends.

local ttl = stored and not refusal and read_ttl() or 0
local answers, last = {}, 0
for i = 4, #ARGV - 1, 2 do
  local action, cost, before = ARGV[i], tonumber(ARGV[i + 1]), left > 0 and left or 0
  local allowed, taken
  if action == 'forget' then
    -- An unreadable value is forgotten, too.
    allowed, taken = left < credits or refusal, 0
    if allowed then
      redis.call('DEL', key)
      stored, left, ttl, refusal = false, credits, 0, nil
    end
  elseif refusal then
    return redis.error_reply(refusal)
  else
    allowed, taken = decide_ask(action, cost, before, cost <= before)
    if mode ~= 'apply' then
      taken = 0
    elseif action == 'refund' then
      taken = -math.max(math.min(cost, credits - left), 0)
    end
  end
  -- All sums stay numbers that doubles hold exactly.
  local most = full - credits + left + MAX_OWED
  if taken > most then taken = most end
  if taken < 0 and left - taken >= credits then
    redis.call('DEL', key)
    stored, ttl = false, 0
  elseif taken ~= 0 and stored then
    redis.call('DECRBY', key, string_format('%.0f', taken))
  elseif taken > 0 then
    stored, ttl = true, tonumber(window_ms)
    redis.call('SET', key, string_format('%.0f', full - taken), 'PX', window_ms)
  end
  left = left - taken
  answers[last + 1], answers[last + 2], answers[last + 3], answers[last + 4] = allowed and 1 or 0, before, left, ttl
  last = last + 4
end
return answers
