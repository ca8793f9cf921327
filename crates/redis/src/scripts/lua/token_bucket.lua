-- See algorithm/token_bucket.rs. Stored: "mark count session", and " own" if the bucket was last used under an
-- actor's own limit, with that capacity. The session is only passed through, so it stays text.

local refill, interval_ns = parse(second), parse(third)

local function lacking(missing, mark, session)
  return { mark = mark, missing = missing, session = session, own = replaced and capacity or nil }
end

function algorithm.decode(stored)
  local mark, count, session, own = stored:match('^(%d+) (%-?%d+) (%d+) ?(%d*)$')
  local missing = mark and used_in(count)
  if not missing then return nil end
  return { mark = parse(mark), missing = missing, session = session, own = own ~= '' and parse(own) or nil }
end

function algorithm.encode(state)
  local own = state.own and ' ' .. format(state.own) or ''
  return format(state.mark) .. ' ' .. count_of(state.missing) .. ' ' .. state.session .. own
end

function algorithm.fresh(at) return lacking(0, at, format(at)) end

function algorithm.time(state) return state.mark end

function algorithm.advanced(state, at)
  local steps = divide(minus(at, state.mark), interval_ns)
  local before = state.own or replaced
  local missing = before and here(state.missing, before, capacity) or state.missing
  if steps ~= 0 then missing = minus(missing, times(steps, refill)) end
  return lacking(missing, plus(state.mark, times(steps, interval_ns)), state.session)
end

function algorithm.pulled_back(state, at)
  return { mark = at, missing = state.missing, session = state.session, own = state.own }
end

function algorithm.used(state) return state.missing end

function algorithm.taken(state, credits, at)
  local mark = state.missing == 0 and at or state.mark
  return lacking(saturating(plus(state.missing, credits)), mark, format(at))
end

function algorithm.given_back(state, credits)
  return lacking(minus(state.missing, credits), state.mark, state.session)
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
    local mark = ask.action:find('strict') and not less(ask.cost, tokens) and at or found.mark
    local session = less(tokens, ask.cost) and found.session or format(at)
    drained = lacking(plus(found.missing, min(ask.cost, tokens)), mark, session)
  end
  return outcome(drained, ask, tokens, at), (ask.cost ~= 0 or pulled_back) and drained or nil, at
end
