-- Reads a rule's fixed window. The key is Divvy's: a decimal number of credits, which expires when the window ends. The number
-- counts down from `full`: the credits of the limit that it was stored under. An actor's own limit may have other credits.
-- KEYS: the window, then as for any bucket (stored.lua). ARGV: credits, milliseconds, `full`, and two arguments for each action:
-- its name and its cost. An ask with a record is one text, as any bucket has it, and an empty text. In a cluster, the last
-- argument is the window's hash tag.

local string_format = string.format
local key, credits, window_ms, full = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local stored = redis.pcall('GET', key)
local left, refusal = credits, type(stored) == 'table' and stored.err
if stored and not refusal then
  -- Only numbers that Redis itself decreases: `tonumber` also reads `inf`, `0x1`, `007`, and numbers that doubles cannot hold.
  local number = tonumber(stored)
  if number and (not (number > -2^53 and number < 2^53) or string_format('%.0f', number) ~= stored) then number = nil end
  if number then left = number - full + credits else refusal = 'ERR the key does not hold a number of credits' end
end

-- Returns the milliseconds until the window ends. A window without an end (after PERSIST, or a SET by hand) would deny permanently,
-- so an action that may change it gives it one. Only a clock that was set back makes a window last longer than its own time; any
-- action corrects that.
local function read_ttl()
  local ttl, longest = redis.call('PTTL', key), tonumber(window_ms)
  if ttl >= 0 and ttl <= longest then return ttl end
  local is_corrected = ttl > longest
  for i = 4, #ARGV - 1, 2 do
    is_corrected = is_corrected or (mode == 'apply' and ARGV[i]:sub(1, 4) ~= 'look')
  end
  if is_corrected then redis.call('PEXPIRE', key, window_ms) end
  return longest
end

local tag = #ARGV % 2 == 0 and ARGV[#ARGV] or ''

-- An ask has a record, or credits of the window are reserved: then the window is decided like any bucket, with these arguments.
local is_bucket = KEYS[3] or redis.pcall('GET', KEYS[2] or tag .. RESERVED .. key)
local arguments
if is_bucket then
  arguments = { ARGV[1] .. ' ' .. window_ms .. '000000 of ' .. ARGV[3] }
  for i = 4, #ARGV - 1, 2 do
    arguments[#arguments + 1] = ARGV[i + 1] == '' and ARGV[i] or ARGV[i] .. ' ' .. ARGV[i + 1] .. ' now'
  end
  arguments[#arguments + 1] = tag ~= '' and tag or nil
end
