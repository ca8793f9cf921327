-- Reads the bucket and its reservations. ARGV: the limit (decide.lua), then an argument for each action: "action cost at", and
-- more for an ask with a record. In a cluster, the last argument is the bucket's hash tag. KEYS: the bucket. If asks have records,
-- the key of its reservations and the key of each ask's record follow.

local last, tag = #ARGV, ''
if ARGV[last]:sub(1, 1) == '{' then last, tag = last - 1, ARGV[last] end
local stored, state = redis.pcall('GET', KEYS[1]), nil
local refusal = type(stored) == 'table' and stored.err
if stored and not refusal then
  state = algorithm.decode(stored)
  refusal = not state and refusal_of(stored)
end
local reserved_key = KEYS[2] or tag .. RESERVED .. KEYS[1]
local reserved = redis.pcall('GET', reserved_key)
-- "Script attempted to access a non local key": the bucket's slot is moving to another node, and the key may already be
-- there. Hits are not refused for that reason. They count without the reservations.
if type(reserved) == 'table' and reserved.err:find('attempted to access', 1, true) then reserved = false end
-- If an ask has a record, or credits are reserved, records.lua runs next and
-- replaces this with a table of functions.
local reserving = reserved or KEYS[3]
