-- See algorithm/fixed_window.rs. For buckets of no rule: a rule's window is Divvy's (window.lua). Stored: "ends left".

local window_ns = parse(second)

function algorithm.decode(stored)
  local ends, left = stored:match('^(%d+) (%d+)$')
  if not ends then return nil end
  return { ends = parse(ends), left = parse(left) }
end

function algorithm.encode(state) return format(state.ends) .. ' ' .. format(state.left) end

function algorithm.fresh(at) return { ends = saturating(plus(at, window_ns)), left = capacity } end

function algorithm.time(state) return minus(state.ends, window_ns) end

function algorithm.advanced(state, at) return less(at, state.ends) and state or algorithm.fresh(at) end

function algorithm.pulled_back(state, at) return { ends = saturating(plus(at, window_ns)), left = state.left } end

function algorithm.left(state) return min(state.left, capacity) end

function algorithm.taken(state, credits)
  return { ends = state.ends, left = minus(algorithm.left(state), credits) }
end

function algorithm.wait_ns(state, credits, at)
  return less(algorithm.left(state), credits) and minus(state.ends, at) or 0
end
