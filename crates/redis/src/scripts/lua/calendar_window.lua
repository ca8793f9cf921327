-- See algorithm/calendar_window.rs. Replaces some of the functions of fixed_window.lua, which comes before this file.
-- The limit's numbers: three boundaries between windows, in order.

local boundaries = { parse(second), parse(third), parse(fourth) }
local last_window_ns = minus(boundaries[3], boundaries[2])

-- Returns the end of the window at that time. After the last boundary, there is one more window with the length of the
-- last.
local function ends_after(at)
  for place = 1, 3 do
    if less(at, boundaries[place]) then return boundaries[place] end
  end
  return saturating(plus(at, last_window_ns))
end

function algorithm.fresh(at) return { ends = ends_after(at), used = 0 } end

-- A window later than the current one began at the end of the current one, or after it. Half a window of tolerance
-- allows for changed time zone data and for windows of different lengths, which differ by less than that.
function algorithm.time(state, at)
  local ends = ends_after(at)
  local window_ns = less(at, boundaries[2]) and minus(boundaries[2], boundaries[1]) or last_window_ns
  local half = divide(window_ns, 2)
  local later_ns = minus(state.ends, ends)
  if half == 0 or less(later_ns, half) then return 0 end
  return plus(ends, minus(later_ns, plus(window_ns, half)))
end

function algorithm.pulled_back(state, at) return { ends = ends_after(at), used = state.used } end
