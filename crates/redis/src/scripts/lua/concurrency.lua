-- See algorithm/concurrency.rs. Stored: the latest time in the bucket. Its leases are reservations (records.lua).

algorithm.leases = true

function algorithm.decode(stored)
  local time = stored:match('^%d+$')
  return time and { time = parse(time) }
end

function algorithm.encode(state) return format(state.time) end

function algorithm.fresh(at) return { time = at } end

function algorithm.time(state) return state.time end

function algorithm.advanced(_, at) return { time = at } end

algorithm.pulled_back = algorithm.advanced

function algorithm.used() return 0 end

function algorithm.taken(state) return state end

algorithm.given_back = algorithm.taken

function algorithm.wait_ns() return 0 end
