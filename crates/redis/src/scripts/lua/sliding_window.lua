-- See algorithm/sliding_window.rs. Stored: "start current previous".

local window_ns = parse(second)

local function aligned(at)
  local _, rest = divide(at, window_ns)
  return minus(at, rest)
end

function algorithm.decode(stored)
  local start, current, previous = stored:match('^(%d+) (%d+) (%d+)$')
  return start and { start = parse(start), current = parse(current), previous = parse(previous) }
end

function algorithm.encode(state)
  return format(state.start) .. ' ' .. format(state.current) .. ' ' .. format(state.previous)
end

function algorithm.fresh(at) return { start = aligned(at), current = 0, previous = 0 } end

function algorithm.time(state) return state.start end

function algorithm.advanced(state, at)
  local windows = divide(minus(at, state.start), window_ns)
  if windows == 0 then return state end
  if windows ~= 1 then return algorithm.fresh(at) end
  return { start = saturating(plus(state.start, window_ns)), current = 0, previous = state.current }
end

function algorithm.pulled_back(state, at)
  return { start = aligned(at), current = state.current, previous = state.previous }
end

function algorithm.used(state, at)
  local overlap = minus(window_ns, minus(at, state.start))
  local fading = divide(times(state.previous, overlap), window_ns)
  return saturating(plus(state.current, fading))
end

function algorithm.taken(state, credits)
  return { start = state.start, current = saturating(plus(state.current, credits)), previous = state.previous }
end

function algorithm.given_back(state, credits)
  local over = minus(credits, state.current)
  return { start = state.start, current = minus(state.current, credits), previous = minus(state.previous, over) }
end

function algorithm.wait_ns(state, credits, at)
  if not less(left_in(state, at), credits) then return 0 end
  local room, start, fading = minus(capacity, credits), state.start, state.previous
  if less(room, state.current) then
    start, fading = plus(start, window_ns), state.current
  else
    room = minus(room, state.current)
  end
  local longest_overlap = divide(minus(times(plus(room, 1), window_ns), 1), max(fading, 1))
  return time_between(at, start, minus(window_ns, min(longest_overlap, window_ns)))
end
