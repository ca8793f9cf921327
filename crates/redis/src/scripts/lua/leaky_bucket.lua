-- See algorithm/leaky_bucket.rs. Stored: "mark level", with the level in drops, and " own" if the bucket was
-- last used under an actor's own limit, with that capacity. The number of drops in a credit is the number of nanoseconds in the period.

local leaks, period_ns = parse(second), parse(third)

local full_level = times(capacity, period_ns)

local function filled(mark, level)
  return { mark = mark, level = level, own = replaced and capacity or nil }
end

function algorithm.decode(stored)
  local mark, level, own = stored:match('^(%d+) (%d+) ?(%d*)$')
  if not mark then return nil end
  return { mark = parse(mark), level = parse(level), own = own ~= '' and parse(own) or nil }
end

function algorithm.encode(state)
  return format(state.mark) .. ' ' .. format(state.level) .. (state.own and ' ' .. format(state.own) or '')
end

function algorithm.fresh(at) return { mark = at, level = 0 } end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local before = state.own or replaced
  local level = before and here(state.level, times(before, period_ns), full_level) or state.level
  return filled(at, minus(level, times(minus(at, state.mark), leaks)))
end

function algorithm.pulled_back(state, at)
  return { mark = at, level = state.level, own = state.own }
end

function algorithm.used(state) return saturating(divide_up(state.level, period_ns)) end

function algorithm.taken(state, credits)
  local level = plus(state.level, times(credits, period_ns))
  -- The credits must fit in 64 bits. A level that is a plain Lua number is far below that.
  if type(level) == 'table' then
    local _, drops = divide(state.level, period_ns)
    level = min(level, plus(times(LARGEST, period_ns), drops))
  end
  return filled(state.mark, level)
end

function algorithm.given_back(state, credits)
  return filled(state.mark, minus(state.level, times(credits, period_ns)))
end

function algorithm.wait_ns(state, credits)
  local level_then = times(minus(capacity, credits), period_ns)
  return saturating(divide_up(minus(state.level, level_then), leaks))
end

function algorithm.lives_ns(state)
  return saturating(divide_up(state.level, slowest and parse(slowest) or leaks))
end

function algorithm.credits_at_reset() return capacity end
