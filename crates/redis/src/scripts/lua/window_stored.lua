-- Reads a rule's fixed window. The key is Divvy's: a decimal number of credits, which expires when the window ends. The number
-- counts down from `full`: the credits of the limit that it was stored under. An actor's own limit may have other credits.
-- KEYS and ARGV are those of any bucket (stored.lua), but the limit has milliseconds in place of nanoseconds, because Redis has no
-- shorter unit. Only Redis's time counts.

-- This creates no function, which would cost each hit about 2,000 instructions.
local string_format = string.format
local key, last, tag = KEYS[1], #ARGV, ''
if ARGV[last]:sub(1, 1) == '{' then last, tag = last - 1, ARGV[last] end
local first, window_ms, of = ARGV[1]:match('^(%d+) (%d+) ?o?f? ?(%d*)$')
local credits, longest = tonumber(first), tonumber(window_ms)
local full = tonumber(of) or credits
local stored = redis.pcall('GET', key)
local left, ttl, refusal = credits, 0, type(stored) == 'table' and stored.err
if stored and not refusal then
  -- Accepts only numbers that Redis itself decreases. `tonumber` would also read `inf`, `0x1`, `007`, and numbers that
  -- doubles cannot represent.
  local number = tonumber(stored)
  if number and (not (number > -2^53 and number < 2^53) or string_format('%d', number) ~= stored) then number = nil end
  if number then left = number - full + credits else refusal = 'ERR the key does not hold a number of credits' end
end
if stored and not refusal then
  -- The milliseconds until the window ends. A window without an end (after PERSIST, or a SET by hand) would deny
  -- permanently, so an action that may change the window gives it an end. Only a clock that was set back makes a window
  -- last longer than its length. Any action corrects that.
  ttl = redis.call('PTTL', key)
  if ttl < 0 or ttl > longest then
    local is_corrected = ttl > longest
    for place = 2, last do
      local word = ARGV[place]:sub(1, 4)
      is_corrected = is_corrected or (mode == 'apply' and word ~= 'look' and word ~= 'show')
    end
    if is_corrected then redis.call('PEXPIRE', key, window_ms) end
    ttl = longest
  end
end

-- If an ask has a record, or credits of the window are reserved, the window is decided like any other bucket.
local is_bucket = KEYS[3] or redis.pcall('GET', KEYS[2] or tag .. RESERVED .. key)
