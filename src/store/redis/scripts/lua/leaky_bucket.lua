-- See algorithm/leaky_bucket.rs. Stored: "mark level", with the level in drops. The number of drops in a credit is the
-- number of nanoseconds in the period.

local leaks, period_ns = parse(second), parse(third)

function algorithm.decode(stored)
  local mark, level = stored:match('^(%d+) (%d+)$')
  return mark and { mark = parse(mark), level = parse(level) }
end

function algorithm.encode(state) return format(state.mark) .. ' ' .. format(state.level) end

function algorithm.fresh(at) return { mark = at, level = 0 } end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  return { mark = at, level = minus(state.level, times(minus(at, state.mark), leaks)) }
end

function algorithm.pulled_back(state, at) return { mark = at, level = state.level } end

function algorithm.used(state) return saturating(divide_up(state.level, period_ns)) end

function algorithm.taken(state, credits)
  local level = plus(state.level, times(credits, period_ns))
  -- The credits must fit in 64 bits. A level that is a plain Lua number is far below that.
  if type(level) == 'table' then
    local _, drops = divide(state.level, period_ns)
    level = min(level, plus(times(LARGEST, period_ns), drops))
  end
  return { mark = state.mark, level = level }
end

function algorithm.given_back(state, credits)
  return { mark = state.mark, level = minus(state.level, times(credits, period_ns)) }
end

function algorithm.wait_ns(state, credits)
  local level_then = times(minus(capacity, credits), period_ns)
  return saturating(divide_up(minus(state.level, level_then), leaks))
end

function algorithm.lives_ns(state)
  return saturating(divide_up(state.level, slowest and parse(slowest) or leaks))
end

function algorithm.credits_at_reset() return capacity end
