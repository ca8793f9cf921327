-- See algorithm/sliding_log.rs. Stored: the time when each credit was taken, oldest first, in LENGTH digits each.
-- So times can be compared as text, and a long log need not be read as a whole.

local LENGTH = 20

local window_ns = parse(second)

local function stamp(time)
  local text = format(time)
  return ('0'):rep(LENGTH - #text) .. text
end

local function count(state) return #state.times / LENGTH end

local function stamp_at(state, place) return state.times:sub((place - 1) * LENGTH + 1, place * LENGTH) end

local function time_at(state, place) return parse(stamp_at(state, place)) end

function algorithm.decode(stored)
  if #stored % LENGTH ~= 0 or #stored / LENGTH > MAX_LOG_CREDITS or stored:sub(-LENGTH):find('%D') then return nil end
  return { times = stored }
end

function algorithm.encode(state) return state.times end

function algorithm.fresh() return { times = '' } end

function algorithm.time(state) return count(state) > 0 and time_at(state, count(state)) or 0 end

function algorithm.advanced(state, at)
  if less(at, window_ns) then return state end
  local last_gone = stamp(minus(at, window_ns))
  local gone, still_there = 0, count(state) + 1
  while still_there - gone > 1 do
    local middle = math.floor((gone + still_there) / 2)
    if stamp_at(state, middle) <= last_gone then gone = middle else still_there = middle end
  end
  return { times = state.times:sub(gone * LENGTH + 1) }
end

function algorithm.pulled_back(state, at)
  local latest = stamp(at)
  local earlier = function(time) return time > latest and latest or time end
  return { times = (state.times:gsub(('.'):rep(LENGTH), earlier)) }
end

function algorithm.used(state) return count(state) end

function algorithm.taken(state, credits, at)
  return { times = state.times .. stamp(at):rep(min(credits, left_in(state))) }
end

function algorithm.given_back(state, credits)
  return { times = state.times:sub(1, minus(count(state), credits) * LENGTH) }
end

function algorithm.wait_ns(state, credits, at)
  local missing = minus(count(state), minus(capacity, credits))
  if missing == 0 or less(count(state), missing) then return 0 end
  return minus(saturating(plus(time_at(state, missing), window_ns)), at)
end
