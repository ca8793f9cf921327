-- Applies the actions, one argument each: "action cost at". Answers a text for each: see `outcome`.

-- How long a bucket is kept after it is as good as fresh: as far as one divvy's clock may be behind another's, it is not
-- fresh yet by that clock.
local GRACE_NS = 10 * 1e9

local stored = redis.call('GET', KEYS[1])
local state = stored and algorithm.decode(stored) or nil
local outcomes, lives_ns = {}, 0
for place = 2, #ARGV do
  local action, cost, at = ARGV[place]:match('^(%a+) (%d+) (%d+)$')
  local drains = action == 'drain' or action == 'strict'
  local ask = { action = action, drains = drains, cost = parse(cost), at = parse(at) }
  if action == 'forget' then
    local held = state and lifetime_ns(state, ask.at) ~= 0
    if held then state = nil end
    outcomes[#outcomes + 1] = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  else
    local changed
    outcomes[#outcomes + 1], changed = (drains and algorithm.drain or decide)(state, ask)
    if changed then state, lives_ns = changed, lifetime_ns(changed, ask.at) end
  end
end
local written = state and algorithm.encode(state)
if written and written ~= stored then
  redis.call('SET', KEYS[1], written, 'PX', format(divide_up(plus(lives_ns, GRACE_NS), 1e6)))
elseif stored and not written then
  redis.call('DEL', KEYS[1])
end
return outcomes
