-- Reads the bucket, and what is reserved of it. ARGV, after the limit: the actions, one argument each: "action cost at", and what
-- else an ask says that has a record; in a cluster, the last argument is the bucket's hash tag. KEYS: the bucket; and if asks
-- have records, what is reserved of it, and each ask's record.

local last, tag = #ARGV, ''
if ARGV[last]:sub(1, 1) == '{' then last, tag = last - 1, ARGV[last] end
local stored, state = redis.pcall('GET', KEYS[1]), nil
local refusal = type(stored) == 'table' and stored.err
if stored and not refusal then
  state = algorithm.decode(stored)
  refusal = not state and refusal_of(stored)
end
local reserved_key = KEYS[2] or tag .. 'divvy.reserved:' .. KEYS[1]
local reserved = redis.pcall('GET', reserved_key)
-- "Script attempted to access a non local key": while the bucket's slot is on its way to another node, what is not here may be
-- there. Hits are not refused for that, but go by what the bucket itself leaves.
if type(reserved) == 'table' and reserved.err:find('attempted to access', 1, true) then reserved = false end
-- Asks have records, or something is reserved: then reserved.lua, reservation.lua and once.lua come next, which make it a table.
local reserving = reserved or KEYS[3]
