-- See algorithm/calendar_window.rs. Stored: "ends left". Arguments: three boundaries between windows, one after the other.

local boundaries = { parse(second), parse(third), parse(fourth) }
local window_ns = minus(boundaries[3], boundaries[2])

function algorithm.decode(stored)
  local ends, left = stored:match('^(%d+) (%d+)$')
  if not ends then return nil end
  return { ends = parse(ends), left = parse(left) }
end

function algorithm.encode(state) return format(state.ends) .. ' ' .. format(state.left) end

-- The end of the window at that time; past all boundaries, as if one more window had the length of the last.
local function ends_after(at)
  for place = 1, 3 do
    if less(at, boundaries[place]) then return boundaries[place] end
  end
  return saturating(plus(at, window_ns))
end

function algorithm.fresh(at) return { ends = ends_after(at), left = capacity } end

function algorithm.time(state)
  local longest = plus(window_ns, window_ns)
  return less(longest, state.ends) and minus(state.ends, longest) or 0
end

function algorithm.advanced(state, at) return less(at, state.ends) and state or algorithm.fresh(at) end

function algorithm.pulled_back(state, at) return { ends = ends_after(at), left = state.left } end

function algorithm.left(state) return min(state.left, capacity) end

function algorithm.taken(state, credits)
  return { ends = state.ends, left = minus(algorithm.left(state), credits) }
end

function algorithm.wait_ns(state, credits, at)
  return less(algorithm.left(state), credits) and minus(state.ends, at) or 0
end
