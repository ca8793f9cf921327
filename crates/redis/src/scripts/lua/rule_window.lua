-- A rule's fixed window (window_stored.lua) as a state of fixed_window.lua, which comes before this. Its number and TTL
-- keep Divvy's format. `damaged` is the error if the key does not hold a number.

-- The limit has milliseconds.
window_ns = times(window_ns, 1e6)

-- The window when it was read.
local known

function algorithm.decode(stored)
  if damaged then
    DAMAGED = damaged
    return nil
  end
  local at = nanoseconds('now')
  -- This is read again after Redis's time, so that no reservation outlives the window.
  local left_ms = redis.call('PTTL', KEYS[1])
  if left_ms < 0 then left_ms = ttl end
  -- In its last millisecond, a window has a TTL of 0 ms, but still counts.
  local left_ns = times(math.max(left_ms, 1), 1e6)
  -- An operator may have stored more credits than the limit has.
  if stored:sub(1, 1) ~= '-' then capacity = plus(capacity, minus(parse(stored), full)) end
  known = { ends = plus(at, left_ns), used = used_in(stored) }
  return known
end

-- Redis ends the window, so it has no time of its own.
function algorithm.time() return 0 end

function algorithm.taken(state, credits)
  return { ends = state.ends, used = min(plus(state.used, credits), plus(full, MAX_OWED)) }
end

function algorithm.store(stored, state)
  if not state then
    if stored then redis.call('DEL', KEYS[1]) end
  elseif not known or state.ends ~= known.ends then
    redis.call('SET', KEYS[1], count_of(state.used), 'PX', window_ms)
  else
    local taken, returned = minus(state.used, known.used), minus(known.used, state.used)
    if taken ~= 0 then redis.call('DECRBY', KEYS[1], format(taken)) end
    if returned ~= 0 then redis.call('DECRBY', KEYS[1], '-' .. format(returned)) end
  end
end
