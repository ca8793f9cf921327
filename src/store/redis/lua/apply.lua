-- Applies the actions, one argument each: "action cost at". Answers a text for each: see `outcome`.

-- How long a bucket is kept after it is as good as fresh: as far as one divvy's clock may be behind another's, it is not
-- fresh yet by that clock.
local GRACE_NS = 10 * 1e9

local stored = redis.call('GET', KEYS[1])
local state = stored and algorithm.decode(stored) or nil
local outcomes, changed_at = {}, nil
for place = 2, #ARGV do
  local action, cost, at = ARGV[place]:match('^(%a+) (%d+) (%d+)$')
  local drains = action == 'drain' or action == 'strict'
  local ask = { action = action, drains = drains, cost = parse(cost), at = parse(at) }
  if action == 'forget' then
    local held = state and not is_fresh(state, ask.at)
    if held then state = nil end
    outcomes[#outcomes + 1] = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  else
    local changed, time
    outcomes[#outcomes + 1], changed, time = (drains and algorithm.drain or decide)(state, ask)
    if changed then state, changed_at = changed, time end
  end
end
local written = state and algorithm.encode(state)
if written and written ~= stored then
  local lives_ns = plus(algorithm.wait_ns(state, capacity, changed_at), GRACE_NS)
  redis.call('SET', KEYS[1], written, 'PX', format(divide_up(lives_ns, 1e6)))
elseif stored and not written then
  redis.call('DEL', KEYS[1])
end
return outcomes
