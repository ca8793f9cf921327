-- Applies the actions, one argument each: "action cost at". Answers a text for each: see `outcome`.

-- A bucket is kept so much longer than until it is as good as fresh by the time of its last change: the next one may come
-- with a time that a client has brought, and that is as far behind.
local GRACE_NS = 10 * 1e9

local stored, state = redis.pcall('GET', KEYS[1]), nil
local refusal = type(stored) == 'table' and stored.err
if stored and not refusal then
  state = algorithm.decode(stored)
  -- A state of the first version, the only one so far, ends in a number. A later one ends in a space, `v` and its version:
  -- no server has ever taken such a text for a state, not even those that knew nothing of versions.
  local version = not state and stored:match(' v(%d+)$')
  refusal = version and LATER:format(version) or not state and DAMAGED
end
local outcomes, changed_at = {}, nil
for place = 2, #ARGV do
  local action, cost, at = ARGV[place]:match('^(%a+) (%d+) (%w+)$')
  local replays = action == 'replay' or action == 'strictreplay'
  local strict = action == 'strict' or action == 'strictreplay'
  local drains = replays or strict or action == 'drain'
  local ask = {
    action = action, drains = drains, replays = replays, strict = strict, cost = parse(cost), at = nanoseconds(at),
  }
  if action == 'forget' then
    -- What nobody can read is as good as gone, too.
    local held = refusal or (state and not is_fresh(state, ask.at))
    if held then state, refusal = nil, nil end
    outcomes[#outcomes + 1] = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  elseif refusal then
    return redis.error_reply(refusal)
  else
    local changed, time
    outcomes[#outcomes + 1], changed, time = (drains and algorithm.drain or decide)(state, ask)
    if changed then state, changed_at = changed, time end
    -- All was given back.
    if changed and action == 'refund' and is_fresh(state, ask.at) then state = nil end
  end
end
local written = state and algorithm.encode(state)
if changed_at and written and written ~= stored then
  local lives_ns = plus(algorithm.lives_ns(state, changed_at), GRACE_NS)
  redis.call('SET', KEYS[1], written, 'PX', format(divide_up(lives_ns, 1e6)))
elseif stored and not written then
  redis.call('DEL', KEYS[1])
end
return outcomes
