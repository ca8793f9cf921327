-- See algorithm/fixed_window.rs. Stored: "ends count". Only for commands with their own limit: the window of a rule is
-- stored in Divvy's format (window_stored.lua).

local window_ns = parse(second)

function algorithm.decode(stored)
  local ends, count = stored:match('^(%d+) (%-?%d+)$')
  local used = ends and used_in(count)
  return used and { ends = parse(ends), used = used }
end

function algorithm.encode(state) return format(state.ends) .. ' ' .. count_of(state.used) end

function algorithm.fresh(at) return { ends = saturating(plus(at, window_ns)), used = 0 } end

function algorithm.time(state) return minus(state.ends, window_ns) end

function algorithm.advanced(state, at) return less(at, state.ends) and state or algorithm.fresh(at) end

function algorithm.pulled_back(state, at) return { ends = saturating(plus(at, window_ns)), used = state.used } end

function algorithm.used(state) return state.used end

function algorithm.taken(state, credits)
  return { ends = state.ends, used = saturating(plus(state.used, credits)) }
end

function algorithm.given_back(state, credits) return { ends = state.ends, used = minus(state.used, credits) } end

function algorithm.wait_ns(state, credits, at)
  return less(left_in(state), credits) and minus(state.ends, at) or 0
end
