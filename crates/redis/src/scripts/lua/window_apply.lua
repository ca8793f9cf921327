-- Applies the actions to the window that window_stored.lua has read. Returns a text for each action, as for any bucket
-- (decide.lua).

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
    -- Nothing is reserved.
    if action == 'show' then before = 0 end
    if mode ~= 'apply' then
      taken = 0
    elseif action == 'refund' then
      taken = -math.max(math.min(cost, credits - left), 0)
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
    -- In its last millisecond, a window has a TTL of 0 ms, but still counts.
    local ends_ms = math.max(ttl, 1)
    local reset_ms = left < credits and ends_ms or 0
    if not allowed and wanted <= credits then
      outcomes[place - 1] = string_format('0 %d %d %d000000 %d000000 -', before, left, reset_ms, ends_ms)
    else
      outcomes[place - 1] = string_format('%d %d %d %d000000 - -', allowed and 1 or 0, before, left, reset_ms)
    end
  end
end
return outcomes
