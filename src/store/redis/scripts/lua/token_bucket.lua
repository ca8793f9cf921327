-- See algorithm/token_bucket.rs. Stored: "mark count session". The session is only passed through, so it stays text.

local refill, interval_ns = parse(second), parse(third)

function algorithm.decode(stored)
  local mark, count, session = stored:match('^(%d+) (%-?%d+) (%d+)$')
  local missing = mark and used_in(count)
  return missing and { mark = parse(mark), missing = missing, session = session }
end

function algorithm.encode(state)
  return format(state.mark) .. ' ' .. count_of(state.missing) .. ' ' .. state.session
end

function algorithm.fresh(at) return { mark = at, missing = 0, session = format(at) } end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local steps = divide(minus(at, state.mark), interval_ns)
  if steps == 0 then return state end
  local missing = minus(state.missing, times(steps, refill))
  return { mark = plus(state.mark, times(steps, interval_ns)), missing = missing, session = state.session }
end

function algorithm.pulled_back(state, at) return { mark = at, missing = state.missing, session = state.session } end

function algorithm.used(state) return state.missing end

function algorithm.taken(state, credits, at)
  local mark = state.missing == 0 and at or state.mark
  return { mark = mark, missing = saturating(plus(state.missing, credits)), session = format(at) }
end

function algorithm.given_back(state, credits)
  return { mark = state.mark, missing = minus(state.missing, credits), session = state.session }
end

function algorithm.wait_ns(state, credits, at)
  local missing = minus(state.missing, minus(capacity, credits))
  if missing == 0 then return 0 end
  return time_between(at, state.mark, times(divide_up(missing, refill), interval_ns))
end

function algorithm.lives_ns(state, at)
  if state.missing == 0 then return 0 end
  local by = slowest and parse(slowest) or refill
  return time_between(at, state.mark, times(divide_up(state.missing, by), interval_ns))
end

function algorithm.session(state) return state.session end

algorithm.drains = { drain = true, strict = true, replay = true, strictreplay = true }

-- Decides an ask that takes as many credits as there are. The time of a replay may be earlier than the state's, which
-- does not mean that the clock was set back.
function algorithm.drain(stored, ask)
  local at, found, pulled_back = ask.at, nil, false
  if ask.action:find('replay') then
    found = stored and algorithm.advanced(stored, at) or algorithm.fresh(at)
  else
    found, at, pulled_back = present(stored, at)
  end
  local drained, tokens = found, left_in(found)
  if ask.cost ~= 0 then
    drained = {
      mark = ask.action:find('strict') and not less(ask.cost, tokens) and at or found.mark,
      missing = plus(found.missing, min(ask.cost, tokens)),
      session = less(tokens, ask.cost) and found.session or format(at),
    }
  end
  return outcome(drained, ask, tokens, at), (ask.cost ~= 0 or pulled_back) and drained or nil, at
end
