-- See algorithm/token_bucket.rs. Stored: "mark tokens session". The session is only passed on, so it stays a text.

local refill, interval_ns = parse(second), parse(third)

function algorithm.decode(stored)
  local mark, tokens, session = stored:match('^(%d+) (%d+) (%d+)$')
  if not mark then return nil end
  return { mark = parse(mark), tokens = parse(tokens), session = session }
end

function algorithm.encode(state)
  return format(state.mark) .. ' ' .. format(state.tokens) .. ' ' .. state.session
end

function algorithm.fresh(at) return { mark = at, tokens = capacity, session = format(at) } end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local steps = divide(minus(at, state.mark), interval_ns)
  if steps == 0 then return state end
  local tokens = min(plus(times(steps, refill), state.tokens), capacity)
  return { mark = plus(state.mark, times(steps, interval_ns)), tokens = tokens, session = state.session }
end

function algorithm.pulled_back(state, at) return { mark = at, tokens = state.tokens, session = state.session } end

function algorithm.left(state) return min(state.tokens, capacity) end

function algorithm.taken(state, credits, at)
  if not less(state.tokens, capacity) then state = algorithm.fresh(at) end
  return { mark = state.mark, tokens = minus(state.tokens, credits), session = format(at) }
end

function algorithm.wait_ns(state, credits, at)
  local missing = minus(credits, algorithm.left(state))
  if missing == 0 then return 0 end
  return time_between(at, state.mark, times(divide_up(missing, refill), interval_ns))
end

function algorithm.session(state) return state.session end

function algorithm.drain(stored, ask)
  local at, found = ask.at, nil
  if ask.replays then
    found = stored and algorithm.advanced(stored, at) or algorithm.fresh(at)
  else
    found, at = present(stored, at)
  end
  local drained = found
  if ask.cost ~= 0 then
    local tokens = minus(found.tokens, ask.cost)
    drained = {
      mark = ask.strict and tokens == 0 and at or found.mark,
      tokens = tokens,
      session = less(found.tokens, ask.cost) and found.session or format(at),
    }
  end
  return outcome(drained, ask, found.tokens ~= 0, found.tokens, at), ask.cost ~= 0 and drained or nil, at
end
