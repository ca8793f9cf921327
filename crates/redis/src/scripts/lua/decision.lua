-- The decision on an ask, which all scripts share: see algorithm/ask.rs.

-- Decides an ask for a counter with `left` credits. `fits` says whether `cost` is at most `left`. Returns whether the
-- ask is allowed, how many credits it takes, and how many must be left for it to be allowed. A refund takes none.
local function decide_ask(action, cost, left, fits)
  if action == 'take' then return fits, fits and cost or 0, cost end
  if action == 'look' or action == 'show' then return fits, 0, cost end
  if action == 'refund' then return true, 0, 0 end
  if action == 'count' then return true, fits and cost or left, 0 end
  local allowed = left ~= 0
  if action == 'charge' then return allowed, cost, 1 end
  if action == 'overdraw' then return allowed, allowed and cost or 0, 1 end
  -- drain, strict, replay and strictreplay take as many as there are.
  return allowed, fits and cost or left, 1
end
