-- Applies the actions to the bucket that stored.lua has read. Returns a text for each action: see `outcome`.

if reserving and not refusal then state, refusal = reserving.read(state) end
local outcomes, changed_at = {}, nil
for place = 2, last do
  local action, cost, at, more = ARGV[place]:match('^(%a+) (%d+) (%w+)(.*)$')
  local ask = { action = action, cost = parse(cost), at = nanoseconds(at) }
  local text, changed, time
  if action == 'forget' then
    -- An unreadable value is also forgotten.
    local held = refusal or (state and not is_fresh(state, ask.at))
    if held then state, refusal = nil, nil end
    text = held and '1 0 0 0 - -' or '0 0 0 0 - -'
  elseif refusal then
    return redis.error_reply(refusal)
  else
    text, changed, time = (reserving and reserving.decide or decide)(state, ask, more)
    if not text then return redis.error_reply(changed) end
  end
  outcomes[#outcomes + 1] = text
  if changed then state, changed_at = changed, time end
  if reserving then state = reserving.kept(state) end
  -- A bucket that has all credits back is equivalent to a fresh one.
  local gives_back = action == 'refund' or (reserving and reserving.asks[action])
  if changed and gives_back and is_fresh(state, ask.at) then state = nil end
end
if reserving then reserving.write(state, changed_at) end
local written = state and limit.encode(state)
if algorithm.store then
  algorithm.store(stored, state and state.base or state)
elseif changed_at and written and (reserving or written ~= stored) then
  local lives_ns = plus(limit.lives_ns(state, changed_at), GRACE_NS)
  redis.call('SET', KEYS[1], written, 'PX', format(divide_up(lives_ns, 1e6)))
elseif stored and not written then
  redis.call('DEL', KEYS[1])
end
return outcomes
