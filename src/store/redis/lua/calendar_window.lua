-- See algorithm/calendar_window.rs. What differs from fixed_window.lua, which comes before this. Arguments: three
-- boundaries between windows, one after the other.

local boundaries = { parse(second), parse(third), parse(fourth) }
local last_window_ns = minus(boundaries[3], boundaries[2])

-- The end of the window at that time; past all boundaries, as if one more window had the length of the last.
local function ends_after(at)
  for place = 1, 3 do
    if less(at, boundaries[place]) then return boundaries[place] end
  end
  return saturating(plus(at, last_window_ns))
end

function algorithm.fresh(at) return { ends = ends_after(at), used = 0 } end

function algorithm.time(state)
  local longest = plus(last_window_ns, last_window_ns)
  return less(longest, state.ends) and minus(state.ends, longest) or 0
end

function algorithm.pulled_back(state, at) return { ends = ends_after(at), used = state.used } end
