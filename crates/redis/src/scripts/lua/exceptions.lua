-- Exceptions for single actors: see exceptions.rs. A line of four hyphens begins a section: see scripts/mod.rs.

---- change
-- Changes an actor's exception. KEYS: the exceptions, the times of their changes, the times of their ends, and the number of
-- the first change. ARGV: the owner and the actor, the exception's text (empty: it is removed), the milliseconds until
-- it expires (empty: never), and how the texts of the exceptions that are replaced begin (none: all are). Returns 0 if the actor
-- had no exception before, 1 if it had one, and 2 if that one was kept.

local exceptions, changes, ends, born = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local of, text, lasts_ms = ARGV[1], ARGV[2], ARGV[3]

-- An expired exception is kept for this time, for servers that have not read its change. Each change forgets a few expired
-- ones.
local REMEMBERED_MS, FORGOTTEN_AT_ONCE = 3600 * 1000, 10
-- A server that has not read the changes for this time reads all exceptions again.
local FOLLOWED_US = 1800 * 1000000

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local newest = redis.call('ZREVRANGE', changes, 0, 0, 'WITHSCORES')[2]
-- The numbers of changes increase even if the clock is set back. They are times, so that they also increase after a
-- FLUSHALL.
local number = math.max(time[1] * 1000000 + time[2], newest and newest + 1 or 0)

local before = redis.call('HGET', exceptions, of)
if text == '' and not before then return 0 end
-- A removed exception has no text.
local ended_ms = (before or ''):match('^.+ (%d*)$')
local was_there = ended_ms and (ended_ms == '' or tonumber(ended_ms) > now_ms)
local is_replaced = #ARGV == 3
for place = 4, #ARGV do
  is_replaced = is_replaced or (before or ''):sub(1, #ARGV[place]) == ARGV[place]
end
if was_there and not is_replaced then return 2 end

local expires_ms = ''
if text == '' then lasts_ms = '0' end
if lasts_ms ~= '' then
  expires_ms = string.format('%.0f', now_ms + lasts_ms)
  redis.call('ZADD', ends, expires_ms, of)
else
  redis.call('ZREM', ends, of)
end
-- A new number shows the servers that this Redis was emptied.
if not redis.call('GET', born) then redis.call('SET', born, string.format('%.0f', number)) end
redis.call('HSET', exceptions, of, text .. ' ' .. expires_ms)
redis.call('ZADD', changes, string.format('%.0f', number), of)

local long_ended = string.format('%.0f', now_ms - REMEMBERED_MS)
local followed = string.format('%.0f', number - FOLLOWED_US)
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', long_ended, 'LIMIT', 0, FORGOTTEN_AT_ONCE)) do
  local changed = redis.call('ZSCORE', changes, ended)
  -- A server that has read no change for a long time still has the last change before that as its position. That change
  -- stays, because without it, each such server would read all exceptions again.
  local after = changed and string.format('(%.0f', changed)
  if not changed or redis.call('ZRANGEBYSCORE', changes, after, followed, 'LIMIT', 0, 1)[1] then
    redis.call('HDEL', exceptions, ended)
    redis.call('ZREM', changes, ended)
    redis.call('ZREM', ends, ended)
  end
end
return was_there and 1 or 0

---- follow
-- Returns the changes of actors' exceptions after the last one that the server has read (the known change). KEYS: the
-- exceptions, the times of their changes, and the number of the first change. ARGV: that number when the known change was
-- read, the number of the known change, its owner and actor (empty: no change is known), and the maximum number of
-- changes to return. Returns the number of the first change, whether the answer starts over with all exceptions, whether
-- this is the last page, a list: for each change its number, its owner and actor, and the exception, and the time in
-- milliseconds.

local exceptions, changes, born = KEYS[1], KEYS[2], redis.call('GET', KEYS[3]) or '0'
local known_born, known, of, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- If the known change is missing, it was lost: another Redis has taken over, or this one was emptied.
local number = of ~= '' and redis.call('ZSCORE', changes, of)
local starts_over = born ~= known_born or not number or tonumber(number) < tonumber(known)
local after = starts_over and '-inf' or '(' .. known
local found = redis.call('ZRANGEBYSCORE', changes, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local changed = {}
for place = 1, #found, 2 do
  local of_whom = found[place]
  table.insert(changed, string.format('%.0f', found[place + 1]))
  table.insert(changed, of_whom)
  table.insert(changed, redis.call('HGET', exceptions, of_whom) or ' ')
end
local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return { born, starts_over and 1 or 0, #found < 2 * most and 1 or 0, changed, now_ms }
